"""Plans of consumer groups, one scene each: KIP-848's epochs, revocation before assignment, fencing."""

from __future__ import annotations

import pytest

from strandline.node.coordinator.groups import consumer_plan
from strandline.node.coordinator.groups.consumer_events import Answer
from strandline.node.coordinator.groups.consumer_member import JOINING, LEAVING, MemberHeartbeat
from strandline.node.coordinator.groups.consumer_plan import preferred_assignor
from strandline.node.refusal import Cause, Refusal
from strandline.statemachine.groups.consumer_group_commands import (
    LEFT_FOR_A_WHILE,
    STABLE,
    UNRELEASED,
    UNREVOKED,
    partitions_of,
)
from strandline.statemachine.kafka_errors import KafkaError
from tests.coordinator.consumers import Cluster, Consumer, Log, reply, settle


def scene(**partitions: int) -> tuple[Cluster, Log]:
    cluster = Cluster(**partitions)
    return cluster, Log(cluster)


def joined(log: Log, *names: str, topics: tuple[str, ...] = ("events",)) -> list[Consumer]:
    """Members that have settled."""
    members = [Consumer(name, topics) for name in names]
    settle(log, members, 4)
    return members


def code(answer: Answer | None) -> Cause | None:
    assert isinstance(answer, Refusal), answer
    return answer.reason


def test_the_first_member_has_everything_at_once() -> None:
    cluster, log = scene(events=3)
    answer = reply(log.say(Consumer("a", ("events",)).word())[0])
    assert (answer.epoch, answer.state) == (1, STABLE)
    assert set(partitions_of(answer.assignment or ())) == cluster.parts("events")
    assert len(log.changes) == 1


def test_who_joins_together_is_one_entry_and_one_epoch() -> None:
    _, log = scene(events=4)
    answers = log.say(*(Consumer(f"m{number}", ("events",)).word() for number in range(4)))
    assert [reply(answer).epoch for answer in answers] == [1, 1, 1, 1]
    assert len(log.changes) == 1
    assert len(log.present.owners) == 4


def test_a_partition_moves_only_once_its_owner_said_that_it_let_go() -> None:
    cluster, log = scene(events=2)
    (a,) = joined(log, "a")
    b = Consumer("b", ("events",))
    answer = reply(log.say(b.word())[0])
    assert (answer.epoch, answer.state, answer.assignment) == (2, UNRELEASED, ())
    b.hear(answer)
    answer = reply(log.say(a.word())[0])
    assert (answer.epoch, answer.state) == (1, UNREVOKED), "it stays in its epoch until it has let go"
    assert len(partitions_of(answer.assignment or ())) == 1
    a.hear(answer)
    assert log.say(b.word())[0] == (b.member_id, 2, UNRELEASED, None)
    assert log.say(a.word())[0] == (a.member_id, 1, UNREVOKED, None), "it has not let go yet"
    a.obey()
    answer = reply(log.say(a.word())[0])
    assert (answer.epoch, answer.state, answer.assignment) == (2, STABLE, None)
    answer = reply(log.say(b.word())[0])
    assert (answer.epoch, answer.state) == (2, STABLE)
    assert {*a.owned, *partitions_of(answer.assignment or ())} == cluster.parts("events")


def test_who_says_nothing_of_what_it_owns_has_let_go_of_nothing() -> None:
    _, log = scene(events=2)
    joined(log, "a")
    b = Consumer("b", ("events",))
    b.hear(log.say(b.word())[0])
    for _ in range(2):
        silent = MemberHeartbeat("a", 1, "c", "/h")
        assert reply(log.say(silent)[0]).state == UNREVOKED
    assert log.present.members["b"].assigned == ()


def test_a_steady_heartbeat_is_not_in_the_log() -> None:
    _, log = scene(events=2)
    members = joined(log, "a", "b")
    before = len(log.changes)
    for member in members:
        assert reply(log.say(member.word())[0]).assignment is None
    assert len(log.changes) == before


def test_a_full_heartbeat_is_told_everything() -> None:
    _, log = scene(events=2)
    (a,) = joined(log, "a")
    a.says_all = True
    answer = reply(log.say(a.word())[0])
    assert answer.assignment == log.present.members["a"].assigned
    assert len(log.changes) == 1


def test_an_answer_that_was_lost_is_given_again() -> None:
    _, log = scene(events=2)
    (a,) = joined(log, "a")
    log.say(Consumer("b", ("events",)).word())
    a.hear(log.say(a.word())[0])
    a.obey()
    log.say(a.word())  # its epoch rises to 2, and it never hears of it
    a.missed()
    answer = reply(log.say(a.word())[0])
    assert (answer.epoch, answer.assignment) == (2, log.present.members["a"].assigned)


