"""Timers that are put off, and what time and deleted topics take from the groups' offsets."""

from __future__ import annotations

from collections.abc import Callable

import msgpack
import pytest

from strandline.node.coordinator.groups import offset_expiry
from strandline.node.coordinator.groups.classic_state import ClassicGroupState
from strandline.node.coordinator.groups.offset_expiry import EXPIRY_SECONDS, MAX_TOPICS, TOPICS_SECONDS
from strandline.node.coordinator.groups.timers import Timers
from strandline.statemachine.groups.group_commands import (
    CommitOffsets,
    CommitTransactionOffsets,
    EndGroupTransaction,
    PartitionOffset,
    TopicOffsets,
)
from strandline.statemachine.kafka_errors import KafkaError, Refused
from tests.coordinator.classic_house import House
from tests.runtime.manual_loop import manual_loop
from tests.statemachine.groups_harness import subscription

SPREAD = 1 + 5 / 64
"""The coordinator has the number 5."""
DAY_MS = 24 * 3600 * 1000


def commit(house: House, *topics: bytes, group: str = "g") -> None:
    rows = [TopicOffsets(topic, f"name of {topic[0]}", [PartitionOffset(0, 7, -1, "")]) for topic in topics]
    house.ask(house.coordinator.execute(CommitOffsets(group, "", -1, None, rows)))


def kept(house: House, group: str = "g") -> list[bytes]:
    found = house.replica.machine.groups.get(group)
    return [] if found is None else list(found.offsets.names)


def topic(number: int) -> bytes:
    return number.to_bytes(16, "little")


# Timers.


def test_a_timer_that_is_put_off_costs_nothing_and_fires_once() -> None:
    loop = manual_loop()
    timers, fired = Timers(loop), []
    for _ in range(100):
        timers.set("a", 10.0, lambda: fired.append(loop.now))
        loop.advance(1.0)
    assert len(loop._timers) <= 2, "each word of a member would be a timer"
    assert not fired
    assert timers.remaining("a") == 9.0
    began = loop.now
    loop.advance(20.0)
    assert fired == [began + 9.0]
    assert (len(timers), timers.remaining("a")) == (0, None)


def test_a_timer_may_be_brought_forward_and_called_off() -> None:
    loop = manual_loop()
    timers, fired = Timers(loop), []
    timers.set("a", 10.0, lambda: fired.append("late"))
    timers.set("a", 1.0, lambda: fired.append("early"))
    timers.set("b", 2.0, lambda: fired.append("b"))
    timers.set("c", 3.0, lambda: fired.append("c"))
    timers.cancel("b")
    timers.cancel("nothing")
    loop.advance(2.5)
    assert fired == ["early"]
    timers.cancel_all()
    loop.advance(20.0)
    assert fired == ["early"]
    assert len(timers) == 0


def test_a_timer_may_be_set_again_by_what_it_calls() -> None:
    loop = manual_loop()
    timers, fired = Timers(loop), []

    def again() -> None:
        fired.append(loop.now)
        timers.set("a", 5.0, again)

    timers.set("a", 5.0, again)
    loop.advance(16.0)
    assert fired == [105.0, 110.0, 115.0]


# Expiry.


def test_offsets_expire_by_the_time_of_the_entries(house: House) -> None:
    house.topics[topic(1)] = "it is there"
    commit(house, topic(1))
    house.advance(EXPIRY_SECONDS * SPREAD)
    assert kept(house) == [topic(1)]
    house.wall += 7 * DAY_MS - 1
    house.advance(EXPIRY_SECONDS)
    assert kept(house) == [topic(1)]
    house.wall += 1
    house.advance(EXPIRY_SECONDS)
    assert kept(house) == []
    assert "g" not in house.replica.machine.groups


def test_a_coordinator_without_groups_writes_nothing(house: House) -> None:
    house.advance(5 * EXPIRY_SECONDS)
    assert house.log.proposed == []


