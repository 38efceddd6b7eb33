"""ListOffsets and OffsetForLeaderEpoch, rule by rule."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.node.objectstore.store import NotDone
from strandline.snapshot.compression import Compression
from strandline.snapshot.level_zero_format import BadObject
from tests.kafka.handlers.fake_cluster import TERM
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.handlers.fake_partition import NOW
from tests.kafka.handlers.list_offsets_answers import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    NEWEST,
    at,
    found,
)
from tests.kafka.wire.batches import Record, build
from tests.runtime.jumping_loop import simulated

VERSIONS = range(APIS[ApiKey.LIST_OFFSETS].first, APIS[ApiKey.LIST_OFFSETS].last + 1)


def codes(parts: list[Any]) -> list[ErrorCode]:
    assert all((part.offset, part.timestamp) == (-1, -1) for part in parts if part.error_code)
    return [part.error_code for part in parts]


# ListOffsets.


@pytest.mark.parametrize("version", VERSIONS)
@simulated
async def test_every_version_knows_the_ends(version: int) -> None:
    node = FakeNode()
    node.topic()
    node.partition().write(build(), build())
    node.partition().trim(2)
    for time, offset in ((LATEST, 6), (EARLIEST, 2)):
        (part,) = await node.list_offsets([(0, time)], version)
        assert (part.error_code, part.offset, part.timestamp) == (ErrorCode.none, offset, -1)
        if version >= 4:
            assert part.leader_epoch == TERM


@simulated
async def test_the_ends_of_an_empty_partition() -> None:
    node = FakeNode()
    node.topic()
    nothing = (-1, -1, -1)
    for time, expected in (
        (LATEST, (0, -1, TERM)),
        (EARLIEST, (0, -1, TERM)),
        (NEWEST, nothing),
        (0, nothing),
    ):
        assert found(await node.list_offsets([(0, time)])) == [expected], time


@simulated
async def test_what_is_not_in_level_one_is_local_and_level_one_is_tiered() -> None:
    node = FakeNode()
    node.topic()
    partition = node.partition()
    partition.write(build())
    partition.replica.begin_term(TERM + 1)
    partition.write(build(), build())
    nothing = (-1, -1, -1)

    async def asked() -> list[tuple[int, int, int]]:
        local = await node.list_offsets([(0, EARLIEST_LOCAL)])
        return found([*local, *await node.list_offsets([(0, LATEST_TIERED)])])

    assert await asked() == [(0, -1, TERM), nothing]
    partition.trim(1)
    assert await asked() == [(1, -1, TERM), nothing]
    partition.reconcile(3)
    assert await asked() == [(3, -1, TERM + 1), (2, -1, TERM)]
    partition.reconcile(9)
    assert await asked() == [(9, -1, TERM + 1), (8, -1, TERM + 1)]
    partition.trim(9)
    assert await asked() == [(9, -1, TERM + 1), nothing]


@pytest.mark.parametrize("lifted", [0, 3, 6, 7])
@simulated
async def test_times_are_found_wherever_the_records_lie(lifted: int) -> None:
    node = FakeNode()
    node.topic()
    partition = node.partition()
    partition.write(at(0, 10, 20))
    partition.replica.begin_term(TERM + 1)
    partition.write(at(40, 30, 50), at(5))
    if lifted:
        partition.reconcile(lifted)
    for time, expected in (
        (-5000, (0, NOW, TERM)),
        (1, (1, NOW + 10, TERM)),
        (21, (3, NOW + 40, TERM + 1)),
        (41, (5, NOW + 50, TERM + 1)),
        (51, (-1, -1, -1)),
    ):
        assert found(await node.list_offsets([(0, NOW + time)])) == [expected], time
    assert found(await node.list_offsets([(0, NEWEST)])) == [(5, NOW + 50, TERM + 1)]
    partition.trim(2)
    assert found(await node.list_offsets([(0, NOW)])) == [(2, NOW, TERM)]
    partition.trim(4)
    assert found(await node.list_offsets([(0, NOW)])) == [(4, NOW + 40, TERM + 1)]
    partition.trim(6)
    assert found(await node.list_offsets([(0, NEWEST)])) == [(6, NOW + 5, TERM + 1)]
    assert found(await node.list_offsets([(0, NOW + 6)])) == [(-1, -1, -1)]


@simulated
async def test_a_damaged_block_is_a_corrupt_message_for_a_time_within_it() -> None:
    node = FakeNode()
    node.topic()
    partition = node.partition()
    partition.write(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7))
    partition.reconcile(8, block_bytes=80)
    (name,) = partition.store.objects
    data = bytearray(partition.store.objects[name])
    data[16 + 5] ^= 1
    partition.store.objects[name] = bytes(data)
    assert codes(await node.list_offsets([(0, NOW)])) == [ErrorCode.corrupt_message]
    assert found(await node.list_offsets([(0, NOW + 7)])) == [(7, NOW + 7, TERM)]


@pytest.mark.parametrize("compression", list(Compression))
@simulated
async def test_a_time_finds_the_first_record_of_it_or_later(compression: Compression) -> None:
    node = FakeNode()
    node.topic()
    partition = node.partition()
    partition.write(at(0, 10, 20, compression=compression))
    partition.replica.begin_term(TERM + 1)
    partition.write(at(40, 30, 50, compression=compression), at(5, compression=compression))
    for time, expected in (
        (-5000, (0, NOW, TERM)),
        (0, (0, NOW, TERM)),
        (1, (1, NOW + 10, TERM)),
        (20, (2, NOW + 20, TERM)),
        (21, (3, NOW + 40, TERM + 1)),
        (41, (5, NOW + 50, TERM + 1)),
        (51, (-1, -1, -1)),
    ):
        assert found(await node.list_offsets([(0, NOW + time)])) == [expected], time


@simulated
async def test_the_newest_record_is_the_first_of_the_greatest_time() -> None:
    node = FakeNode()
    node.topic()
    node.partition().write(at(1, 2), at(3, 9, 9, 4), at(9))
    assert found(await node.list_offsets([(0, NEWEST)])) == [(3, NOW + 9, TERM)]


@simulated
async def test_a_record_before_the_start_is_not_named() -> None:
    node = FakeNode()
    node.topic()
    node.partition().write(at(1, 2, 3))
    node.partition().trim(2)
    ((offset, _, _),) = found(await node.list_offsets([(0, NOW)]))
    assert offset == 2


@simulated
async def test_a_header_that_promises_too_much_skips_no_record() -> None:
    node = FakeNode()
    node.topic()
    partition = node.partition()
    partition.write(build([Record(b"v", NOW)], max_timestamp=NOW + 50))
    assert found(await node.list_offsets([(0, NOW + 40)])) == [(-1, -1, -1)]
    partition.write(at(45))
    assert found(await node.list_offsets([(0, NOW + 40)])) == [(1, NOW + 50, TERM)]


@pytest.mark.parametrize(
    ("time", "since"),
    [
        (LATEST, 1),
        (EARLIEST, 1),
        (NEWEST, 7),
        (EARLIEST_LOCAL, 8),
        (LATEST_TIERED, 9),
        (-6, 99),
        (-100, 99),
    ],
)
@simulated
async def test_a_special_time_is_unsupported_before_its_version(time: int, since: int) -> None:
    node = FakeNode()
    node.topic()
    for version in VERSIONS:
        (part,) = await node.list_offsets([(0, time)], version)
        assert (part.error_code is ErrorCode.unsupported_version) is (version < since), version


@simulated
async def test_leadership_is_proved_first() -> None:
    node = FakeNode()
    node.topic()
    partition = node.partition()
    partition.on_confirm = lambda: partition.write(build())
    assert found(await node.list_offsets([(0, LATEST)])) == [(3, -1, TERM)]
    partition.confirms = False
    for time in (LATEST, EARLIEST, NEWEST, 0):
        assert codes(await node.list_offsets([(0, time)])) == [ErrorCode.not_leader_or_follower]


@simulated
async def test_refusals() -> None:
    node = FakeNode()
    node.topic(partitions=4)
    node.partition(number=1).resign()
    node.leaders.nobody = True
    asked = [(0, LATEST), (1, LATEST), (9, LATEST), (2, LATEST), (2, EARLIEST), (3, LATEST)]
    assert codes(await node.list_offsets(asked)) == [
        ErrorCode.none,
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_request,
        ErrorCode.invalid_request,
        ErrorCode.none,
    ]
    assert codes(await node.list_offsets([(0, LATEST)], topic="u")) == [ErrorCode.unknown_topic_or_partition]


@simulated
async def test_leader_epochs_are_compared() -> None:
    node = FakeNode()
    node.topic()
    for epoch, code in (
        (TERM, ErrorCode.none),
        (TERM - 1, ErrorCode.fenced_leader_epoch),
        (TERM + 1, ErrorCode.unknown_leader_epoch),
    ):
        assert codes(await node.list_offsets([(0, LATEST)], current_leader_epoch=epoch)) == [code]


@pytest.mark.parametrize(
    ("version", "code"), [(4, ErrorCode.leader_not_available), (5, ErrorCode.offset_not_available)]
)
@simulated
async def test_a_leader_that_has_yet_to_catch_up_says_so(version: int, code: ErrorCode) -> None:
    node = FakeNode()
    node.topic()
    node.partition().resign()
    node.partition().loading = True
    assert codes(await node.list_offsets([(0, LATEST)], version)) == [code]


@simulated
async def test_damage_silence_and_the_time_limit_are_told_apart() -> None:
    node = FakeNode()
    node.topic(partitions=4)
    for number in range(4):
        node.partition(number=number).write(at(1))
    node.partition(number=0).read_error = BadObject("l0/x", 0, 9, "bit rot")
    node.partition(number=1).read_error = NotDone("get_range", "l0/x", "down", retriable=True)
    node.partition(number=2).read_seconds = 5.0
    asked = [(number, NOW) for number in range(4)]
    started = node.loop.time()
    assert codes(await node.list_offsets(asked)) == [
        ErrorCode.corrupt_message,
        ErrorCode.kafka_storage_error,
        ErrorCode.request_timed_out,
        ErrorCode.none,
    ]
    assert node.loop.time() - started == pytest.approx(1.0, abs=0.01)
    # Older versions name no limit, and kafka-python names 0.
    assert codes(await node.list_offsets([(2, NOW)], 9)) == [ErrorCode.none]
    assert codes(await node.list_offsets([(2, NOW)], seconds=0.0)) == [ErrorCode.none]


@simulated
async def test_many_partitions_are_answered_in_their_order() -> None:
    node = FakeNode()
    node.topic(partitions=150)
    for number in range(150):
        node.partition(number=number).write(*[at(0)] * (number % 7))
    parts = await node.list_offsets([(number, LATEST) for number in range(150)])
    assert [(part.partition_index, part.offset) for part in parts] == [
        (number, number % 7) for number in range(150)
    ]


# OffsetForLeaderEpoch.


async def ends(node: FakeNode, *asked: tuple[int, int], version: int = 4, current: int = -1) -> list[Any]:
    """(error, epoch, end) for each (partition, epoch) of topic t."""
    parts = [
        {"partition": number, "current_leader_epoch": current, "leader_epoch": epoch}
        for number, epoch in asked
    ]
    response = await node.ask(
        ApiKey.OFFSET_FOR_LEADER_EPOCH, version, topics=[{"topic": "t", "partitions": parts}]
    )
    (topic,) = response.topics
    assert [part.partition for part in topic.partitions] == [number for number, _ in asked]
    return [(part.error_code, part.leader_epoch, part.end_offset) for part in topic.partitions]


@pytest.mark.parametrize("version", [2, 3, 4])
@simulated
async def test_where_each_epoch_ends(version: int) -> None:
    node = FakeNode()
    node.topic()
    partition = node.partition()
    partition.write(build())
    partition.replica.begin_term(TERM + 3)
    partition.write(build(), build())
    none = ErrorCode.none
    for epoch, expected in (
        (TERM, (none, TERM, 3)),
        (TERM + 1, (none, TERM, 3)),
        (TERM + 3, (none, TERM + 3, 9)),
        (TERM + 4, (none, -1, -1)),
        (TERM - 1, (none, TERM - 1, 0)),
    ):
        assert await ends(node, (0, epoch), version=version) == [expected], epoch


@simulated
async def test_an_epochs_end_is_told_by_a_confirmed_leader_only() -> None:
    node = FakeNode()
    node.topic(partitions=2)
    partition = node.partition()
    partition.on_confirm = lambda: partition.write(build())
    assert await ends(node, (0, TERM)) == [(ErrorCode.none, TERM, 3)]
    partition.confirms = False
    node.partition(number=1).resign()
    assert await ends(node, (0, TERM), (1, TERM)) == [(ErrorCode.not_leader_or_follower, -1, -1)] * 2


@simulated
async def test_refusals_of_offset_for_leader_epoch() -> None:
    node = FakeNode()
    node.topic()
    unknown = ErrorCode.unknown_topic_or_partition
    assert await ends(node, (5, TERM)) == [(unknown, -1, -1)]
    assert await ends(node, (0, TERM), current=TERM - 1) == [(ErrorCode.fenced_leader_epoch, -1, -1)]
    assert await ends(node, (0, TERM), current=TERM + 1) == [(ErrorCode.unknown_leader_epoch, -1, -1)]
    node.delete("t")
    assert await ends(node, (0, TERM)) == [(unknown, -1, -1)]


@simulated
async def test_a_cancelled_look_up_stops() -> None:
    node = FakeNode()
    node.topic()
    node.partition().write(at(1))
    node.partition().read_seconds = 60.0
    asked = asyncio.ensure_future(node.list_offsets([(0, NOW)], 9))
    await asyncio.sleep(1)
    asked.cancel()
    assert await asyncio.gather(asked, return_exceptions=True)