@pytest.mark.parametrize(("epoch", "owned"), [(3, False), (1, True)])
def test_an_epoch_that_is_not_the_members_fences_it(epoch: int, owned: bool) -> None:
    """Ahead: never told. Behind: only for who owns nothing that it was not to have."""
    cluster, log = scene(events=2)
    (a,) = joined(log, "a")
    log.say(Consumer("b", ("events",)).word())
    a.hear(log.say(a.word())[0])
    a.obey()
    log.say(a.word())
    everything = cluster.parts("events") if owned else a.owned
    stale = MemberHeartbeat("a", epoch, "c", "/h", owned=everything)
    before = len(log.changes)
    assert code(log.say(stale)[0]) is KafkaError.FENCED_MEMBER_EPOCH
    assert len(log.changes) == before


def test_a_fenced_member_joins_again_and_gets_what_it_had() -> None:
    cluster, log = scene(events=2)
    (a,) = joined(log, "a")
    a.hear(Refusal(KafkaError.FENCED_MEMBER_EPOCH, ""))
    answer = reply(log.say(a.word())[0])
    assert (answer.epoch, frozenset(partitions_of(answer.assignment or ()))) == (1, cluster.parts("events"))


def test_strangers() -> None:
    _, log = scene(events=2)
    assert code(log.say(MemberHeartbeat("a", 1, "c", "/h"))[0]) is KafkaError.GROUP_ID_NOT_FOUND
    assert code(log.say(MemberHeartbeat("a", LEAVING, "c", "/h"))[0]) is KafkaError.GROUP_ID_NOT_FOUND
    joined(log, "a")
    assert code(log.say(MemberHeartbeat("b", 1, "c", "/h"))[0]) is KafkaError.UNKNOWN_MEMBER_ID
    assert code(log.say(MemberHeartbeat("b", LEAVING, "c", "/h"))[0]) is KafkaError.UNKNOWN_MEMBER_ID
    assert code(log.say(MemberHeartbeat("b", LEAVING, "c", "/h", "i"))[0]) is KafkaError.UNKNOWN_MEMBER_ID
    assert code(log.say(MemberHeartbeat("b", 1, "c", "/h", "i"))[0]) is KafkaError.UNKNOWN_MEMBER_ID


def test_a_full_group_takes_nobody_in_but_its_members() -> None:
    cluster = Cluster(events=2)
    log = Log(cluster, max_members=2)
    members = joined(log, "a", "b")
    assert code(log.say(Consumer("c", ("events",)).word())[0]) is KafkaError.GROUP_MAX_SIZE_REACHED
    assert reply(log.say(members[0].word(JOINING))[0]).epoch == log.present.epoch
    both = [Consumer("c", ("events",)).word(), members[0].word(LEAVING)]
    assert code(log.say(*both)[0]) is KafkaError.GROUP_MAX_SIZE_REACHED
    assert isinstance(log.say(Consumer("c", ("events",)).word())[0], tuple)


def test_what_members_say_of_themselves_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_plan, "MAX_GROUP_BYTES", 3_000)
    _, log = scene(events=2)
    (a,) = joined(log, "a")
    wide = Consumer("b", tuple(f"topic-{number:03}" for number in range(400)))
    assert code(log.say(wide.word())[0]) is KafkaError.GROUP_MAX_SIZE_REACHED
    a.topics, a.says_all = wide.topics, True
    before = len(log.changes)
    assert code(log.say(a.word())[0]) is KafkaError.GROUP_MAX_SIZE_REACHED
    assert len(log.changes) == before
    words = [Consumer(f"m{number:03}", ("events",)).word() for number in range(20)]
    refused = [answer for answer in log.say(*words) if isinstance(answer, Refusal)]
    assert len(log.present.members) + len(refused) == 21
    assert 5 <= len(log.present.members) <= 11
    a.topics = ("events",)
    assert reply(log.say(a.word())[0]).epoch > 0
    log.say(a.word(LEAVING))
    assert reply(log.say(Consumer("c", ("events",)).word())[0]).epoch > 0


def test_who_leaves_makes_room_in_the_same_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_plan, "MAX_GROUP_BYTES", 600)
    _, log = scene(events=2)
    (a,) = joined(log, "a")
    b, c = (Consumer(name, ("events",)).word() for name in "bc")
    assert not any(isinstance(answer, Refusal) for answer in log.say(b, a.word(LEAVING), c))
    assert code(log.say(Consumer("d", ("events",)).word())[0]) is KafkaError.GROUP_MAX_SIZE_REACHED