def test_only_a_leader_lets_time_pass(house: House) -> None:
    house.topics[topic(1)] = "it is there"
    commit(house, topic(1))
    house.log.lose()
    house.turn()
    before = len(house.log.proposed)
    house.advance(3 * EXPIRY_SECONDS)
    assert len(house.log.proposed) == before
    house.lead()
    house.wall += 8 * DAY_MS
    house.advance(EXPIRY_SECONDS * SPREAD)
    assert len(house.log.proposed) == before + 1
    house.advance(5 * EXPIRY_SECONDS)
    assert len(house.log.proposed) == before + 1, "there is nothing more to expire"


@pytest.mark.parametrize(
    ("most", "quiet_minutes", "left"),
    [(3, 40, "123456"), (3, 56, "3456"), (3, 100, "456"), (6, 100, "123456")],
)
def test_too_many_producers_are_not_remembered_for_a_week(
    house: House, monkeypatch: pytest.MonkeyPatch, most: int, quiet_minutes: int, left: str
) -> None:
    """A producer for each transaction: the idlest go, but none of this hour, and none that has one open.

    At the look the first is six minutes older than it was quiet.
    """
    monkeypatch.setattr(offset_expiry, "MAX_PRODUCERS", most)
    rows = [TopicOffsets(topic(1), "one", [PartitionOffset(0, 7, -1, "")])]
    house.topics[topic(1)] = "it is there"
    house.ask(house.coordinator.execute(CommitTransactionOffsets("g", "", -1, None, 9, 0, 1, rows)))
    for producer in range(1, 7):
        house.ask(house.coordinator.execute(EndGroupTransaction(producer, 0, 1, True, 1)))
        house.wall += 60_000
    house.wall += quiet_minutes * 60_000
    house.advance(EXPIRY_SECONDS * SPREAD)
    producers = house.replica.machine.producers
    assert "".join(str(producer_id) for producer_id, _ in producers) == "9" + left


def test_after_a_leader_whose_clock_was_ahead_producers_go_by_the_one_that_most_agree_on(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_expiry, "MAX_PRODUCERS", 3)
    for producer in range(1, 7):
        house.ask(house.coordinator.execute(EndGroupTransaction(producer, 0, 1, True, 1)))
        house.wall += 3 * 60 * 60_000
    house.wall -= DAY_MS
    house.advance(EXPIRY_SECONDS * SPREAD)
    assert len(house.replica.machine.producers) == 6, "for all that is known they were active just now"
    house.wall += 60 * 60_000
    for producer in range(7, 10):
        house.wall += 1
        house.ask(house.coordinator.execute(EndGroupTransaction(producer, 0, 1, True, 1)))
    house.advance(EXPIRY_SECONDS)
    assert [producer_id for producer_id, _ in house.replica.machine.producers] == [7, 8, 9]


