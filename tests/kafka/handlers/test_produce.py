"""Produce, rule by rule: what is judged, where it goes, in which order, and how each end is answered."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from strandline.node.controller.leaders import Leader
from strandline.node.kafka.handlers.deadlines import UNTIMED_SECONDS
from strandline.node.kafka.handlers.topic_rules import rules_of
from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.node.kafka.wire.handler import CloseConnection
from strandline.node.kafka.wire.record_batch import BatchLimits, read_header, validate_produced
from strandline.node.refusal import Reason, Refusal
from strandline.statemachine.controller.controller_commands import ReplaceTopicConfigs
from strandline.statemachine.kafka_errors import KafkaError
from strandline.statemachine.partition.producer_state import NO_TRANSACTION
from tests.kafka.handlers.fake_cluster import TERM
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.handlers.fake_partition import NOW
from tests.kafka.handlers.produce_answers import codes, only
from tests.kafka.wire.batches import Record, build
from tests.runtime.jumping_loop import simulated

VERSIONS = range(APIS[ApiKey.PRODUCE].first, APIS[ApiKey.PRODUCE].last + 1)


# What is answered when all goes well.


@pytest.mark.parametrize("version", VERSIONS)
@simulated
async def test_the_answer_of_every_version_names_the_first_offset(version: int) -> None:
    node = FakeNode()
    node.topic()
    node.partition().write(build())
    answer = only(await node.produce({0: build()}, version))
    assert (answer.error_code, answer.base_offset, answer.log_append_time) == (ErrorCode.none, 3, None)
    if version >= 5:
        assert answer.log_start_offset == 0


@pytest.mark.parametrize("acks", [-1, 1])
@simulated
async def test_acks_one_waits_as_long_as_acks_all(acks: int) -> None:
    node = FakeNode()
    node.topic()
    node.partition().hold = True
    asked = asyncio.ensure_future(node.produce({0: build()}, acks=acks))
    await asyncio.sleep(0.5)
    assert not asked.done()
    node.partition().settle()
    assert codes(await asked) == [ErrorCode.none]


@simulated
async def test_the_batch_arrives_as_it_was_sent_with_what_its_header_says() -> None:
    node = FakeNode()
    node.topic()
    sent = build(producer=(9, 2, 5))
    await node.produce({0: sent})
    (batch,) = node.partition().appended
    newest = read_header(sent).max_timestamp
    assert batch == (sent, 3, newest, 9, 2, 5, 1, NO_TRANSACTION, 0)


@simulated
async def test_partitions_of_several_topics_are_answered_in_the_order_of_the_request() -> None:
    node = FakeNode()
    node.topic("a", 2)
    node.topic("b")
    node.partition("a", 1).write(build())
    response = await node.produce({("a", 1): build(), ("a", 0): build(), ("b", 0): build()}, 9)
    answers = [
        (topic.name, one.index, one.base_offset)
        for topic in response.responses
        for one in topic.partition_responses
    ]
    assert answers == [("a", 1, 3), ("a", 0, 0), ("b", 0, 0)]


@simulated
async def test_a_duplicate_is_answered_as_its_first_time() -> None:
    node = FakeNode()
    node.topic()
    batch = build(producer=(9, 0, 0))
    await node.produce({0: batch})
    await node.produce({0: build(producer=(9, 0, 3))})
    answer = only(await node.produce({0: batch}))
    assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 0)


# Order.


@simulated
async def test_all_partitions_are_staged_before_anything_is_awaited() -> None:
    node = FakeNode()
    node.topic(partitions=3)
    for number in range(3):
        node.partition(number=number).hold = True
    asked = asyncio.ensure_future(node.produce(dict.fromkeys(range(3), build())))
    await asyncio.sleep(0)
    assert [len(node.partition(number=number).appended) for number in range(3)] == [1, 1, 1]
    for number in range(3):
        node.partition(number=number).settle()
    await asked


@simulated
async def test_requests_reach_a_partition_in_the_order_of_their_start_whatever_each_waits_for() -> None:
    node = FakeNode()
    node.topic(partitions=2)
    node.partition(number=0).hold = node.partition(number=1).hold = True
    sent = [build([Record(b"%d" % number)]) for number in range(5)]
    asked = [
        asyncio.ensure_future(node.produce({number % 2: sent[number], 1 - number % 2: sent[number]}))
        for number in range(5)
    ]
    await asyncio.sleep(0)
    for number in range(2):
        assert [batch.data for batch in node.partition(number=number).appended] == sent
        node.partition(number=number).settle()
    await asyncio.gather(*asked)


# One partition's error is not another's.


@simulated
async def test_errors_are_each_partitions_own() -> None:
    node = FakeNode()
    node.topic(partitions=3)
    node.partition(number=1).fail = Refusal(Reason.STORAGE_FAILED, "the store says no")
    response = await node.produce({0: build(crc=1), 1: build(), 2: build()})
    assert codes(response) == [ErrorCode.corrupt_message, ErrorCode.kafka_storage_error, ErrorCode.none]
    messages = [one.error_message for one in response.responses[0].partition_responses]
    assert "CRC-32C" in messages[0]
    assert messages[1:] == ["the store says no", None]
    assert not node.partition(number=0).appended


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (Reason.OUT_OF_ORDER, ErrorCode.out_of_order_sequence_number),
        (Reason.STALE_PRODUCER_EPOCH, ErrorCode.invalid_producer_epoch),
        (Reason.NOT_NOW, ErrorCode.not_enough_replicas),
        (Reason.UNDECIDED, ErrorCode.not_enough_replicas_after_append),
        (Reason.TOO_FEW_HOLD, ErrorCode.not_enough_replicas_after_append),
        (Reason.TOO_MANY_ABORTED, ErrorCode.policy_violation),
        (KafkaError.CONCURRENT_TRANSACTIONS, ErrorCode.concurrent_transactions),
    ],
)
@simulated
async def test_what_a_partition_refuses_with_is_passed_on(
    reason: Reason | KafkaError, code: ErrorCode
) -> None:
    node = FakeNode()
    node.topic()
    node.partition().fail = Refusal(reason, "why")
    answer = only(await node.produce({0: build()}))
    assert (answer.error_code, answer.error_message) == (code, "why")
    assert (answer.base_offset, answer.log_start_offset) == (-1, -1)


@simulated
async def test_an_unknown_topic_or_partition() -> None:
    node = FakeNode()
    node.topic()
    asked: dict[Any, Any] = {("t", 1): build(), ("t", -1): build(), ("u", 0): build()}
    assert codes(await node.produce(asked, 12)) == [ErrorCode.unknown_topic_or_partition] * 3


@simulated
async def test_an_unknown_topic_id() -> None:
    node = FakeNode()
    asked: dict[Any, Any] = {(uuid.UUID(int=5), 0): build(), (None, 0): build()}
    assert codes(await node.produce(asked, 13)) == [ErrorCode.unknown_topic_id] * 2


@pytest.mark.parametrize("acks", [2, -2, 300])
@simulated
async def test_other_acks_are_refused_for_every_partition(acks: int) -> None:
    node = FakeNode()
    node.topic(partitions=2)
    response = await node.produce({0: build(), 1: build()}, acks=acks)
    assert codes(response) == [ErrorCode.invalid_required_acks] * 2
    assert not node.partition().appended


@simulated
async def test_no_records_are_invalid_records() -> None:
    node = FakeNode()
    node.topic(partitions=2)
    assert codes(await node.produce({0: None, 1: b""})) == [ErrorCode.invalid_record] * 2


# What the topic says.


@simulated
async def test_a_batch_above_the_topics_limit_is_too_large() -> None:
    node = FakeNode()
    batch = build()
    node.topic("exact", max_message_bytes=str(len(batch)))
    node.topic("less", max_message_bytes=str(len(batch) - 1))
    asked: dict[Any, Any] = {("exact", 0): batch, ("less", 0): batch}
    assert codes(await node.produce(asked)) == [ErrorCode.none, ErrorCode.message_too_large]


@simulated
async def test_the_default_limit_is_kafkas() -> None:
    node = FakeNode()
    node.topic()
    room = 1024 * 1024 + 12
    batch = build([Record(bytes(room - 90))])
    fits = build([Record(bytes(room - 90 + room - len(batch)))])
    assert len(fits) == room
    above = build([Record(bytes(room - 89 + room - len(batch)))])
    assert codes(await node.produce({0: fits})) == [ErrorCode.none]
    assert codes(await node.produce({0: above})) == [ErrorCode.message_too_large]


@simulated
async def test_timestamps_outside_the_topics_bounds_are_refused() -> None:
    node = FakeNode()
    node.topic("t", message_timestamp_before_max_ms="1000", message_timestamp_after_max_ms="2000")
    times = {NOW - 1001: 32, NOW - 1000: 0, NOW + 2000: 0, NOW + 2001: 32}
    for time, code in times.items():
        response = await node.produce({0: build([Record(b"v", time)])})
        assert codes(response) == [ErrorCode(code)], time - NOW


@simulated
async def test_by_default_a_record_may_be_old_but_not_an_hour_ahead() -> None:
    node = FakeNode()
    node.topic()
    assert codes(await node.produce({0: build([Record(b"v", 0)])})) == [ErrorCode.none]
    hour = 60 * 60 * 1000
    assert codes(await node.produce({0: build([Record(b"v", NOW + hour + 1)])})) == [
        ErrorCode.invalid_timestamp
    ]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
@simulated
async def test_a_compacted_topic_takes_no_record_without_a_key(policy: str, version: int) -> None:
    node = FakeNode()
    node.topic("t", cleanup_policy=policy)
    keyed = [Record(b"v", key=b"k"), Record(b"", key=b"")]
    assert codes(await node.produce({0: build(keyed)}, version)) == [ErrorCode.none]
    answer = only(await node.produce({0: build([*keyed, Record(b"v"), *keyed, Record(b"v")])}, version))
    assert answer.error_code is ErrorCode.invalid_record
    if version >= 8:
        assert [one.batch_index for one in answer.record_errors] == [2, 5]
        assert all("without a key" in one.batch_index_error_message for one in answer.record_errors)
        assert answer.error_message.endswith("2 of the batch's 6 have none, the first of them record 2")
    assert len(node.partition().appended) == 1


@pytest.mark.parametrize(
    ("wanted", "acks", "replicas"),
    [("1", -1, 0), ("2", -1, 0), ("3", -1, 3), ("3", 1, 0), ("3", 0, 0)],
)
@simulated
async def test_only_more_replicas_than_a_majority_are_asked_for(
    wanted: str, acks: int, replicas: int
) -> None:
    node = FakeNode()
    node.topic("t", min_insync_replicas=wanted)
    await node.produce({0: build()}, acks=acks)
    (batch,) = node.partition().appended
    assert batch.replicas == replicas


@pytest.mark.parametrize(
    ("wanted", "code"),
    [("2", ErrorCode.request_timed_out), ("3", ErrorCode.not_enough_replicas_after_append)],
)
@simulated
async def test_what_is_not_on_enough_replicas_in_time_may_be_in_the_log(wanted: str, code: ErrorCode) -> None:
    node = FakeNode()
    node.topic("t", min_insync_replicas=wanted)
    node.partition().hold = True
    assert codes(await node.produce({0: build()}, seconds=0.1)) == [code]
    node.partition().settle()


@simulated
async def test_a_topic_may_become_compacted_and_a_batch_of_many_is_looked_at_in_a_thread() -> None:
    node = FakeNode()
    topic = node.topic()
    many = build([Record(b"v", key=b"k")] * 3_000 + [Record(b"v")] * 150)
    assert codes(await node.produce({0: many})) == [ErrorCode.none]
    node.cluster.apply(ReplaceTopicConfigs(topic.topic_id, [("cleanup.policy", "compact")]))
    node.controller.hear()
    asked = asyncio.ensure_future(node.produce({0: many}))
    await asyncio.sleep(0)
    assert not asked.done()
    answer = only(await asked)
    assert answer.error_code is ErrorCode.invalid_record
    assert [one.batch_index for one in answer.record_errors] == list(range(3_000, 3_100))
    assert "at least 100 of the batch's 3150 have none" in answer.error_message
    assert len(node.partition().appended) == 1


@simulated
async def test_a_retry_is_told_the_append_time_that_its_batch_has() -> None:
    node = FakeNode()
    node.topic("t", message_timestamp_type="LogAppendTime")
    batches = [build(producer=(7, 0, sequence)) for sequence in (0, 3, 6)]
    times = [NOW, NOW + 1_000, NOW + 2_000]
    for batch, node.now_ms in zip(batches, times, strict=True):
        await node.produce({0: batch})
    node.now_ms = NOW + 60_000
    again = [only(await node.produce({0: batch})) for batch in batches]
    assert [each.base_offset for each in again] == [0, 3, 6]
    assert [each.log_append_time for each in again] == [datetime.fromtimestamp(t / 1000, UTC) for t in times]
    node.partition().machine.extents.trim(3)
    first, second = [only(await node.produce({0: batch})) for batch in batches[:2]]
    assert (first.base_offset, first.log_append_time) == (0, None), "its time is not known here any more"
    assert second.log_append_time == datetime.fromtimestamp(times[1] / 1000, UTC)


@pytest.mark.parametrize("version", VERSIONS)
@simulated
async def test_log_append_time_replaces_the_clients_times(version: int) -> None:
    node = FakeNode()
    node.topic("t", message_timestamp_type="LogAppendTime")
    node.now_ms = NOW + 12_345
    sent = build([Record(b"v", 5), Record(b"w", NOW * 2)])
    answer = only(await node.produce({0: sent}, version))
    assert answer.error_code is ErrorCode.none
    assert answer.log_append_time == datetime.fromtimestamp(node.now_ms / 1000, UTC)
    (batch,) = node.partition().appended
    assert batch.max_timestamp == node.now_ms
    before, after = read_header(sent), read_header(batch.data)
    assert after.has_log_append_time
    assert after == before._replace(
        attributes=before.attributes | 8, max_timestamp=node.now_ms, crc=after.crc
    )
    assert bytes(batch.data)[61:] == sent[61:]
    # The CRC is right: all that is wrong with it for a client to send it is whose time it is.
    with pytest.raises(Exception, match="only the broker sets log append time"):
        validate_produced(batch.data, version=version, limits=BatchLimits())


def test_the_rules_of_a_topic_are_read_once() -> None:
    assert rules_of({"max.message.bytes": "7"}) is rules_of({"max.message.bytes": "7", "retention.ms": "1"})
    assert rules_of({}).max_batch_bytes == 1024 * 1024 + 12


# Transactions do not exist.


# Leaders.


@pytest.mark.parametrize("version", VERSIONS)
@simulated
async def test_not_the_leader_and_who_is(version: int) -> None:
    node = FakeNode()
    topic = node.topic()
    node.partition().resign()
    node.leaders.others[topic.partitions[0].group] = Leader(2, 9)
    response = await node.produce({0: build()}, version)
    answer = only(response)
    assert answer.error_code is ErrorCode.not_leader_or_follower
    if version >= 10:
        assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (2, 9)
        (endpoint,) = response.node_endpoints
        assert (endpoint.node_id, endpoint.host, endpoint.port, endpoint.rack) == (2, "n2", 9002, None)


@simulated
async def test_a_partition_without_a_replica_here_is_led_elsewhere() -> None:
    node = FakeNode()
    topic = node.topic(partitions=2)
    for number in range(2):
        del node.partitions.replicas[topic.topic_id, number]
        node.leaders.others[topic.partitions[number].group] = Leader(3, 9)
    response = await node.produce({0: build(), 1: build()})
    assert codes(response) == [ErrorCode.not_leader_or_follower] * 2
    assert [endpoint.node_id for endpoint in response.node_endpoints] == [3]


@simulated
async def test_no_hint_where_no_leader_is_known_or_this_node_is_not_ready() -> None:
    node = FakeNode()
    topic = node.topic()
    node.partition().resign()
    for leader in (None, Leader(1, TERM + 1), Leader(77, 9)):
        node.leaders.others[topic.partitions[0].group] = leader
        response = await node.produce({0: build()})
        assert only(response).current_leader.leader_id == -1
        assert response.node_endpoints == ()


@simulated
async def test_leadership_lost_during_a_produce() -> None:
    node = FakeNode()
    topic = node.topic()
    partition = node.partition()
    partition.hold = True
    asked = asyncio.ensure_future(node.produce({0: build()}))
    await asyncio.sleep(0.1)
    partition.resign()
    node.leaders.others[topic.partitions[0].group] = Leader(2, 9)
    partition.fail = Refusal(Reason.NOT_LEADER, "deposed")
    partition.settle()
    response = await asked
    assert only(response).error_code is ErrorCode.not_leader_or_follower
    assert only(response).current_leader.leader_id == 2
    assert len(response.node_endpoints) == 1


# Time.


@simulated
async def test_a_timeout_answers_what_is_not_done_and_the_write_goes_on() -> None:
    node = FakeNode()
    node.topic(partitions=2)
    slow = node.partition(number=1)
    slow.hold = True
    started = node.loop.time()
    response = await node.produce({0: build(), 1: build()}, seconds=2.5)
    assert node.loop.time() - started == pytest.approx(2.5, abs=0.01)
    assert codes(response) == [ErrorCode.none, ErrorCode.request_timed_out]
    ((_, future),) = slow.held
    assert not future.cancelled()
    slow.settle()
    assert slow.high_watermark == 3


@pytest.mark.parametrize("seconds", [0.0, -1.0])
@pytest.mark.parametrize("acks", [1, -1])
@simulated
async def test_a_timeout_of_0_is_no_bound_of_the_client_s(acks: int, seconds: float) -> None:
    node = FakeNode()
    node.topic()
    node.partition().hold = True
    asked = asyncio.ensure_future(node.produce({0: build()}, acks=acks, seconds=seconds))
    await asyncio.sleep(5)
    node.partition().settle()
    assert codes(await asked) == [ErrorCode.none]
    began = node.loop.time()
    assert codes(await node.produce({0: build()}, acks=acks, seconds=seconds)) == [
        ErrorCode.request_timed_out
    ]
    assert node.loop.time() - began == pytest.approx(UNTIMED_SECONDS)
    node.partition().settle()


@simulated
async def test_the_answer_does_not_wait_for_the_timeout() -> None:
    node = FakeNode()
    node.topic(partitions=2)
    for number in range(2):
        node.partition(number=number).hold = True
        node.loop.call_later(0.1 + number, node.partition(number=number).settle)
    started = node.loop.time()
    assert codes(await node.produce({0: build(), 1: build()}, seconds=30)) == [ErrorCode.none] * 2
    assert node.loop.time() - started == pytest.approx(1.1, abs=0.01)


# acks=0.


@simulated
async def test_acks_zero_is_answered_by_nothing_once_it_is_written() -> None:
    node = FakeNode()
    node.topic()
    node.partition().hold = True
    asked = asyncio.ensure_future(node.produce({0: build()}, acks=0))
    await asyncio.sleep(10)
    assert not asked.done(), "there is nobody to be told of a timeout"
    node.partition().settle()
    assert await asked is None
    assert node.partition().high_watermark == 3


@pytest.mark.parametrize("failure", ["unknown", "refused", "failed"])
@simulated
async def test_acks_zero_closes_the_connection_on_any_error(failure: str) -> None:
    node = FakeNode()
    node.topic(partitions=2)
    batches: dict[Any, Any] = {0: build(), 1: build()}
    if failure == "unknown":
        batches[7] = build()
    elif failure == "refused":
        batches[1] = build(crc=1)
    else:
        node.partition(number=1).fail = Refusal(Reason.STORAGE_FAILED, "full")
    with pytest.raises(CloseConnection, match="acks=0"):
        await node.produce(batches, acks=0)
    assert node.partition().high_watermark == 3, "the others are written all the same"