def test_what_a_member_leaves_is_the_others() -> None:
    cluster, log = scene(events=2)
    a, b = joined(log, "a", "b")
    assert log.say(a.word(LEAVING))[0] == ("a", LEAVING, STABLE, None)
    settle(log, [b], 2)
    assert b.owned == cluster.parts("events")
    log.say(b.word(LEAVING))
    assert (log.present.state, log.present.metadata, log.present.matches) == ("Empty", b"", {})


def test_what_is_let_go_of_is_taken_in_the_same_turn() -> None:
    cluster, log = scene(events=2)
    a, b = joined(log, "a", "b")
    answer = reply(log.say(b.word(), a.word(LEAVING))[0])
    assert frozenset(partitions_of(answer.assignment or ())) == cluster.parts("events")
    b.hear(answer)
    b.obey()
    c = Consumer("c", ("events",))
    c.hear(log.say(c.word())[0])
    b.hear(log.say(b.word())[0])
    b.obey()
    taken, given = log.say(c.word(), b.word())
    assert reply(taken).state == reply(given).state == STABLE


def test_whose_time_is_over_is_a_member_no_more() -> None:
    cluster, log = scene(events=2)
    a, b = joined(log, "a", "b")
    log.overdue("a")
    assert code(log.say(a.word())[0]) is KafkaError.UNKNOWN_MEMBER_ID
    settle(log, [b], 2)
    assert b.owned == cluster.parts("events")
    before = len(log.changes)
    log.overdue("a")
    assert len(log.changes) == before


# Static members.


def static(name: str, instance: str = "i") -> Consumer:
    return Consumer(name, ("events",), instance_id=instance)


def test_a_static_member_comes_back_to_what_it_had() -> None:
    cluster, log = scene(events=4)
    first, other = static("a"), static("b", "k")
    settle(log, [first, other], 4)
    had, epoch = first.owned, log.present.epoch
    assert log.say(first.word(LEFT_FOR_A_WHILE))[0] == ("a", LEFT_FOR_A_WHILE, STABLE, None)
    settle(log, [other], 2)
    assert other.owned.isdisjoint(had), "what it has waits for it"
    second = static("z")
    answer = reply(log.say(second.word())[0])
    assert set(partitions_of(answer.assignment or ())) == had
    assert (answer.epoch, log.present.epoch) == (epoch, epoch), "nobody else is troubled"
    assert log.present.static == {"i": "z", "k": "b"}
    assert code(log.say(first.word(epoch))[0]) is KafkaError.UNKNOWN_MEMBER_ID
    first.says_all = True
    assert code(log.say(first.word(epoch))[0]) is KafkaError.FENCED_INSTANCE_ID
    assert code(log.say(first.word(LEAVING))[0]) is KafkaError.FENCED_INSTANCE_ID
    assert {*other.owned, *had} == cluster.parts("events")


def test_a_static_member_that_is_there_is_not_replaced() -> None:
    _, log = scene(events=2)
    first = static("a")
    settle(log, [first], 2)
    assert code(log.say(static("z").word())[0]) is KafkaError.UNRELEASED_INSTANCE_ID
    first.says_all = True
    assert reply(log.say(first.word(JOINING))[0]).epoch == 1, "the same process, whose answer was lost"
    assert reply(log.say(first.word(1))[0]).epoch == 1
    assert code(log.say(first.word(2))[0]) is KafkaError.FENCED_MEMBER_EPOCH


def test_a_static_member_that_left_lets_go_of_what_it_was_to_let_go_of() -> None:
    _, log = scene(events=2)
    first = static("a")
    settle(log, [first], 2)
    other = Consumer("b", ("events",))
    other.hear(log.say(other.word())[0])
    first.hear(log.say(first.word())[0])
    assert log.present.members["a"].state == UNREVOKED
    log.say(first.word(LEFT_FOR_A_WHILE))
    settle(log, [other], 2)
    assert len(other.owned) == 1
    log.overdue("a")
    settle(log, [other], 2)
    assert len(other.owned) == 2


def test_a_static_member_under_the_id_of_another_member_takes_its_place_too() -> None:
    cluster, log = scene(events=4)
    first, other = static("a"), Consumer("b", ("events",))
    settle(log, [first, other], 4)
    log.say(first.word(LEFT_FOR_A_WHILE))
    both = static("b")
    settle(log, [both], 3)
    assert (set(log.present.members), both.owned) == ({"b"}, cluster.parts("events"))


