"""Fetch, rule by rule: what is given and how much, how long it waits and what wakes it, and every refusal."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from strandline.node.controller.leaders import Leader
from strandline.node.kafka.handlers import fetch as fetch_module
from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.node.kafka.wire.record_batch import boundaries, read_header
from strandline.node.objectstore.store import NotDone
from strandline.snapshot.level_zero_format import BadObject
from tests.kafka.handlers.fake_cluster import TERM
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.handlers.fake_partition import FakePartition
from tests.kafka.handlers.fetch_answers import bases, codes, only, parts, waiting
from tests.kafka.wire.batches import Record, build
from tests.runtime.jumping_loop import run, simulated

VERSIONS = range(APIS[ApiKey.FETCH].first, APIS[ApiKey.FETCH].last + 1)


def sized(size: int) -> bytes:
    """A batch of one record and exactly this many bytes."""
    batch = build([Record(bytes(size - 70))])
    return build([Record(bytes(size - 70 + size - len(batch)))])


# What is given.


@pytest.mark.parametrize("version", VERSIONS)
@simulated
async def test_every_version_gives_whole_batches_with_offsets_and_leader_epochs(version: int) -> None:
    node = FakeNode()
    node.topic()
    node.partition().write(build(), build())
    node.partition().replica.begin_term(TERM + 2)
    node.partition().write(build())
    response = await node.fetch({0: 0}, version)
    part = only(response)
    assert (part.error_code, part.high_watermark, part.last_stable_offset) == (ErrorCode.none, 9, 9)
    heads = [read_header(part.records, start) for start, _ in boundaries(part.records)]
    assert [(one.base_offset, one.leader_epoch) for one in heads] == [(0, TERM), (3, TERM), (6, TERM + 2)]
    assert part.aborted_transactions is None
    if version >= 5:
        assert part.log_start_offset == 0
    if version >= 7:
        assert (response.error_code, response.session_id) == (ErrorCode.none, 0)
    if version >= 11:
        assert part.preferred_read_replica == -1


@simulated
async def test_an_offset_inside_a_batch_gives_the_whole_batch() -> None:
    node = FakeNode()
    node.topic()
    node.partition().write(build(), build())
    assert bases(only(await node.fetch({0: 4}))) == [3]


@simulated
async def test_the_end_of_the_log_is_empty_and_no_error() -> None:
    node = FakeNode()
    node.topic()
    node.partition().write(build())
    part = only(await node.fetch({0: 3}))
    assert (part.error_code, part.records, part.high_watermark) == (ErrorCode.none, b"", 3)
    assert not node.partition().reads


@simulated
async def test_answers_come_in_the_order_of_the_request() -> None:
    node = FakeNode()
    node.topic("a", 2)
    node.topic("b")
    response = await node.fetch({("b", 0): 0, ("a", 1): 0, ("a", 0): 0}, 12)
    found = [(topic.topic, one.partition_index) for topic in response.responses for one in topic.partitions]
    assert found == [("b", 0), ("a", 1), ("a", 0)]


@simulated
async def test_a_fetch_of_many_partitions_lets_the_loop_do_other_work_between() -> None:
    """Where the processor is busy, one long turn of the loop is as long as an election."""
    node, partitions = FakeNode(), 5 * fetch_module.SLICE
    node.topic(partitions=partitions)
    for number in range(partitions):
        node.partition("t", number).write(build())
    fetched = asyncio.ensure_future(node.fetch(dict.fromkeys(range(partitions), 0)))
    longest = 0
    while not fetched.done():
        before = sum(len(node.partition("t", number).reads) for number in range(partitions))
        await asyncio.sleep(0)
        at_once = sum(len(node.partition("t", number).reads) for number in range(partitions)) - before
        longest = max(longest, at_once)
    assert 0 < longest <= fetch_module.SLICE
    assert all(bases(part) == [0] for part in parts(await fetched))


@simulated
async def test_large_batches_are_passed_on_uncopied() -> None:
    node = FakeNode()
    node.topic()
    batch = sized(100_000)
    node.partition().write(batch)
    response = await node.unframed(
        ApiKey.FETCH,
        12,
        max_wait=timedelta(0),
        min_bytes=1,
        isolation_level=0,
        topics=[
            {"topic": "t", "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1}]}
        ],
    )
    _, view = response.responses[0].partitions[0].records.parts
    assert view.obj is node.partition().machine.extents_between(0, 1, 1)[0].data  # type: ignore[union-attr]


# How much.


@simulated
async def test_the_first_batch_comes_whatever_its_size() -> None:
    node = FakeNode()
    node.topic(partitions=2)
    for number in range(2):
        node.partition(number=number).write(sized(500), sized(500))
    for limits in ({"max_bytes": 1}, {"max_bytes": 0}):
        response = await node.fetch({0: 0, 1: 0}, **limits)
        assert [bases(part) for part in parts(response)] == [[0], []]
    tiny: Any = {"fetch_offset": 0, "partition_max_bytes": 1}
    assert [bases(part) for part in parts(await node.fetch({0: tiny, 1: tiny}))] == [[0], []]


@simulated
async def test_the_first_partition_with_data_counts_as_the_first() -> None:
    node = FakeNode()
    node.topic(partitions=3)
    for number in (1, 2):
        node.partition(number=number).write(sized(500))
    response = await node.fetch({7: 0, 0: 0, 1: 0, 2: 0}, max_bytes=1)
    assert [bases(part) for part in parts(response)] == [[], [], [0], []]


@simulated
async def test_a_partitions_limit_is_kept_by_whole_batches() -> None:
    node = FakeNode()
    node.topic()
    node.partition().write(sized(400), sized(400), sized(400))
    for limit, expected in ((799, [0]), (800, [0, 1]), (1199, [0, 1]), (1200, [0, 1, 2])):
        part = only(await node.fetch({0: {"fetch_offset": 0, "partition_max_bytes": limit}}))
        assert bases(part) == expected, limit


@simulated
async def test_the_requests_limit_is_shared_in_order() -> None:
    node = FakeNode()
    node.topic(partitions=3)
    for number in range(3):
        node.partition(number=number).write(sized(400), sized(400))
    for limit, expected in (
        (800, [[0, 1], [], []]),
        (1199, [[0, 1], [], []]),
        (1200, [[0, 1], [0], []]),
        (2400, [[0, 1], [0, 1], [0, 1]]),
    ):
        response = await node.fetch({0: 0, 1: 0, 2: 0}, max_bytes=limit)
        assert [bases(part) for part in parts(response)] == expected, limit


@simulated
async def test_what_does_not_fit_does_not_keep_out_what_does() -> None:
    node = FakeNode()
    node.topic(partitions=3)
    for number, size in enumerate((400, 600, 200)):
        node.partition(number=number).write(sized(size))
    response = await node.fetch({0: 0, 1: 0, 2: 0}, max_bytes=700)
    assert [bases(part) for part in parts(response)] == [[0], [], [0]]


@simulated
async def test_no_answer_is_larger_than_the_server_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_module, "MAX_FETCH_BYTES", 1000)
    node = FakeNode()
    node.topic()
    node.partition().write(sized(400), sized(400), sized(400))
    assert bases(only(await node.fetch({0: 0}, min_bytes=5000, max_wait=9.0))) == [0, 1]
    assert node.loop.time() < 1001, "min_bytes above the cap is the cap, or every poll lasts its whole wait"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(100, 900), max_size=4), min_size=1, max_size=4),
    st.integers(0, 4000),
    st.integers(0, 2000),
    st.sampled_from([0.0, 0.1]),
)
def test_what_fits_is_given_by_the_plain_rule(
    logs: list[list[int]], room: int, each: int, seconds: float
) -> None:
    """The same from memory and from a slow store, where reads overlap."""

    async def check() -> None:
        node = FakeNode()
        node.topic(partitions=len(logs))
        for number, sizes in enumerate(logs):
            node.partition(number=number).write(*map(sized, sizes))
            node.partition(number=number).read_seconds = seconds
        wanted: dict[Any, Any] = {
            number: {"fetch_offset": 0, "partition_max_bytes": each} for number in range(len(logs))
        }
        response = await node.fetch(wanted, max_bytes=room)
        assert [len(bases(part)) for part in parts(response)] == plain(logs, room, each)

    run(check)


def plain(logs: list[list[int]], room: int, each: int) -> list[int]:
    counts, found = [], False
    for sizes in logs:
        limit, count, used = min(room, each), 0, 0
        for size in sizes:
            if used + size > limit and (found or count):
                break
            count, used = count + 1, used + size
        counts.append(count)
        room -= used
        found = found or count > 0
    return counts


@simulated
async def test_a_batch_read_before_it_was_measured_is_left_out_if_it_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch_module, "LIKELY_BATCH_BYTES", 0)
    node = FakeNode()
    node.topic(partitions=3)
    for number, size in enumerate((400, 600, 200)):
        node.partition(number=number).write(sized(size))
    response = await node.fetch({0: 0, 1: 0, 2: 0}, max_bytes=700)
    assert [bases(part) for part in parts(response)] == [[0], [], [0]]


@simulated
async def test_a_partition_that_cannot_be_read_does_not_count_as_the_first() -> None:
    node = FakeNode()
    node.topic(partitions=2)
    for number in range(2):
        node.partition(number=number).write(sized(500))
    node.partition(number=0).read_error = NotDone("get_range", "l0/x", "down", retriable=True)
    response = await node.fetch({0: 0, 1: 0}, max_bytes=10)
    assert codes(response) == [ErrorCode.kafka_storage_error, ErrorCode.none]
    assert [bases(part) for part in parts(response)] == [[], [0]]


@simulated
async def test_reads_that_overlap_share_what_room_there_is() -> None:
    node = FakeNode()
    node.topic(partitions=4)
    for number in range(4):
        node.partition(number=number).write(sized(400))
        node.partition(number=number).read_seconds = 1.0
    response = await node.fetch(dict.fromkeys(range(4), 0), max_bytes=1000)
    assert [bases(part) for part in parts(response)] == [[0], [0], [], []]


@simulated
async def test_reads_that_wait_for_the_store_overlap() -> None:
    node = FakeNode()
    node.topic(partitions=9)
    for number in range(9):
        node.partition(number=number).write(build())
        node.partition(number=number).read_seconds = 1.0
    started = node.loop.time()
    response = await node.fetch(dict.fromkeys(range(9), 0))
    assert [bases(part) for part in parts(response)] == [[0]] * 9
    assert node.loop.time() - started == pytest.approx(2.0, abs=0.01)


# How long.


@simulated
async def test_an_empty_partition_is_waited_for_exactly_as_long_as_asked() -> None:
    node = FakeNode()
    node.topic()
    for seconds in (0.0, 0.001, 0.5, 30.0):
        started = node.loop.time()
        assert codes(await node.fetch({0: 0}, max_wait=seconds)) == [ErrorCode.none]
        assert node.loop.time() - started == pytest.approx(seconds, abs=1e-6)


@simulated
async def test_records_wake_a_long_poll_at_once() -> None:
    node = FakeNode()
    node.topic(partitions=2)
    started = node.loop.time()
    asked = waiting(node, {0: 0, 1: 0}, max_wait=30.0)
    node.loop.call_later(3.0, node.partition(number=1).write, build())
    assert [bases(part) for part in parts(await asked)] == [[], [0]]
    assert node.loop.time() - started == pytest.approx(3.0, abs=1e-6)


@simulated
async def test_a_long_poll_is_not_woken_by_what_changes_nothing_for_it() -> None:
    node = FakeNode()
    node.topic()
    asked = waiting(node, {0: 0}, max_wait=5.0)
    for at in range(1, 5):
        node.loop.call_later(at, node.partition().moved)
    await asyncio.sleep(4.9)
    assert not asked.done()
    assert codes(await asked) == [ErrorCode.none]


@simulated
async def test_min_bytes_are_counted_over_all_partitions() -> None:
    node = FakeNode()
    node.topic(partitions=2)
    node.partition(number=0).write(sized(400))
    asked = waiting(node, {0: 0, 1: 0}, max_wait=30.0, min_bytes=1000)
    await asyncio.sleep(1)
    node.partition(number=1).write(sized(599))
    await asyncio.sleep(1)
    assert not asked.done(), "999 bytes"
    node.partition(number=0).write(sized(200))
    await asyncio.sleep(0.001)
    assert asked.done()
    assert [bases(part) for part in parts(asked.result())] == [[0, 1], [0]]


@simulated
async def test_what_a_partitions_limit_keeps_back_does_not_count() -> None:
    node = FakeNode()
    node.topic()
    node.partition().write(*[sized(400)] * 9)
    wanted: Any = {0: {"fetch_offset": 0, "partition_max_bytes": 1000}}
    started = node.loop.time()
    assert bases(only(await node.fetch(wanted, min_bytes=1000, max_wait=5.0))) == [0, 1]
    assert node.loop.time() == started
    assert bases(only(await node.fetch(wanted, min_bytes=1001, max_wait=5.0))) == [0, 1]
    assert node.loop.time() - started == pytest.approx(5.0, abs=1e-6)


@simulated
async def test_a_single_batch_above_its_partitions_limit_counts_whole() -> None:
    node = FakeNode()
    node.topic()
    node.partition().write(sized(900))
    started = node.loop.time()
    wanted: Any = {0: {"fetch_offset": 0, "partition_max_bytes": 100}}
    assert bases(only(await node.fetch(wanted, min_bytes=900, max_wait=5.0))) == [0]
    assert node.loop.time() == started


@simulated
async def test_after_max_wait_less_than_min_bytes_is_given() -> None:
    node = FakeNode()
    node.topic()
    node.partition().write(build())
    started = node.loop.time()
    assert bases(only(await node.fetch({0: 0}, min_bytes=5000, max_wait=0.25))) == [0]
    assert node.loop.time() - started == pytest.approx(0.25, abs=1e-6)


@simulated
async def test_min_bytes_of_nothing_does_not_wait() -> None:
    node = FakeNode()
    node.topic()
    started = node.loop.time()
    await node.fetch({0: 0}, min_bytes=0, max_wait=30.0)
    assert node.loop.time() == started


@simulated
async def test_a_request_for_nothing_is_answered_at_once() -> None:
    node = FakeNode()
    started = node.loop.time()
    assert (await node.fetch({}, max_wait=30.0)).responses == ()
    assert node.loop.time() == started


@simulated
async def test_an_error_is_told_at_once_beside_what_there_is() -> None:
    node = FakeNode()
    node.topic(partitions=2)
    node.partition(number=1).resign()
    started = node.loop.time()
    response = await node.fetch({0: 0, 1: 0}, max_wait=30.0)
    assert codes(response) == [ErrorCode.none, ErrorCode.not_leader_or_follower]
    assert node.loop.time() == started


@pytest.mark.parametrize(
    ("version", "code"), [(12, ErrorCode.unknown_topic_or_partition), (13, ErrorCode.unknown_topic_id)]
)
@simulated
async def test_what_there_is_not_does_not_end_the_wait_for_the_rest(version: int, code: ErrorCode) -> None:
    node = FakeNode()
    node.topic()
    for refused in (("u", 0), ("t", 5)):
        started = node.loop.time()
        asked = waiting(node, {refused: 0, 0: 0}, version, max_wait=30.0)
        node.loop.call_later(3.0, node.partition().write, build())
        response = await asked
        expected = code if refused[0] == "u" else ErrorCode.unknown_topic_or_partition
        assert codes(response) == [expected, ErrorCode.none]
        assert len(parts(response)[1].records) > 0
        assert node.loop.time() - started == pytest.approx(3.0, abs=1e-6)
        node.partition().trim(node.partition().high_watermark)
        started = node.loop.time()
        assert codes(await node.fetch({refused: 0}, version, max_wait=30.0)) == [expected]
        assert node.loop.time() == started, "nothing is waited for"
        node.delete("t")
        node.topic()


@simulated
async def test_a_partition_asked_for_twice_is_answered_once_with_the_last() -> None:
    node = FakeNode()
    node.topic()
    node.partition().write(build())
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    topics = [{"topic": "t", "partitions": [part, {**part, "fetch_offset": 3}]}]
    asked = waiting(node, {}, 12, max_wait=30.0, topics=topics)
    await asyncio.sleep(1)
    node.partition().write(build())
    assert bases(only(await asked)) == [3]


@simulated
async def test_a_slow_consumer_is_given_everything_piece_by_piece() -> None:
    node = FakeNode()
    node.topic()
    offset, seen = 0, []
    for number in range(20):
        node.partition().write(sized(100 + number), sized(300))
        part = only(await node.fetch({0: {"fetch_offset": offset, "partition_max_bytes": 350}}))
        for start, _ in boundaries(part.records):
            seen.append(read_header(part.records, start).base_offset)
            offset = read_header(part.records, start).next_offset
    while offset < 40:
        part = only(await node.fetch({0: {"fetch_offset": offset, "partition_max_bytes": 350}}))
        seen += bases(part)
        offset = seen[-1] + 1
    assert seen == [*range(40)]


# What ends a long poll early, and how.


@simulated
async def test_leadership_lost_during_a_long_poll_is_told_at_once_with_the_new_leader() -> None:
    node = FakeNode()
    topic = node.topic(partitions=2)
    asked = waiting(node, {0: 0, 1: 0}, max_wait=30.0)
    await asyncio.sleep(1)
    node.leaders.others[topic.partitions[1].group] = Leader(3, TERM + 1)
    node.partition(number=1).resign()
    await asyncio.sleep(0.001)
    assert asked.done()
    response = asked.result()
    assert codes(response) == [ErrorCode.none, ErrorCode.not_leader_or_follower]
    leader = parts(response)[1].current_leader
    assert (leader.leader_id, leader.leader_epoch) == (3, TERM + 1)
    assert [(one.node_id, one.host, one.port) for one in response.node_endpoints] == [(3, "n3", 9003)]


@pytest.mark.parametrize(
    ("version", "code"), [(12, ErrorCode.unknown_topic_or_partition), (13, ErrorCode.unknown_topic_id)]
)
@simulated
async def test_a_topic_deleted_during_a_long_poll(version: int, code: ErrorCode) -> None:
    node = FakeNode()
    node.topic()
    asked = waiting(node, {0: 0}, version, max_wait=30.0)
    await asyncio.sleep(1)
    partition = node.partition()
    node.delete("t")
    await asyncio.sleep(0.001)
    assert asked.done()
    assert codes(asked.result()) == [code]
    assert not partition.watchers


@simulated
async def test_a_topic_deleted_during_a_long_poll_of_others_is_told_at_once() -> None:
    node = FakeNode()
    node.topic("t")
    node.topic("u")
    asked = waiting(node, {("t", 0): 0, ("u", 0): 0}, 12, max_wait=30.0)
    await asyncio.sleep(1)
    node.delete("t")
    await asyncio.sleep(0.001)
    assert asked.done()
    assert codes(asked.result()) == [ErrorCode.unknown_topic_or_partition, ErrorCode.none]


@simulated
async def test_a_topic_deleted_while_leadership_is_proven_is_unknown() -> None:
    node = FakeNode()
    node.topic()
    node.partition().on_confirm = lambda: node.delete("t")
    assert codes(await node.fetch({0: 9}, 12, max_wait=30.0)) == [ErrorCode.unknown_topic_or_partition]


@simulated
async def test_a_replica_that_leaves_during_a_long_poll_is_told_at_once() -> None:
    node = FakeNode()
    topic = node.topic()
    asked = waiting(node, {0: 0}, max_wait=30.0)
    await asyncio.sleep(1)
    node.partitions.replicas.pop((topic.topic_id, 0)).moved()
    await asyncio.sleep(0.001)
    assert codes(asked.result()) == [ErrorCode.not_leader_or_follower]


@simulated
async def test_records_deleted_below_a_long_poll_are_told_at_once() -> None:
    node = FakeNode()
    node.topic()
    node.partition().write(build(), build())
    asked = waiting(node, {0: 0}, max_wait=30.0, min_bytes=100_000)
    await asyncio.sleep(1)
    node.partition().trim(3)
    await asyncio.sleep(0.01)
    assert codes(asked.result()) == [ErrorCode.offset_out_of_range]


@simulated
async def test_a_new_leader_epoch_during_a_long_poll_fences_the_client() -> None:
    node = FakeNode()
    node.topic()
    wanted: Any = {0: {"fetch_offset": 0, "current_leader_epoch": TERM}}
    asked = waiting(node, wanted, max_wait=30.0)
    await asyncio.sleep(1)
    node.partition().replica.begin_term(TERM + 1)
    node.partition().moved()
    await asyncio.sleep(0.001)
    assert codes(asked.result()) == [ErrorCode.fenced_leader_epoch]


# Refusals.


@simulated
async def test_an_unknown_topic_or_partition() -> None:
    node = FakeNode()
    node.topic()
    response = await node.fetch({("t", 1): 0, ("t", -1): 0, ("u", 0): 0}, 12)
    assert codes(response) == [ErrorCode.unknown_topic_or_partition] * 3
    assert [(one.high_watermark, one.log_start_offset, one.records) for one in parts(response)] == [
        (-1, -1, b"")
    ] * 3


@simulated
async def test_an_unknown_topic_id() -> None:
    node = FakeNode()
    response = await node.fetch({(uuid.UUID(int=5), 0): 0, (None, 0): 0})
    assert codes(response) == [ErrorCode.unknown_topic_id] * 2


@pytest.mark.parametrize("version", VERSIONS)
@simulated
async def test_a_follower_gives_nothing_and_names_the_leader(version: int) -> None:
    node = FakeNode()
    topic = node.topic()
    node.partition().write(build())
    node.partition().resign()
    node.leaders.others[topic.partitions[0].group] = Leader(2, 9)
    response = await node.fetch({0: 0}, version, max_wait=30.0)
    part = only(response)
    assert (part.error_code, part.records) == (ErrorCode.not_leader_or_follower, b"")
    if version >= 12:
        assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (2, 9)
    if version >= 16:
        assert [one.node_id for one in response.node_endpoints] == [2]


@simulated
async def test_leader_epochs_are_compared() -> None:
    node = FakeNode()
    topic = node.topic()
    node.partition().write(build())
    node.leaders.others[topic.partitions[0].group] = Leader(1, TERM)
    for epoch, code in (
        (TERM, ErrorCode.none),
        (-1, ErrorCode.none),
        (TERM - 1, ErrorCode.fenced_leader_epoch),
        (TERM + 1, ErrorCode.unknown_leader_epoch),
    ):
        response = await node.fetch({0: {"fetch_offset": 0, "current_leader_epoch": epoch}})
        part = only(response)
        assert part.error_code is code
        assert bool(part.records) is (code is ErrorCode.none)
        if code is ErrorCode.fenced_leader_epoch:
            assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (1, TERM)


@simulated
async def test_out_of_range_is_said_only_by_a_confirmed_leader() -> None:
    node = FakeNode()
    node.topic()
    partition = node.partition()
    partition.write(build(), build())
    partition.trim(3)
    for offset in (0, 2, 7, -1):
        before = partition.confirmed
        assert codes(await node.fetch({0: offset}, max_wait=30.0)) == [ErrorCode.offset_out_of_range]
        assert partition.confirmed == before + 1
    partition.confirms = False
    assert codes(await node.fetch({0: 7}, max_wait=30.0)) == [ErrorCode.not_leader_or_follower]
    for offset in (3, 6):
        before = partition.confirmed
        await node.fetch({0: offset})
        assert partition.confirmed == before, "what is in range needs no proof: it is committed"


@simulated
async def test_what_a_confirmation_brings_is_served() -> None:
    node = FakeNode()
    node.topic()
    partition = node.partition()
    partition.write(build())
    partition.on_confirm = lambda: partition.write(build(), build())
    assert bases(only(await node.fetch({0: 6}, max_wait=30.0))) == [6]


@simulated
async def test_a_diverging_epoch_is_told_without_records() -> None:
    node = FakeNode()
    node.topic()
    partition = node.partition()
    partition.write(build())
    partition.replica.begin_term(TERM + 3)
    partition.write(build())
    for offset, epoch, expected in (
        (3, TERM, None),
        (4, TERM, (TERM, 3)),  # What the client read behind 3 in that term is not here.
        (3, TERM + 2, (TERM, 3)),  # Nobody here wrote in that term.
        (6, TERM + 3, None),
    ):
        wanted: Any = {0: {"fetch_offset": offset, "last_fetched_epoch": epoch}}
        before = partition.confirmed
        part = only(await node.fetch(wanted, max_wait=0.1))
        assert part.error_code is ErrorCode.none
        found = (part.diverging_epoch.epoch, part.diverging_epoch.end_offset)
        assert found == (expected or (-1, -1)), (offset, epoch)
        if expected:
            assert part.records == b""
            assert partition.confirmed == before + 1, "a leader that was replaced has too short a history"
    ahead: Any = {0: {"fetch_offset": 6, "last_fetched_epoch": TERM + 9}}
    assert codes(await node.fetch(ahead)) == [ErrorCode.offset_out_of_range]


@simulated
async def test_damage_and_a_store_that_does_not_answer_are_told_apart() -> None:
    node = FakeNode()
    node.topic(partitions=3)
    for number in range(3):
        node.partition(number=number).write(build())
    node.partition(number=0).read_error = BadObject("l0/x", 0, 9, "bit rot")
    node.partition(number=1).read_error = NotDone("get_range", "l0/x", "down", retriable=True)
    response = await node.fetch(dict.fromkeys(range(3), 0))
    assert codes(response) == [ErrorCode.corrupt_message, ErrorCode.kafka_storage_error, ErrorCode.none]
    assert [bases(part) for part in parts(response)] == [[], [], [0]]


# Level one.


def lifted(batches: int, ends: int, **sizes: int) -> FakeNode:
    """A topic of batches of three records, those up to an offset in level one."""
    node = FakeNode()
    node.topic()
    node.partition().write(*[build()] * batches)
    node.partition().reconcile(ends, **sizes)
    return node


@simulated
async def test_level_one_is_given_with_the_rest_in_one_piece() -> None:
    node = lifted(6, 12)
    part = only(await node.fetch({0: 4}))
    heads = [read_header(part.records, start) for start, _ in boundaries(part.records)]
    assert [(one.base_offset, one.leader_epoch) for one in heads] == [(o, TERM) for o in (3, 6, 9, 12, 15)]
    assert (part.high_watermark, part.log_start_offset) == (18, 0)


@simulated
async def test_every_limit_holds_across_the_levels() -> None:
    for lifts in (3, 6, 9, 18):
        node = lifted(6, lifts)
        size = len(build())
        for room in range(-40, 7 * size, 40):
            asked = {"fetch_offset": 3, "partition_max_bytes": room}
            part = only(await node.fetch({0: asked}, max_wait=0.01, min_bytes=1 << 20))
            assert bases(part)[0] == 3
            assert len(part.records) <= max(room, size)


@simulated
async def test_partitions_in_level_one_fit_the_answer_together() -> None:
    node = FakeNode()
    node.topic(partitions=4)
    for number in range(4):
        node.partition(number=number).write(*[sized(1000)] * 6)
        node.partition(number=number).reconcile(4, block_bytes=1000)
        node.partition(number=number).read_seconds = 0.01
    response = await node.fetch(dict.fromkeys(range(4), 0), max_bytes=10_000)
    assert sum(len(one.records) for one in parts(response)) <= 10_000
    assert [len(one.records) for one in parts(response)][:1] == [6000]
    assert sum(1 for one in parts(response) if one.records) >= 2


@simulated
async def test_waiting_counts_what_is_in_level_one_without_a_look_at_storage() -> None:
    node = lifted(6, 9)
    size = len(build())
    task = waiting(node, {0: 0}, max_wait=5.0, min_bytes=7 * size)
    await asyncio.sleep(1.0)
    assert not task.done()
    assert node.partition().store.gets == []
    node.partition().write(build())
    await asyncio.sleep(0.1)
    assert len(only(task.result()).records) == 7 * size


@simulated
async def test_damage_in_level_one_is_a_corrupt_message_and_no_records(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = lifted(6, 18)
    ((name, data),) = node.partition().store.objects.items()
    node.partition().store.objects[name] = data[:50] + bytes([data[50] ^ 4]) + data[51:]
    part = only(await node.fetch({0: 0}))
    assert (part.error_code, part.records) == (ErrorCode.corrupt_message, b"")
    assert f"object {name}, bytes 16 to" in caplog.text
    assert only(await node.fetch({0: 15})).error_code is ErrorCode.none


@simulated
async def test_a_start_offset_that_passes_during_the_read_is_out_of_range_once_proven() -> None:
    for lifts in (9, 15):
        node = lifted(6, lifts)
        partition = node.partition()

        def deleted(name: str, partition: FakePartition = partition) -> None:
            partition.trim(15)
            partition.store.objects.clear()

        partition.store.on_get = deleted
        part = only(await node.fetch({0: 3}))
        assert (part.error_code, part.records) == (ErrorCode.offset_out_of_range, b"")
        assert partition.confirmed == 1
        assert bases(only(await node.fetch({0: 15}))) == [15]


@simulated
async def test_who_was_replaced_during_the_read_does_not_say_out_of_range() -> None:
    node = lifted(6, 9)
    partition = node.partition()

    def deleted(name: str) -> None:
        partition.trim(15)
        partition.store.objects.clear()
        partition.confirms = False

    partition.store.on_get = deleted
    assert only(await node.fetch({0: 3})).error_code is ErrorCode.not_leader_or_follower
