"""Groups with members of both protocols, at their coordinator: Kafka's rules, and what is stricter here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from strandline.node.coordinator.groups import consumer_classic
from strandline.node.coordinator.groups.classic_state import Leaving
from strandline.node.coordinator.groups.consumer_classic import has_to_rejoin
from strandline.node.coordinator.groups.consumer_member import LEAVING
from strandline.node.coordinator.groups.consumer_timers import CLASSIC_JOIN
from strandline.node.refusal import Cause, Refusal
from strandline.statemachine.groups.consumer_group import ConsumerGroup
from strandline.statemachine.groups.consumer_group_commands import LEFT_FOR_A_WHILE, UNREVOKED
from strandline.statemachine.groups.conversions import from_classic
from strandline.statemachine.groups.group_commands import AssignGeneration
from strandline.statemachine.kafka_errors import KafkaError
from tests.coordinator.consumers import GROUP, Consumer
from tests.coordinator.mixed import REBALANCE, ClassicConsumer, MixedHouse

POLICY = "consumer_migration_policy"


@pytest.fixture
def home() -> Iterator[MixedHouse]:
    made = MixedHouse()
    yield made
    made.close()


def consumer(name: str, **settings: Any) -> Consumer:
    return Consumer(name, ("events",), **settings)


def refused(home: MixedHouse, member: Consumer) -> tuple[Cause, str | None]:
    told = home.told(member.word())
    assert isinstance(told, Refusal), told
    return told.reason, told.message


# The whole way.


@pytest.mark.parametrize("cooperative", [False, True])
def test_a_group_moves_member_by_member_and_back(home: MixedHouse, cooperative: bool) -> None:
    every = home.cluster.parts("events")
    a, b = home.classics("ab", cooperative=cooperative)
    x, y = consumer("x"), consumer("y")
    home.run([a, b, x])
    assert home.protocol == "consumer"
    assert {len(one.owned) for one in (a, b, x)} == {1, 2}
    assert a.owned | b.owned | x.owned == every
    a.leave()
    home.run([b, x, y])
    b.leave()
    home.run([x, y])
    assert (home.protocol, x.owned | y.owned) == ("consumer", every)

    c, d = home.classic("c", cooperative=cooperative), home.classic("d", cooperative=cooperative)
    home.run([x, y, c])
    assert (home.protocol, x.owned | y.owned | c.owned) == ("consumer", every)
    home.told(x.word(LEAVING))
    home.run([y, c, d])
    assert home.protocol == "consumer"
    home.told(y.word(LEAVING))
    assert home.protocol == "classic"
    home.run([c, d])
    assert (len(c.owned), c.owned | d.owned) == (2, every)
    assert home.refusal(c) is None


def test_nothing_is_left_when_all_have_gone(home: MixedHouse) -> None:
    a, b = home.classics("ab")
    x = consumer("x")
    home.run([a, b, x])
    assert home.groups.bytes > 0
    home.told(x.word(LEAVING))
    home.run([a, b])
    for one in (a, b):
        one.leave()
    assert (home.groups.bytes, home.nothing_is_left()) == (0, True)


# Whether it may.


@pytest.mark.parametrize(
    ("policy", "up", "down"),
    [
        ("bidirectional", "consumer", "classic"),
        ("upgrade", "consumer", "consumer"),
        ("downgrade", "classic", "classic"),
        ("disabled", "classic", "consumer"),
    ],
)
def test_the_policy_says_what_a_group_with_members_may_become(policy: str, up: str, down: str) -> None:
    home = MixedHouse(**{POLICY: policy})
    (a,) = home.classics("a")
    x = consumer("x")
    if up == "classic":
        assert refused(home, x) == (
            KafkaError.GROUP_ID_NOT_FOUND,
            "Cannot upgrade classic group g to consumer group because online upgrade is disabled.",
        )
        a.leave()
    home.run([x])
    assert home.protocol == "consumer"
    a.rejoins = True
    home.run([a, x])
    assert a.owned, "a member of the classic protocol is served whatever the policy"
    assert home.protocol == "consumer"
    home.told(x.word(LEAVING))
    home.run([a])
    assert (home.protocol, a.owned) == (down, home.cluster.parts("events"))
    home.close()


@pytest.mark.parametrize(
    ("fault", "settings", "assigned"),
    [
        ("the group does not use the consumer embedded protocol", {"kind": "connect"}, None),
        ("the embedded consumer protocol is malformed", {}, b"\0\0\0\0\0\7"),
        (
            "a partition is assigned to two members",
            {},
            b"\0\0\0\0\0\1\0\6events\0\0\0\1\0\0\0\0\xff\xff\xff\xff",
        ),
        (
            "an unsupported custom assignor is in use. Please refer to the documentation or switch to a "
            "default assignor before re-attempting the upgrade",
            {},
            b"\0\0\0\0\0\0\0\0\0\1u",
        ),
    ],
)
def test_what_cannot_be_read_stays_classic(
    home: MixedHouse, fault: str, settings: dict[str, Any], assigned: bytes | None
) -> None:
    a, b = home.classic("a", **settings), home.classic("b", **settings)
    if assigned is not None:
        for one in (a, b):
            one._assign = lambda answer: {member[0]: assigned for member in answer.members}  # type: ignore[method-assign]
            one.synced = lambda: None  # type: ignore[method-assign]
    home.run([a, b], rounds=6)
    members = home.membership.members
    assert refused(home, consumer("x")) == (
        KafkaError.GROUP_ID_NOT_FOUND,
        f"Cannot upgrade classic group g to consumer group because {fault}.",
    )
    assert (home.protocol, home.membership.members) == ("classic", members)
    assert home.code(consumer("y").word(3)) is KafkaError.GROUP_ID_NOT_FOUND


def test_a_group_that_is_too_large_stays_classic() -> None:
    home = MixedHouse(max_members=3)
    home.classics("abc")
    home.context.config.groups = type(home.context.config.groups)(max_members=2)
    home.groups._config = home.context.config.groups
    assert "exceeds the consumer group maximum size" in (refused(home, consumer("x"))[1] or "")
    home.close()


def test_a_turn_in_which_nobody_gets_in_converts_nothing() -> None:
    home = MixedHouse(max_members=2)
    a, b = home.classics("ab")
    assert home.code(consumer("x").word()) is KafkaError.GROUP_MAX_SIZE_REACHED
    assert (home.protocol, home.refusal(a), home.refusal(b)) == ("classic", None, None)
    assert home.groups.bytes == 0
    home.close()


# An upgrade.


def test_who_waits_in_a_classic_group_is_told_to_come_again(home: MixedHouse) -> None:
    a, b = home.classics("ab")
    c = home.classic("c")
    c.begin_join()
    c.joined()
    a.beat()
    a.begin_join()
    home.beat(consumer("x"))
    for one in (a, c):
        one.joined()
        assert one.told[-1] is KafkaError.REBALANCE_IN_PROGRESS
        assert one.member_id
    assert home.coordinator.classic.get(GROUP) is None
    assert home.coordinator.classic.waiting == 0
    assert b.beat() is KafkaError.REBALANCE_IN_PROGRESS
    x = home.group.members["x"]
    home.run([a, b, c])
    assert (x.assigned, len(a.owned | b.owned | c.owned)) == ((), 3), "x has yet to ask for its own"


def test_who_only_just_joins_is_asked_to_come_again(home: MixedHouse) -> None:
    a = home.classic("a")
    a.begin_join()
    a.joined()
    x = consumer("x")
    home.run([x], rounds=1)
    a.joined()
    assert a.told == [KafkaError.REBALANCE_IN_PROGRESS]
    home.run([x, a])
    assert (home.protocol, len(x.owned), len(a.owned)) == ("consumer", 2, 2)


def test_a_generation_that_is_assigned_meanwhile_is_what_is_converted(home: MixedHouse) -> None:
    a, b = home.classics("ab")
    a.rejoins = b.rejoins = True
    home.by_hand = True
    for one in (a, b):
        one.begin_join()
    home.commit()
    x = consumer("x")
    task = home.say(x.word())
    assert not task.done()
    for one in (b, a):
        one.joined()
    home.commit()
    home.by_hand = False
    home.turn()
    assert home.protocol == "consumer"
    home.run([a, b, x])
    assert a.owned | b.owned | x.owned == home.cluster.parts("events")


def test_an_entry_that_comes_between_has_the_conversion_planned_anew(home: MixedHouse) -> None:
    a, b = home.classics("ab")
    a.rejoins = b.rejoins = True
    for one in (a, b):
        one.begin_join()
    generation = home.membership
    home.by_hand = True
    task = home.say(consumer("x").word())
    assert home.log.proposed, "the conversion is on its way"
    home.apply_foreign(AssignGeneration(GROUP, generation.generation, {}))  # type: ignore[union-attr]
    home.commit()
    assert home.protocol == "classic", "it was planned from a generation that was not assigned"
    home.commit()
    assert (home.protocol, task.done()) == ("consumer", True)


def test_a_commit_of_before_is_judged_by_the_same_number_until_the_member_joins_again(
    home: MixedHouse,
) -> None:
    a, b = home.classics("ab")
    before = a.generation
    home.beat(consumer("x"))
    assert (home.refusal(a), home.refusal(a, transactional=True)) == (None, None)
    home.run([a])
    assert a.generation == before + 1
    stale = home.membership.refuse_commit(a.member_id, None, before, transactional=False)
    assert stale is KafkaError.ILLEGAL_GENERATION
    assert home.refusal(b) is None, "b has not joined again"
    b.leave()
    assert home.refusal(b) is KafkaError.UNKNOWN_MEMBER_ID


def test_a_partition_that_a_member_has_yet_to_let_go_of_is_not_given_to_another(home: MixedHouse) -> None:
    """Kafka takes what the last generation did not assign for free, and gives it to whoever joins."""
    (a,) = home.classics("a", cooperative=True)
    b = home.classic("b", cooperative=True)
    b.begin_join()
    b.joined()
    a.beat()
    a.begin_join()
    a.joined()  # a leads, and leaves two partitions out, which it has not let go of yet
    b.joined()
    assert home.protocol == "classic"
    assert len(a.owned) == 4
    x = consumer("x")
    home.beat(x)
    member = home.group.members[a.member_id]
    assert (member.state, len(member.revoking[0][1])) == (UNREVOKED, 2)
    for _ in range(4):
        home.beat(x)
        x.obey()
    assert not x.owned & a.owned
    a.synced()
    home.run([a, b, x])
    assert a.owned | b.owned | x.owned == home.cluster.parts("events")


def test_members_of_a_generation_that_was_not_assigned_keep_what_they_have(home: MixedHouse) -> None:
    a, b = home.classics("ab", cooperative=True)
    a.rejoins = b.rejoins = True
    for one in (a, b):
        one.begin_join()
    assert home.membership.awaits_assignment  # type: ignore[union-attr]
    x = consumer("x")
    home.beat(x)
    x.obey()
    assert not x.owned
    assert len(home.group.owners) == 4
    home.run([a, b, x])
    assert x.owned


def test_who_left_while_the_others_join_again_is_no_member_of_the_consumer_group(home: MixedHouse) -> None:
    a, b = home.classics("ab")
    a.leave()
    x = consumer("x")
    home.run([x], rounds=1)
    assert set(home.group.members) == {b.member_id, "x"}
    assert home.refusal(a) is KafkaError.UNKNOWN_MEMBER_ID


# Members of the classic protocol in a consumer group.


def test_a_member_is_given_an_id_first(home: MixedHouse) -> None:
    home.consumer("x")
    a = home.classic("a")
    a.begin_join()
    assert a._joining is not None
    assert a._joining.result().error is KafkaError.MEMBER_ID_REQUIRED
    assert set(home.group.members) == {"x"}
    a.joined()
    a.joined()
    assert set(home.group.members) == {"x", a.member_id}


@pytest.mark.parametrize(
    ("code", "settings"),
    [
        (KafkaError.INCONSISTENT_GROUP_PROTOCOL, {"protocols": ("other",)}),
        (KafkaError.INCONSISTENT_GROUP_PROTOCOL, {"protocols": ()}),
        (KafkaError.INCONSISTENT_GROUP_PROTOCOL, {"kind": "connect"}),
        (KafkaError.INVALID_SESSION_TIMEOUT, {"session": 1.0}),
        (KafkaError.GROUP_MAX_SIZE_REACHED, {}),
    ],
)
def test_who_does_not_fit_is_turned_away(code: Cause, settings: dict[str, Any]) -> None:
    home = MixedHouse(max_members=2 if code is KafkaError.GROUP_MAX_SIZE_REACHED else 9)
    a = home.classic("a")
    home.consumer("x")
    home.run([a], rounds=3)
    b = home.classic("b", **settings)
    b.begin_join()
    b.joined()
    assert b.told == [code]
    assert set(home.group.members) == {"x", a.member_id}
    home.close()


def test_a_subscription_that_cannot_be_read_is_an_error_of_the_server(home: MixedHouse) -> None:
    home.consumer("x")
    a = home.classic("a")
    a.metadata = lambda: b"\0\0"  # type: ignore[method-assign]
    a.begin_join()
    a.joined()
    a.joined()
    assert a.told == [KafkaError.UNKNOWN_SERVER_ERROR]


def test_a_heartbeat_says_when_to_join_again(home: MixedHouse) -> None:
    x = home.consumer("x")
    a = home.classic("a", cooperative=True)
    home.run([a], rounds=4)
    assert a.owned == frozenset()
    assert a.beat() is None, "what it is to have is another's still"
    home.beat(x)
    x.obey()
    home.beat(x)
    assert a.beat() is KafkaError.REBALANCE_IN_PROGRESS, "it is free"
    home.run([a], rounds=3)
    assert len(a.owned) == 2
    home.run([home.classic("b"), home.classic("c")], rounds=3)
    assert a.beat() is KafkaError.REBALANCE_IN_PROGRESS, "there is a newer target"
    a.begin_join()
    a.joined()
    a.synced()
    assert home.group.members[a.member_id].state == UNREVOKED
    assert a.beat() is KafkaError.REBALANCE_IN_PROGRESS, "it has to say that it let go"


def test_a_sync_that_comes_after_the_next_target_is_too_late(home: MixedHouse) -> None:
    home.consumer("x")
    a = home.classic("a")
    a.begin_join()
    a.joined()
    home.consumer("y")
    a.joined()
    a.synced()
    assert a.told == [KafkaError.REBALANCE_IN_PROGRESS]


def test_ids_and_generations_are_held_against_each_request(home: MixedHouse) -> None:
    x = home.consumer("x", instance_id="i")
    a = home.classic("a", instance="j")
    home.run([a], [x])
    beat = home.coordinator.heartbeat
    assert beat(GROUP, a.member_id, "j", a.generation) is None
    assert beat(GROUP, a.member_id, None, a.generation + 1) is KafkaError.ILLEGAL_GENERATION
    assert beat(GROUP, a.member_id, "i", a.generation) is KafkaError.FENCED_INSTANCE_ID
    assert beat(GROUP, a.member_id, "k", a.generation) is KafkaError.UNKNOWN_MEMBER_ID
    assert beat(GROUP, "x", "i", x.epoch) is KafkaError.UNKNOWN_MEMBER_ID, "it speaks the other protocol"
    assert (
        home.membership.refuse_commit(a.member_id, None, 0, transactional=True)
        is KafkaError.ILLEGAL_GENERATION
    )
    assert home.membership.refuse_commit("x", None, 0, transactional=True) is KafkaError.STALE_MEMBER_EPOCH


# Time.


@pytest.mark.parametrize("stage", ["silent", "does not join", "does not sync"])
def test_who_does_not_do_its_part_is_out(home: MixedHouse, stage: str) -> None:
    x = home.consumer("x")
    a = home.classic("a")
    home.run([a], [x])
    others = [x]
    if stage != "silent":
        others.append(home.consumer("y"))
        home.run(others, rounds=2)
    if stage == "does not sync":
        a.beat()
        a.begin_join()
    limit = a.session if stage == "silent" else REBALANCE
    began = home.loop.now
    while a.member_id in home.group.members:
        assert home.loop.now < began + limit + 3
        home.run(others, rounds=1)
        if a.member_id not in home.group.members:
            break
        if stage == "does not join":
            assert a.beat() is KafkaError.REBALANCE_IN_PROGRESS
        elif stage == "does not sync":
            home.groups.timers.restart_session(GROUP, home.group.members[a.member_id])
        home.advance(1.0)
    assert home.loop.now > began + limit - 3
    assert home.refusal(a) is KafkaError.UNKNOWN_MEMBER_ID


def test_the_others_are_not_timed_by_what_a_member_was_before(home: MixedHouse) -> None:
    """Its classic process was told to join again, and a new one speaks the consumer protocol."""
    x = home.consumer("x")
    a = home.classic("a", instance="i")
    home.run([a], [x])
    home.consumer("y")
    assert a.beat() is KafkaError.REBALANCE_IN_PROGRESS
    b = consumer("b", instance_id="i")
    home.run([b], [x])
    for _ in range(round(REBALANCE) + 2):
        home.beat(b)
        home.advance(1.0)
    assert "b" in home.group.members
    assert home.refusal(a) is KafkaError.UNKNOWN_MEMBER_ID


# Static members.


def test_a_static_member_comes_back_with_the_other_protocol_and_its_zombie_is_fenced(
    home: MixedHouse,
) -> None:
    a = home.classic("a", instance="i")
    b = home.classic("b")
    home.run([a, b])
    had, before = a.owned, a.generation
    back = consumer("back", instance_id="i")
    home.run([back], rounds=1)
    assert back.owned == had, "and the classic one did not have to leave"
    assert a.beat() is KafkaError.FENCED_INSTANCE_ID
    verdict = home.membership.refuse_commit(a.member_id or "a", "i", before, transactional=True)
    assert verdict is KafkaError.UNKNOWN_MEMBER_ID


def test_the_last_of_the_new_protocol_comes_back_with_the_old_one_and_nobody_joins_again(
    home: MixedHouse,
) -> None:
    x = home.consumer("x", instance_id="i")
    a = home.classic("a")
    home.run([x, a])
    had, epoch = x.owned, home.group.epoch
    back = home.classic("back", instance="i")
    back.begin_join()
    back.joined()
    assert home.protocol == "classic"
    back.synced()
    assert (back.owned, back.generation) == (had, epoch)
    assert (a.beat(), back.beat()) == (None, None)
    assert home.membership.refuse_commit("x", "i", epoch, transactional=True) is KafkaError.FENCED_INSTANCE_ID


def test_it_is_a_rebalance_where_not_all_have_what_they_are_to_have(home: MixedHouse) -> None:
    x = home.consumer("x", instance_id="i")
    a = home.classic("a", cooperative=True)
    home.run([a], rounds=3)
    back = home.classic("back", instance="i")
    back.begin_join()
    back.joined()
    assert (home.protocol, a.beat()) == ("classic", KafkaError.REBALANCE_IN_PROGRESS)
    home.run([a, back])
    assert (len(a.owned), a.owned | back.owned) == (2, home.cluster.parts("events"))
    assert home.refusal(x) is not None


def test_who_left_for_a_while_keeps_the_group_what_it_is(home: MixedHouse) -> None:
    x = home.consumer("x", instance_id="i")
    a = home.classic("a")
    home.run([x, a])
    home.told(x.word(LEFT_FOR_A_WHILE))
    home.run([a])
    assert (home.protocol, len(a.owned)) == ("consumer", 2)
    home.advance(46.0)
    home.run([a])
    assert (home.protocol, len(a.owned)) == ("classic", 4)


def test_a_static_member_is_known_by_both_its_ids(home: MixedHouse) -> None:
    home.consumer("x", instance_id="i")
    a = home.classic("a", instance="j")
    a.member_id = "stranger"
    a.begin_join()
    a.joined()
    assert a.told == [KafkaError.UNKNOWN_MEMBER_ID]
    b = home.classic("b", instance="i")
    b.member_id = "b"
    b.begin_join()
    b.joined()
    assert b.told == [KafkaError.FENCED_INSTANCE_ID]


# A downgrade.


def test_a_commit_of_before_a_downgrade_is_judged_by_the_same_number(home: MixedHouse) -> None:
    x = home.consumer("x")
    a, b = home.classic("a"), home.classic("b")
    home.run([x, a, b])
    home.consumer("y")
    home.run([a])
    home.told(x.word(LEAVING))
    home.run([a])
    epoch = home.group.epoch
    assert (a.generation, b.generation < epoch) == (epoch, True)
    home.told(consumer("y").word(LEAVING))
    assert (home.protocol, home.membership.generation) == ("classic", epoch)  # type: ignore[union-attr]
    assert home.refusal(a) is None
    assert home.refusal(b) is KafkaError.ILLEGAL_GENERATION
    home.run([a, b])
    assert (a.generation, a.owned | b.owned) == (b.generation, home.cluster.parts("events"))


def test_members_that_leave_together_are_one_conversion(home: MixedHouse) -> None:
    home.consumer("x")
    home.consumer("y")
    a = home.classic("a")
    home.run([a], rounds=4)

    task = home.ask(
        home.coordinator.leave(GROUP, [Leaving("x", None), Leaving("z", None), Leaving("y", None)])
    )
    assert task.result() == [None, KafkaError.UNKNOWN_MEMBER_ID, None]
    assert home.protocol == "classic"
    home.run([a])
    assert len(a.owned) == 4


def test_who_joins_while_it_becomes_classic_joins_that(home: MixedHouse) -> None:
    x = home.consumer("x")
    a, b = home.classic("a"), home.classic("b")
    home.run([x, a])
    home.by_hand = True
    gone = home.say(x.word(LEAVING))
    b.begin_join()
    b.joined()
    home.by_hand = False
    home.turn()
    assert gone.done()
    home.run([a, b])
    assert (home.protocol, len(a.owned), len(b.owned)) == ("classic", 2, 2)


def test_a_group_with_topics_that_are_gone_is_converted_without_them(home: MixedHouse) -> None:
    a = home.classic("a")
    home.run([a])
    home.cluster.delete("events")
    x = consumer("x")
    home.beat(x)
    assert home.group.members[a.member_id].assigned == ()
    home.told(x.word(LEAVING))
    assert home.protocol == "classic"


# Leaders.


def test_a_new_leader_serves_both(home: MixedHouse) -> None:
    a, b = home.classics("ab")
    x = consumer("x")
    home.run([a, b, x])
    before = home.group.fields()
    home.new_leader()
    assert home.group.fields() == before
    assert (a.beat(), b.beat()) == (None, None)
    home.run([a, b, x])
    for _ in range(31):
        home.beat(x)
        b.beat() if b.rejoins is False else b.poll()
        home.advance(1.0)
    assert set(home.group.members) == {b.member_id, "x"}, "a was silent for its own session"


def test_a_new_leader_carries_a_downgrade_through(home: MixedHouse) -> None:
    x = home.consumer("x")
    a, b = home.classic("a"), home.classic("b")
    home.run([x, a, b])
    home.told(x.word(LEAVING))
    home.new_leader()
    assert a.beat() is KafkaError.REBALANCE_IN_PROGRESS, "what x had is nobody's yet"
    home.run([a, b])
    assert a.owned | b.owned == home.cluster.parts("events")


def test_a_snapshot_has_it_all(home: MixedHouse) -> None:
    a, b = home.classics("ab")
    x = consumer("x")
    home.run([a, b, x])
    machine = home.replica.machine
    restored = type(machine)(lambda *_: None)
    restored.restore(machine.snapshot())
    membership = restored.groups[GROUP].membership
    assert isinstance(membership, ConsumerGroup)
    assert (membership.classic, membership.supported) == (2, {"range": 2})
    assert restored.snapshot() == machine.snapshot()


def alive(home: MixedHouse, *members: ClassicConsumer | Consumer, seconds: float) -> None:
    """Let time pass while these, and no others, do what clients do."""
    home.run(members, rounds=round(4 * seconds))


def test_who_does_its_part_in_time_stays(home: MixedHouse) -> None:
    """It joined and synced when it was told to, so neither time counts against it."""
    x = home.consumer("x")
    a = home.classic("a")
    home.run([a], [x])
    member_id = a.member_id
    a.told.clear()
    y = home.consumer("y")
    assert a.beat() is KafkaError.REBALANCE_IN_PROGRESS
    alive(home, a, x, y, seconds=2.5 * REBALANCE)
    assert (a.member_id, set(home.group.members)) == (member_id, {"x", "y", member_id})
    assert a.told == [KafkaError.REBALANCE_IN_PROGRESS]


def test_who_is_silent_since_the_upgrade_is_out(home: MixedHouse) -> None:
    a, b = home.classics("ab")
    x = consumer("x")
    home.run([x], rounds=1)
    alive(home, x, b, seconds=a.session - 2)
    assert a.member_id in home.group.members
    alive(home, x, b, seconds=4)
    assert set(home.group.members) == {"x", b.member_id}


def test_a_process_that_speaks_the_other_protocol_now_has_no_time_to_join(home: MixedHouse) -> None:
    """Under the member id of the one before, which had been told to join again."""
    x = home.consumer("x")
    a = home.classic("a")
    home.run([a], [x])
    y = home.consumer("y")
    assert a.beat() is KafkaError.REBALANCE_IN_PROGRESS
    b = consumer(a.member_id)
    home.run([b], rounds=1)
    assert home.group.classic == 0
    home.advance(1.0)
    assert home.coordinator.timers.remaining((CLASSIC_JOIN, GROUP, a.member_id)) is None
    alive(home, b, x, y, seconds=REBALANCE + 2)
    assert b.member_id in home.group.members


def test_one_that_has_to_let_go_is_called_back_in_the_newest_epoch_too(home: MixedHouse) -> None:
    """What it had when it joined last and was not assigned, in a group whose topics ask for no new target."""
    (a,) = home.classics("a", cooperative=True)
    group = from_classic(home.membership, {"events": home.cluster.topic("events").topic_id})  # type: ignore[arg-type]
    member = group.members[a.member_id]
    assert not has_to_rejoin(group, member)
    assert has_to_rejoin(group, member._replace(state=UNREVOKED))


def test_all_join_again_where_they_do_not_agree_on_a_protocol(home: MixedHouse) -> None:
    x = home.consumer("x", instance_id="i")
    a = home.classic("a", protocols=("range", "other"))
    home.run([x, a])
    back = home.classic("back", instance="i", protocols=("other", "range"))
    back.begin_join()
    back.joined()
    assert (home.protocol, a.beat()) == ("classic", KafkaError.REBALANCE_IN_PROGRESS)
    home.run([a, back])
    assert a.owned | back.owned == home.cluster.parts("events")


def test_what_a_classic_group_could_not_bear_stays_a_consumer_group(home: MixedHouse) -> None:
    x = home.consumer("x")
    a = home.classic("a")
    home.run([x, a])
    with patch.object(consumer_classic, "MAX_GROUP_BYTES", 10):
        home.told(x.word(LEAVING))
        home.run([a])
        assert (home.protocol, len(a.owned)) == ("consumer", 4)


def test_protocols_are_held_against_those_who_join_in_the_same_turn(home: MixedHouse) -> None:
    home.consumer("x")
    a, b = home.classic("a", protocols=("range",)), home.classic("b", protocols=("other",))
    for one in (a, b):
        one.member_id = one.name
    home.by_hand = True
    home.say(consumer("y").word())
    for one in (a, b):
        one.begin_join()
    home.by_hand = False
    home.turn()
    a.joined()
    b.joined()
    assert (a.told, b.told) == ([], [KafkaError.INCONSISTENT_GROUP_PROTOCOL])


def test_a_join_whose_turn_comes_when_the_group_is_classic_joins_that(home: MixedHouse) -> None:
    x = home.consumer("x")
    a = home.classic("a")
    home.run([x, a])
    member_id = a.member_id
    a.told.clear()
    home.by_hand = True
    home.say(x.word(LEAVING))
    a.rejoins = True
    a.begin_join()
    assert a._joining is not None
    home.by_hand = False
    home.turn()
    a.joined()
    assert (a.told, a.member_id, home.protocol) == ([], member_id, "classic")