# Topics and assignors.


def test_topics_that_come_grow_and_go_raise_the_epoch_once() -> None:
    cluster, log = scene(events=2)
    members = joined(log, "a", topics=("clicks", "events"))
    for change in (
        lambda: cluster.create("clicks", 2),
        lambda: cluster.grow("clicks", 3),
        lambda: cluster.delete("events"),
    ):
        epoch = log.present.epoch
        change()
        settle(log, members, 3)
        assert log.present.epoch == epoch + 1
    assert members[0].owned == cluster.parts("clicks")
    epoch = log.present.epoch
    cluster.create("other", 1)
    settle(log, members, 2)
    assert log.present.epoch == epoch


def test_a_topic_created_anew_under_its_name_is_another_topic() -> None:
    cluster, log = scene(events=2)
    (a,) = joined(log, "a")
    cluster.delete("events")
    cluster.create("events", 2)
    settle(log, [a], 3)
    assert a.owned == cluster.parts("events")


def test_internal_topics_are_nobodys() -> None:
    cluster, log = scene(events=1)
    cluster.create("__consumer_offsets", 16)
    a = Consumer("a", ("__consumer_offsets", "events"), "__.*")
    settle(log, [a], 2)
    assert a.owned == cluster.parts("events")


def test_a_pattern_follows_the_topics() -> None:
    cluster, log = scene(events=1, clicks=1)
    a = Consumer("a", pattern="e.*")
    settle(log, [a], 2)
    assert a.owned == cluster.parts("events")
    cluster.create("errors", 1)
    settle(log, [a], 2)
    assert a.owned == cluster.parts("events") | cluster.parts("errors")
    assert log.present.matches == {"e.*": ("errors", "events")}
    a.pattern, a.topics, a.says_all = "", ("clicks",), True
    settle(log, [a], 3)
    assert (a.owned, log.present.matches) == (cluster.parts("clicks"), {})


def test_another_pattern_that_matches_the_same_keeps_what_there_is() -> None:
    cluster, log = scene(events=2)
    a = Consumer("a", pattern="e.*")
    settle(log, [a], 2)
    a.pattern, a.says_all = "ev.*", True
    settle(log, [a], 2)
    assert (a.owned, log.present.matches) == (cluster.parts("events"), {"ev.*": ("events",)})


def test_a_pattern_that_is_none_changes_nothing() -> None:
    _, log = scene(events=1)
    answer = log.say(Consumer("a", pattern="e(").word())[0]
    assert code(answer) is KafkaError.INVALID_REGULAR_EXPRESSION
    assert log.group is None
    (b,) = joined(log, "b")
    before = log.present.version
    b.pattern, b.says_all = "(?=e)", True
    assert code(log.say(b.word())[0]) is KafkaError.INVALID_REGULAR_EXPRESSION
    assert log.present.version == before


def test_a_new_subscription_takes_away_before_it_gives() -> None:
    cluster, log = scene(events=2, clicks=2)
    (a,) = joined(log, "a")
    a.topics, a.says_all = ("clicks",), True
    answer = reply(log.say(a.word())[0])
    assert (answer.state, answer.assignment) == (UNREVOKED, ())
    a.hear(answer)
    settle(log, [a], 2)
    assert a.owned == cluster.parts("clicks")


def test_most_votes_decide_the_assignor() -> None:
    _, log = scene(events=4, clicks=4)
    for name, assignor in (("a", "range"), ("b", "range"), ("c", "uniform"), ("d", None)):
        consumer = Consumer(name, ("clicks", "events"), assignor=assignor)
        consumer.hear(log.say(consumer.word())[0])
    members = list(log.present.members.values())
    assert preferred_assignor(members) == "range"
    assert preferred_assignor(members[2:]) == "uniform"
    assert preferred_assignor(members[3:]) == "uniform"
    assert preferred_assignor([members[2], members[0]]) == "range", "of equally many the first by name"
    (numbers, others) = dict(log.present.targets["a"]).values()
    assert numbers == others, "cut alike"


def test_a_plan_is_the_same_wherever_it_is_made() -> None:
    cluster, log = scene(events=7, clicks=3)
    joined(log, "c", "a", "b", topics=("clicks", "events"))
    cluster.grow("clicks", 5)
    word = Consumer("d", ("events",)).word()
    first = log.plan(word)
    log.groups.restart()
    assert log.plan(word) == first