def test_no_offset_goes_by_a_clock_that_the_others_do_not_agree_with(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    """A leader was started with its clock eight days ahead, and has not heard the others yet."""
    house.topics[topic(1)] = "it is there"
    commit(house, topic(1))
    house.clock_is_trusted = False
    house.wall += 8 * DAY_MS
    house.advance(EXPIRY_SECONDS * SPREAD + 2 * EXPIRY_SECONDS)
    assert kept(house) == [topic(1)]
    assert [record.message.split(":")[0] for record in caplog.records] == ["the nodes' clocks disagree"], (
        "once"
    )
    # Somebody commits meanwhile, and the time of the state is eight days ahead of all who come after.
    commit(house, topic(1), group="h")
    house.wall -= 8 * DAY_MS
    house.clock_is_trusted = True
    house.advance(EXPIRY_SECONDS)
    assert house.replica.machine.time == house.wall
    commit(house, topic(1), group="i")
    house.wall += 7 * DAY_MS
    house.advance(EXPIRY_SECONDS)
    assert [kept(house, group) for group in "ghi"] == [[], [topic(1)], []], "h was stamped ahead: it stays"
    house.wall += 8 * DAY_MS
    house.advance(EXPIRY_SECONDS)
    assert house.replica.machine.groups == {}


def test_a_group_that_somebody_joins_is_not_empty(build: Callable[..., House]) -> None:
    """The log has its members once the join phase is over; the offsets have had their time before."""
    house = build(initial_rebalance_delay_seconds=3.0)
    house.topics[topic(1)] = "it is there"
    commit(house, topic(1))
    house.wall += 7 * DAY_MS + 1
    house.advance(EXPIRY_SECONDS * SPREAD - 1.0)
    client = house.client("a")
    client.metadata = subscription("name of 1")
    client.begin_join()
    house.turn()
    house.advance(2.0)
    assert house.state() is ClassicGroupState.PREPARING_REBALANCE
    assert kept(house) == [topic(1)]
    rows = [(topic(1), "name of 1", [0])]
    assert house.ask(house.coordinator.delete_offsets("g", rows)).result() == (0, [topic(1)])
    assert kept(house) == [topic(1)]
    house.advance(2.0)
    client.joined()
    assert kept(house) == [topic(1)]


def test_while_somebody_joins_offsets_of_other_topics_may_be_deleted(build: Callable[..., House]) -> None:
    house = build(initial_rebalance_delay_seconds=3.0)
    commit(house, topic(1), topic(2))
    client = house.client("a")
    client.metadata = subscription("name of 1")
    client.begin_join()
    rows = [(topic(number), f"name of {number}", [0]) for number in (1, 2)]
    assert house.ask(house.coordinator.delete_offsets("g", rows)).result() == (1, [topic(1)])
    assert kept(house) == [topic(1)]
    workers = house.client("w", group="workers", kind="connect")
    workers.begin_join()
    refused = house.ask(house.coordinator.delete_offsets("workers", rows)).result()
    assert refused == Refused(KafkaError.NON_EMPTY_GROUP)


def test_what_is_old_goes_in_commands_of_a_bounded_size_and_others_are_served_between(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_expiry, "MAX_OFFSETS", 10)
    monkeypatch.setattr(offset_expiry, "SLICE_OFFSETS", 10)
    house.topics |= {topic(number): "it is there" for number in range(1, 30)}
    for group in range(12):
        commit(house, topic(1), topic(2), topic(3), group=f"g{group}")
    commit(house, *(topic(number) for number in range(1, 30)), group="large")
    house.wall += 7 * DAY_MS
    before = len(house.log.proposed)
    house.advance(EXPIRY_SECONDS * SPREAD)
    named = [msgpack.unpackb(entry.command)[3] for entry in house.log.proposed[before:]]
    assert [len(groups) for groups in named] == [2, 2, 2, 2, 2, 2, 1]
    assert house.replica.machine.groups == {}


# Deleted topics.


def test_offsets_of_deleted_topics_are_forgotten(house: House) -> None:
    house.topics[topic(1)] = "it is there"
    commit(house, topic(1), topic(2))
    commit(house, topic(2), group="other")
    house.advance(TOPICS_SECONDS * SPREAD)
    assert (kept(house), kept(house, "other")) == ([topic(1)], [])
    before = len(house.log.proposed)
    house.advance(10 * TOPICS_SECONDS)
    assert len(house.log.proposed) == before, "there is nothing more to forget"


def test_a_topic_that_this_node_has_not_heard_of_yet_is_not_a_deleted_one(house: House) -> None:
    commit(house, topic(1))
    house.caught_up = False
    house.advance(TOPICS_SECONDS * SPREAD)
    assert kept(house) == [topic(1)]
    house.caught_up = True
    house.hears = {topic(1): "it is there"}
    house.advance(TOPICS_SECONDS)
    assert kept(house) == [topic(1)], "it was created, and this node lagged behind"


def test_many_topics_go_in_commands_of_a_bounded_size(house: House) -> None:
    commit(house, *(topic(number) for number in range(1, 2 * MAX_TOPICS + 2)))
    before = len(house.log.proposed)
    house.advance(TOPICS_SECONDS * SPREAD)
    assert len(house.log.proposed) == before + 3
    assert kept(house) == []


def test_topics_stay_as_long_as_the_log_does_not_take_it(house: House) -> None:
    commit(house, topic(1))
    house.by_hand = True
    house.advance(TOPICS_SECONDS * SPREAD)
    for _ in range(5):
        house.advance(TOPICS_SECONDS)
    assert len(house.log.proposed) == 2, "one at a time"
    house.commit()
    assert kept(house) == []
