"""DeleteRecords, rule by rule: which offsets are taken, what is answered, and who may answer."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode

from strandline.node.controller.leaders import Leader
from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.node.refusal import Reason, Refusal
from strandline.statemachine.partition.partition_commands import SetStartOffset
from tests.kafka.handlers.fake_cluster import TERM
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.wire.batches import build
from tests.runtime.jumping_loop import simulated

VERSIONS = range(APIS[ApiKey.DELETE_RECORDS].first, APIS[ApiKey.DELETE_RECORDS].last + 1)


def filled(policy: str = "delete") -> FakeNode:
    """A topic with the records 0 to 8."""
    node = FakeNode()
    node.topic(cleanup_policy=policy)
    node.partition().write(build(), build(), build())
    return node


async def deleted(
    node: FakeNode, offsets: dict[int, int], version: int = 2, *, topic: str = "t", seconds: float = 1.0
) -> list[tuple[ErrorCode, int]]:
    """Code and low watermark of each partition, in the order asked."""
    parts = [{"partition_index": number, "offset": offset} for number, offset in offsets.items()]
    response = await node.ask(
        ApiKey.DELETE_RECORDS,
        version,
        topics=[{"name": topic, "partitions": parts}],
        timeout=timedelta(seconds=seconds),
    )
    assert response.throttle_time == timedelta(0)
    (answered,) = response.topics
    assert answered.name == topic
    assert [one.partition_index for one in answered.partitions] == [*offsets]
    return [(one.error_code, one.low_watermark) for one in answered.partitions]


@pytest.mark.parametrize("version", VERSIONS)
@simulated
async def test_every_version_moves_the_start_offset(version: int) -> None:
    node = filled()
    assert await deleted(node, {0: 4}, version) == [(ErrorCode.none, 4)]
    assert node.partition().start_offset == 4


@pytest.mark.parametrize("seconds", [0.0, -1.0])
@simulated
async def test_a_timeout_of_0_is_no_bound_of_the_client_s(seconds: float) -> None:
    node = filled()
    node.partition().execute_seconds = 0.1
    assert await deleted(node, {0: 4}, seconds=seconds) == [(ErrorCode.none, 4)]


@simulated
async def test_minus_one_is_the_high_watermark() -> None:
    node = filled()
    assert await deleted(node, {0: -1}) == [(ErrorCode.none, 9)]
    assert (node.partition().start_offset, node.partition().high_watermark) == (9, 9)


@simulated
async def test_the_high_watermark_itself_is_in_range_and_nothing_above_or_below_zero_is() -> None:
    node = filled()
    for offset in (10, -2, 1 << 62):
        assert await deleted(node, {0: offset}) == [(ErrorCode.offset_out_of_range, -1)], offset
    assert node.partition().start_offset == 0
    assert await deleted(node, {0: 9}) == [(ErrorCode.none, 9)]


@simulated
async def test_an_offset_that_is_deleted_already_is_fine_and_needs_no_entry() -> None:
    node = filled()
    node.partition().trim(5)
    for offset in (0, 3, 5):
        assert await deleted(node, {0: offset}) == [(ErrorCode.none, 5)]
    assert node.partition().executed == []


@simulated
async def test_somebody_quicker_who_went_further_is_fine() -> None:
    node = filled()
    partition = node.partition()
    partition.execute_seconds = 0.1
    task = asyncio.get_running_loop().create_task(deleted(node, {0: 4}))
    await asyncio.sleep(0.05)
    partition.trim(6)
    assert await task == [(ErrorCode.none, 6)]


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        ("compact", ErrorCode.policy_violation),
        ("", ErrorCode.policy_violation),
        ("delete", ErrorCode.none),
        ("compact,delete", ErrorCode.none),
    ],
)
@simulated
async def test_only_compacted_topics_keep_their_records(policy: str, code: ErrorCode) -> None:
    node = filled(policy)
    assert [one for one, _ in await deleted(node, {0: 4})] == [code]


@simulated
async def test_each_partition_is_judged_for_itself() -> None:
    node = FakeNode()
    node.topic(partitions=3)
    for number in (0, 1):
        node.partition(number=number).write(build())
    node.partition(number=1).leads = False
    node.leaders.others[node.controller.machine.topic("t").partitions[1].group] = Leader(2, TERM)  # type: ignore[union-attr]
    assert await deleted(node, {1: 1, 0: 2, 2: 0, 7: 0}) == [
        (ErrorCode.not_leader_or_follower, -1),
        (ErrorCode.none, 2),
        (ErrorCode.none, 0),
        (ErrorCode.unknown_topic_or_partition, -1),
    ]
    assert await deleted(node, {0: 1}, topic="unheard") == [(ErrorCode.unknown_topic_or_partition, -1)]


@simulated
async def test_a_leader_that_was_replaced_refuses_no_offset() -> None:
    node = filled()
    node.partition().confirms = False
    for offset in (4, 10, -1):
        assert await deleted(node, {0: offset}) == [(ErrorCode.not_leader_or_follower, -1)]
    assert node.partition().executed == []


@simulated
async def test_records_that_came_before_the_proof_count() -> None:
    node = filled()
    partition = node.partition()
    partition.on_confirm = lambda: partition.write(build())
    assert await deleted(node, {0: -1}) == [(ErrorCode.none, 12)]
    assert await deleted(node, {0: 13}) == [(ErrorCode.none, 13)]


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        (Reason.NOT_LEADER, ErrorCode.not_leader_or_follower),
        (Reason.NOT_NOW, ErrorCode.not_enough_replicas),
        (Reason.UNDECIDED, ErrorCode.request_timed_out),
    ],
)
@simulated
async def test_a_command_that_fails_is_told_and_an_unknown_outcome_is_a_time_out(
    ended: Reason, code: ErrorCode
) -> None:
    node = filled()
    node.partition().execution = Refusal(ended, "why")
    assert await deleted(node, {0: 4}) == [(code, -1)]


@simulated
async def test_what_takes_longer_than_the_timeout_is_timed_out_alone() -> None:
    node = FakeNode()
    node.topic(partitions=2)
    for number in range(2):
        node.partition(number=number).write(build())
    node.partition().execute_seconds = 3.0
    started = asyncio.get_running_loop().time()
    assert await deleted(node, {0: 1, 1: 1}, seconds=0.5) == [
        (ErrorCode.request_timed_out, -1),
        (ErrorCode.none, 1),
    ]
    assert asyncio.get_running_loop().time() - started < 0.6


@simulated
async def test_the_command_is_the_start_offset() -> None:
    node = filled()
    await deleted(node, {0: 4})
    assert node.partition().executed == [SetStartOffset(4)]
