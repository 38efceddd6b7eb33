"""How many groups and offsets a coordinator takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from strandline.node.coordinator.groups import bounds
from strandline.node.coordinator.groups.bounds import growth_by
from strandline.node.refusal import Cause, Refusal
from strandline.statemachine.groups.group_commands import (
    CommitOffsets,
    CommitTransactionOffsets,
    DeleteGroup,
    OffsetsCommitted,
    PartitionOffset,
    TopicOffsets,
)
from strandline.statemachine.groups.offsets import NAME_BYTES, OFFSET_BYTES, Offsets
from strandline.statemachine.kafka_errors import KafkaError
from tests.coordinator.classic_house import DELAY, House
from tests.coordinator.consumer_house import ConsumerHouse
from tests.coordinator.consumers import Consumer

TOO_LARGE = KafkaError.INVALID_COMMIT_OFFSET_SIZE


def rows(*partitions: int, topic: int = 1, metadata: str = "") -> list[TopicOffsets]:
    offsets = [PartitionOffset(partition, 7, -1, metadata) for partition in partitions]
    return [TopicOffsets(bytes([topic] * 16), f"name of {topic}", offsets)]


def begin(house: House, group: str, *partitions: int, **of: Any) -> asyncio.Task[Any]:
    command = CommitOffsets(group, "", -1, None, rows(*partitions, **of))
    return house.ask(house.coordinator.commit(command))


def commit(house: House, group: str, *partitions: int, **of: Any) -> Cause | None:
    return code(begin(house, group, *partitions, **of))


def code(task: asyncio.Task[Any]) -> Cause | None:
    done = task.result()
    assert isinstance(done, Refusal | OffsetsCommitted), done
    return done.reason if isinstance(done, Refusal) else None


def add(house: House, group: str, producer: int, *partitions: int) -> Cause | None:
    command = CommitTransactionOffsets(group, "", -1, None, producer, 0, 1, rows(*partitions))
    return code(house.ask(house.coordinator.commit(command)))


def test_a_group_too_many_is_refused_and_the_others_go_on(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that commits under a new group id for each run."""
    monkeypatch.setattr(bounds, "MAX_GROUPS", 3)
    for number in range(3):
        assert commit(house, f"g{number}", 0) is None
    for number in range(3, 6):
        assert commit(house, f"g{number}", 0) is TOO_LARGE
    assert add(house, "g6", 1, 0) is TOO_LARGE
    late = house.client("a", group="late")
    assert late.join_code() is KafkaError.GROUP_MAX_SIZE_REACHED
    assert len(house.replica.machine.groups) == 3
    assert commit(house, "g0", 0, 1) is None
    member = house.client("m", group="g0")
    member.begin_join()
    house.advance(2 * DELAY)
    member.joined()
    assert house.coordinator.bounds.refused == 5
    (record,) = [one for one in caplog.records if one.levelname == "WARNING"]
    assert "__consumer_offsets-5 has 3 groups" in record.message
    house.ask(house.coordinator.execute(DeleteGroup("g1")))
    assert commit(house, "g3", 0) is None


def test_groups_that_are_on_their_way_count(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_GROUPS", 3)
    house.by_hand = True
    first, again = begin(house, "g0", 0), begin(house, "g0", 1)
    joining = house.client("a", group="g1")
    joining.begin_join()
    second, third = begin(house, "g2", 0), begin(house, "g2", 1)
    assert commit(house, "g3", 0) is TOO_LARGE
    assert house.client("b", group="g4").join_code() is KafkaError.GROUP_MAX_SIZE_REACHED
    house.by_hand = False
    house.turn()
    assert [code(one) for one in (first, again, second, third)] == [None] * 4
    joining.begin_join()
    house.advance(2 * DELAY)
    assert set(house.replica.machine.groups) == {"g0", "g1", "g2"}
    assert commit(house, "g3", 0) is TOO_LARGE


def test_a_consumer_of_the_new_protocol_is_refused_too(
    made: Callable[..., ConsumerHouse], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MAX_GROUPS", 2)
    home = made()
    home.by_hand = True
    one, two = (home.say(Consumer("a", ("events",)).word(), group) for group in ("g1", "g2"))
    three = home.say(Consumer("a", ("events",)).word(), "g3").result()
    assert isinstance(three, Refusal)
    assert three.reason is KafkaError.GROUP_MAX_SIZE_REACHED
    home.by_hand = False
    home.turn()
    assert one.done()
    assert two.done()
    assert set(home.replica.machine.groups) == {"g1", "g2"}
    joined = home.say(Consumer("b", ("events",)).word(), "g1")
    assert joined.done()


def test_offsets_are_bounded_and_those_that_are_there_are_committed_anew(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MAX_OFFSETS", 4)
    assert commit(house, "g", 0, 1, 2) is None
    assert commit(house, "g", 2, 3, 4) is TOO_LARGE
    assert commit(house, "h", 0) is None
    assert commit(house, "h", 1) is TOO_LARGE
    assert commit(house, "g", 0, 1, 2) is None
    # A transaction's offset takes the place of one that is there: until then both are.
    assert add(house, "g", 1, 0, 1) is None
    assert add(house, "g", 2, 3) is TOO_LARGE
    assert add(house, "g", 3, 0, 1, 2) is TOO_LARGE
    assert house.replica.machine.totals.offsets == 6


def test_offsets_that_are_on_their_way_count(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_OFFSETS", 4)
    house.by_hand = True
    first = begin(house, "g", 0, 1, 2)
    assert commit(house, "h", 0, 1) is TOO_LARGE
    second = begin(house, "h", 0)
    house.by_hand = False
    house.turn()
    assert (code(first), code(second)) == (None, None)
    assert house.coordinator.bounds._offsets == house.coordinator.bounds._bytes == 0
    assert not house.coordinator.bounds._new


def test_metadata_is_bounded(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_BYTES", 5000)
    assert commit(house, "g", 0, metadata="m" * 4000) is None
    assert commit(house, "h", 0, metadata="m" * 4000) is TOO_LARGE
    assert commit(house, "g", 0, metadata="m" * 4096) is None
    assert commit(house, "g", 0, metadata="") is None
    assert commit(house, "h", 0, metadata="m" * 4000) is None


def test_growth_is_what_the_totals_grow_by(house: House) -> None:
    machine = house.replica.machine
    commit(house, "g", 0, 1, metadata="é")
    commands: list[CommitOffsets | CommitTransactionOffsets] = [
        CommitOffsets("g", "", -1, None, rows(1, 2, metadata="xx") + rows(0, topic=2)),
        CommitTransactionOffsets("g", "", -1, None, 1, 0, 1, rows(0, 1, metadata="yy")),
        CommitTransactionOffsets("g", "", -1, None, 1, 0, 1, rows(1, 2, metadata="")),
    ]
    for command in commands:
        growth = growth_by(machine.groups["g"].offsets, command)
        before = machine.totals.offsets, machine.totals.bytes
        house.ask(house.coordinator.commit(command))
        assert (machine.totals.offsets - before[0], machine.totals.bytes - before[1]) == growth[1:]
    assert growth_by(Offsets(), commands[0]) == (3, 3, 3 * OFFSET_BYTES + 4 + 2 * (NAME_BYTES + 9))
