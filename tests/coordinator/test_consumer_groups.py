"""Consumer groups at their coordinator's leader: turns, timers, leadership, bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from strandline.node.coordinator.groups import consumer_groups, consumer_plan, consumer_timers
from strandline.node.coordinator.groups.classic_state import Leaving
from strandline.node.coordinator.groups.consumer_groups import HeartbeatAnswer
from strandline.node.coordinator.groups.consumer_member import JOINING, LEAVING, MemberHeartbeat
from strandline.node.raft.outcome import NotLeader, Overloaded
from strandline.node.refusal import Cause, Refusal
from strandline.statemachine.groups.consumer_group_commands import (
    LEFT_FOR_A_WHILE,
    STABLE,
    UNRELEASED,
    UNREVOKED,
    partitions_of,
)
from strandline.statemachine.groups.group_commands import DeleteGroup
from strandline.statemachine.kafka_errors import KafkaError
from tests.coordinator.consumer_house import SESSION, ConsumerHouse
from tests.coordinator.consumers import GROUP, Consumer

# Turns.


def test_a_member_is_answered_once_what_it_changes_is_in_the_log(home: ConsumerHouse) -> None:
    home.by_hand = True
    task = home.say(Consumer("a", ("events",)).word())
    assert not task.done()
    assert home.groups.waiting == 1
    home.commit()
    told = task.result()
    assert isinstance(told, HeartbeatAnswer)
    assert (told.reply.epoch, told.reply.state) == (1, STABLE)


def test_steady_heartbeats_leave_no_trace_in_the_log(home: ConsumerHouse) -> None:
    a, b = home.consumer("a"), home.consumer("b")
    home.settle(a, b)
    before = home.logged_entries
    for _ in range(100):
        home.advance(1.0)
        home.beat(a)
        home.beat(b)
    assert home.logged_entries == before


def test_all_that_waits_becomes_one_entry(home: ConsumerHouse) -> None:
    home.by_hand = True
    tasks = [home.say(Consumer(f"m{number}", ("events",)).word()) for number in range(500)]
    home.commit()  # the first had its turn alone
    home.commit()
    assert [task.result().reply.epoch for task in tasks] == [1] + [2] * 499  # type: ignore[union-attr]
    assert home.logged_entries == 2


def test_a_members_second_word_waits_for_the_answer_to_its_first(home: ConsumerHouse) -> None:
    a, b = home.consumer("a"), home.consumer("b")
    home.by_hand = True
    blocker = home.say(Consumer("z", ("clicks",)).word())
    a.says_all, a.topics = True, ("clicks",)
    first = home.say(a.word())
    a.topics = ("events",)
    second = home.say(a.word())
    home.commit()
    assert (blocker.done(), first.done(), second.done()) == (True, False, False)
    home.commit()
    assert (first.done(), second.done()) == (True, False)
    home.commit()
    assert second.done()
    home.by_hand = False
    home.settle(b)


def test_who_speaks_again_as_soon_as_it_is_answered_is_answered_again(home: ConsumerHouse) -> None:
    async def joins_and_leaves() -> list[int]:
        a = Consumer("a", ("events",))
        told = [await home.groups.heartbeat(GROUP, a.word(epoch)) for epoch in (JOINING, JOINING, LEAVING)]
        return [one.reply.epoch for one in told if isinstance(one, HeartbeatAnswer)]

    task = home.ask(joins_and_leaves())
    assert task.done()
    assert task.result() == [1, 1, LEAVING]


def test_who_is_gone_when_its_turn_comes_does_not_join(home: ConsumerHouse) -> None:
    home.by_hand = True
    home.say(Consumer("a", ("events",)).word())
    gone = home.say(Consumer("b", ("events",)).word())
    gone.cancel()
    home.turn()
    home.by_hand = False
    home.turn()
    assert set(home.group.members) == {"a"}


@pytest.mark.parametrize("epoch", [LEAVING, LEFT_FOR_A_WHILE])
def test_who_is_gone_when_its_turn_comes_leaves_all_the_same(home: ConsumerHouse, epoch: int) -> None:
    a = home.consumer("a", instance_id="i")
    home.by_hand = True
    home.say(Consumer("z", ("clicks",)).word())  # holds the queue
    home.say(a.word(epoch)).cancel()
    home.by_hand = False
    home.turn()
    if epoch == LEAVING:
        assert set(home.group.members) == {"z"}
    else:
        assert home.group.members["a"].epoch == LEFT_FOR_A_WHILE


def test_a_turn_is_planned_anew_when_something_came_between(home: ConsumerHouse) -> None:
    a = home.consumer("a")
    home.told(a.word(LEAVING))
    home.by_hand = True
    task = home.say(Consumer("b", ("events",)).word())
    home.apply_foreign(DeleteGroup(GROUP))
    home.commit()
    assert not task.done()
    home.commit()
    told = task.result()
    assert isinstance(told, HeartbeatAnswer)
    assert told.reply.epoch == 1, "a new group"


def test_a_group_that_changes_all_the_time_is_given_up(home: ConsumerHouse) -> None:
    home.consumer("a")
    home.by_hand = True
    task = home.say(Consumer("b", ("events",)).word())
    for _ in range(consumer_groups.ATTEMPTS):
        assert not task.done()
        group = home.group
        group.version += 1000  # as if another command had changed it
        home.commit()
    assert isinstance(task.result(), Refusal)
    assert task.result().reason is KafkaError.COORDINATOR_LOAD_IN_PROGRESS  # type: ignore[union-attr]


# Times.


def test_who_is_not_heard_is_fenced_and_the_others_have_its_partitions(home: ConsumerHouse) -> None:
    a, b = home.consumer("a"), home.consumer("b")
    home.settle(a, b)
    for _ in range(9):
        home.advance(SESSION / 9 + 0.1)
        if "a" in home.group.members:
            home.settle(b)
    home.settle(b)
    assert set(home.group.members) == {"b"}
    assert b.owned == home.cluster.parts("events")
    assert home.code(a.word()) is KafkaError.UNKNOWN_MEMBER_ID


def test_a_word_in_time_is_enough(home: ConsumerHouse) -> None:
    a = home.consumer("a")
    home.advance(SESSION - 1)
    home.beat(a)
    home.advance(SESSION - 1)
    assert "a" in home.group.members
    assert home.code(MemberHeartbeat("a", 9, "c", "/h")) is KafkaError.FENCED_MEMBER_EPOCH
    home.advance(2)
    assert "a" not in home.group.members, "a word that is refused keeps nobody in"


def test_who_does_not_let_go_in_time_is_fenced(home: ConsumerHouse) -> None:
    a = home.consumer("a")
    b = home.consumer("b")
    home.beat(a)
    assert home.group.members["a"].state == UNREVOKED
    home.advance(0.9)
    home.beat(a)
    home.told(MemberHeartbeat("a", a.epoch, "c", "/elsewhere"))
    home.advance(0.2)
    assert set(home.group.members) == {"b"}, "its heartbeats do not help it, whatever they change"
    home.settle(b)
    assert b.owned == home.cluster.parts("events")


def test_who_lets_go_in_time_stays(home: ConsumerHouse) -> None:
    a = home.consumer("a")
    b = home.consumer("b")
    home.advance(0.5)
    home.settle(a, b)
    home.advance(5)
    assert set(home.group.members) == {"a", "b"}


def test_a_static_member_has_its_session_to_come_back(home: ConsumerHouse) -> None:
    a = home.consumer("a", instance_id="i")
    home.told(a.word(LEFT_FOR_A_WHILE))
    home.advance(SESSION - 1)
    assert set(home.group.members) == {"a"}
    home.advance(2)
    assert set(home.group.members) == set()


def test_who_leaves_leaves_no_timer(home: ConsumerHouse) -> None:
    idle = len(home.coordinator.timers)
    a, b = home.consumer("a"), home.consumer("b")
    home.beat(a)
    assert len(home.coordinator.timers) == idle + 3
    for consumer in (a, b):
        home.told(consumer.word(LEAVING))
    assert len(home.coordinator.timers) == idle


def test_the_end_of_a_session_is_tried_again_until_the_log_takes_it(home: ConsumerHouse) -> None:
    home.consumer("a")
    home.log.refusal = Overloaded("too much")
    home.advance(SESSION + 5)
    assert set(home.group.members) == {"a"}
    home.log.refusal = None
    home.advance(2)
    assert set(home.group.members) == set()


def test_the_end_of_a_session_is_tried_again_when_its_turn_fails(
    home: ConsumerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it failed by: a member whose last timer is gone would be in the group for ever."""
    home.consumer("a")
    home.settle(home.consumer("b"))
    planned = consumer_plan.plan

    def failing(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("a defect")

    monkeypatch.setattr(consumer_groups, "plan", failing)
    failures: list[Any] = []
    monkeypatch.setattr(home.loop, "call_exception_handler", failures.append)
    home.advance(SESSION + 5)
    assert set(home.group.members) == {"a", "b"}
    assert {failure["message"] for failure in failures} == {"a turn of a consumer group failed"}
    monkeypatch.setattr(consumer_groups, "plan", planned)
    home.advance(2)
    assert set(home.group.members) == set()


def test_a_word_that_comes_while_the_end_waits_keeps_the_member(home: ConsumerHouse) -> None:
    a = home.consumer("a")
    home.advance(SESSION - 0.5)
    home.by_hand = True
    home.say(Consumer("z", ("clicks",)).word())  # holds the queue
    home.advance(1.0)
    assert home.groups.waiting == 2
    told = home.say(a.word())
    assert told.done(), "it is answered at once, and its session begins anew"
    home.by_hand = False
    home.turn()
    assert set(home.group.members) == {"a", "z"}


# Leadership.


def test_who_waits_when_the_leadership_ends_looks_for_the_new_leader(home: ConsumerHouse) -> None:
    home.by_hand = True
    tasks = [home.say(Consumer(name, ("events",)).word()) for name in ("a", "b")]
    home.log.lose()
    assert [task.result().reason for task in tasks] == [KafkaError.NOT_COORDINATOR] * 2  # type: ignore[union-attr]
    assert home.groups.waiting == 0
    assert home.code(Consumer("c", ("events",)).word()) is KafkaError.NOT_COORDINATOR
    home.log.drop(NotLeader(2))


def test_a_new_leader_goes_on_where_the_log_is_and_gives_everybody_time(home: ConsumerHouse) -> None:
    a = home.consumer("a")
    b = home.consumer("b")
    home.beat(a)  # it has to let go, and has one second for it
    home.advance(0.8)
    home.new_leader()
    home.advance(0.8)
    assert set(home.group.members) == {"a", "b"}
    home.settle(a, b)
    assert a.owned | b.owned == home.cluster.parts("events")
    home.advance(SESSION - 2)
    home.new_leader()
    home.advance(SESSION - 2)
    assert set(home.group.members) == {"a", "b"}
    home.advance(3)
    assert set(home.group.members) == set()


def test_a_new_leader_fences_who_still_does_not_let_go(home: ConsumerHouse) -> None:
    a = home.consumer("a")
    home.consumer("b")
    home.beat(a)
    home.new_leader()
    home.advance(1.1)
    assert set(home.group.members) == {"b"}


# Topics, and how often a member is to speak.


def test_a_steady_member_hears_of_new_topics(home: ConsumerHouse) -> None:
    a = home.consumer("a")
    home.cluster.grow("events", 6)
    home.settle(a)
    assert a.owned == home.cluster.parts("events")
    before = home.logged_entries
    home.cluster.create("other", 1)
    home.settle(a)
    assert home.logged_entries == before


def test_topics_are_looked_at_once_for_each_version(
    home: ConsumerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = home.consumer("a")
    looks: list[str] = []
    topic = home.cluster.topic

    def looked(name: str) -> Any:
        looks.append(name)
        return topic(name)

    monkeypatch.setattr(home.cluster, "topic", looked)
    for _ in range(5):
        home.beat(a)
    assert looks == []
    home.cluster.create("other", 1)
    for _ in range(5):
        home.beat(a)
    assert looks == ["events"]


def test_nothing_is_kept_of_a_group_that_is_empty(home: ConsumerHouse) -> None:
    a, b = home.consumer("a"), Consumer("b", ("events",))
    home.told(a.word(LEAVING))
    assert home.group.is_empty
    for word in (a.word(3), b.word(LEAVING), MemberHeartbeat("b", LEAVING, "c", "/h", instance_id="i")):
        assert home.code(word) is KafkaError.UNKNOWN_MEMBER_ID
        assert home.groups._looked == {}
    home.beat(b)
    assert list(home.groups._looked) == [GROUP]


def test_members_are_heard_more_often_while_they_are_few_or_wait(made: Callable[..., ConsumerHouse]) -> None:
    home = made(consumer_heartbeat_seconds=3.0)
    a = Consumer("a", ("events",))
    assert home.beat(a).interval_seconds == consumer_timers.STEADY_SECONDS
    a.obey()
    b = Consumer("b", ("events",))
    told = home.beat(b)
    assert (told.reply.state, told.interval_seconds) == (UNRELEASED, consumer_timers.SOON_SECONDS)
    home.settle(a, b)
    for number in range(1000):
        home.coordinator.timers.set(("load", number), 999.0, lambda: None)
    assert home.beat(a).interval_seconds == 3.0


def test_a_group_s_own_interval_is_what_its_members_are_told(home: ConsumerHouse) -> None:
    home.cluster.configs[GROUP] = {"consumer.heartbeat.interval.ms": "7000"}
    a = Consumer("a", ("events",))
    assert home.beat(a).interval_seconds == 7.0
    a.obey()
    b = Consumer("b", ("events",))
    told = home.beat(b)
    assert (told.reply.state, told.interval_seconds) == (UNRELEASED, consumer_timers.SOON_SECONDS)
    home.settle(a, b)
    assert home.beat(a).interval_seconds == 7.0
    del home.cluster.configs[GROUP]
    assert home.beat(a).interval_seconds == consumer_timers.STEADY_SECONDS


def test_a_group_s_own_session_counts_from_the_next_heartbeat(home: ConsumerHouse) -> None:
    a, b = home.consumer("a"), home.consumer("b")
    home.settle(a, b)
    home.cluster.configs[GROUP] = {"consumer.session.timeout.ms": "60000"}
    home.beat(a)
    home.advance(SESSION + 1)
    assert list(home.group.members) == ["a"]
    home.advance(60 - SESSION)
    assert home.group.is_empty


def test_a_turn_that_fails_ends_for_everybody_and_for_nobody_after(
    home: ConsumerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Any] = []
    monkeypatch.setattr(home.loop, "call_exception_handler", errors.append)
    with monkeypatch.context() as patch:
        patch.setattr(home.groups, "_plan", lambda *_, **_look: 1 / 0)
        assert home.code(Consumer("a", ("events",)).word()) is KafkaError.UNKNOWN_SERVER_ERROR
    assert isinstance(cast(Any, errors[0])["exception"], ZeroDivisionError)
    told = home.told(Consumer("a", ("events",)).word())
    assert isinstance(told, HeartbeatAnswer)
    assert partitions_of(told.reply.assignment or ())


# Who is removed by others.


def leave(home: ConsumerHouse, *leaving: Leaving) -> list[Cause | None]:
    return home.ask(home.groups.leave(GROUP, leaving)).result()


def test_members_are_removed_by_their_ids_or_their_instances(home: ConsumerHouse) -> None:
    for name, instance in (("a", "i"), ("b", None), ("c", "k"), ("d", None)):
        home.consumer(name, instance_id=instance)
    home.told(MemberHeartbeat("c", LEFT_FOR_A_WHILE, "c", "/h", instance_id="k"))
    asked = [
        (Leaving("", "i"), None),
        (Leaving("b", None), None),
        (Leaving("", "k"), None),
        (Leaving("", "nobody"), KafkaError.UNKNOWN_MEMBER_ID),
        (Leaving("", None), KafkaError.UNKNOWN_MEMBER_ID),
        (Leaving("nobody", None), KafkaError.UNKNOWN_MEMBER_ID),
        (Leaving("d", "nobody"), KafkaError.UNKNOWN_MEMBER_ID),
    ]
    assert leave(home, *[one for one, _ in asked]) == [code for _, code in asked]
    assert set(home.group.members) == {"d"}
    home.consumer("a", instance_id="i")
    assert leave(home, Leaving("d", "i"), Leaving("d", None)) == [
        KafkaError.FENCED_INSTANCE_ID,
        None,
    ]
