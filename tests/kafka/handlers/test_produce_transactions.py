"""Produce with transactional batches: what the coordinator is asked, when, and what becomes of its answer."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from strandline.node.coordinator.told_numbers import TOLD
from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.node.partition.batch import Verified
from strandline.node.refusal import Refusal
from strandline.statemachine.kafka_errors import KafkaError
from strandline.statemachine.partition.producer_state import OpenTransaction
from tests.kafka.handlers.fake_cluster import Asked
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.handlers.produce_answers import codes, only
from tests.kafka.wire.batches import Record, build
from tests.runtime.jumping_loop import simulated

VERSIONS = range(APIS[ApiKey.PRODUCE].first, APIS[ApiKey.PRODUCE].last + 1)
P = 9
OLD, NEW = 11, 12
"""Newest version whose clients add partitions themselves, first whose do not."""


def batch(sequence: int = 0, *, epoch: int = 0, producer: int = P, count: int = 1) -> bytes:
    return build([Record(b"v")] * count, producer=(producer, epoch, sequence), attributes=0x10)


def made(partitions: int = 1) -> FakeNode:
    node = FakeNode()
    node.topic(partitions=partitions)
    return node


def produce(node: FakeNode, batches: Any, version: int | None = None, **more: Any) -> asyncio.Task[Any]:
    asked = node.produce(batches, version, transactional_id="x", **more)
    return asyncio.get_running_loop().create_task(asked)


def opened(node: FakeNode, number: int = 0) -> OpenTransaction | None:
    return node.partition(number=number).machine.open_transaction(P)


# What is asked.


@pytest.mark.parametrize("version", VERSIONS)
@simulated
async def test_the_first_batch_of_a_transaction_is_verified_and_by_newer_clients_added(version: int) -> None:
    node = made()
    node.verifier.answer = Verified(6)
    topic = node.controller.machine.topic("t")
    assert topic is not None
    answer = only(await produce(node, {0: batch()}, version))
    assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 0)
    assert node.verifier.asked == [Asked("x", P, 0, [(topic.topic_id, 0)], add=version >= NEW)]
    assert opened(node) == OpenTransaction(6, 0, 0)


@simulated
async def test_where_the_transaction_is_open_nobody_is_asked() -> None:
    node = made()
    await produce(node, {0: batch()})
    assert codes(await produce(node, {0: batch(1)})) == [ErrorCode.none]
    assert len(node.verifier.asked) == 1
    assert [one.transaction for one in node.partition().appended] == [1, 1]
    node.partition().end(P, 0, 1)
    node.verifier.answer = Verified(2)
    assert codes(await produce(node, {0: batch(2)})) == [ErrorCode.none]
    assert len(node.verifier.asked) == 2
    assert opened(node) == OpenTransaction(2, 3, 0)


@simulated
async def test_for_a_number_that_was_told_nobody_is_asked() -> None:
    node = made()
    topic = node.controller.machine.topic("t")
    assert topic is not None
    tell = node.cluster.handlers[node.node_id, TOLD]
    await tell(2, [P, 0, 6, [[topic.topic_id, 0]]])
    assert codes(await produce(node, {0: batch()}, OLD)) == [ErrorCode.none]
    assert opened(node) == OpenTransaction(6, 0, 0)
    assert node.verifier.asked == []
    node.partition().end(P, 0, 6)
    # The number of a transaction that has ended says nothing of the one that the batch is in.
    await tell(2, [P, 0, 6, [[topic.topic_id, 0]]])
    node.verifier.answer = Verified(7)
    assert codes(await produce(node, {0: batch(1)}, OLD)) == [ErrorCode.none]
    assert opened(node) == OpenTransaction(7, 2, 0)
    assert len(node.verifier.asked) == 1


@simulated
async def test_a_request_asks_once_for_all_its_partitions_of_a_producer() -> None:
    node = made(4)
    topic = node.controller.machine.topic("t")
    assert topic is not None
    await produce(node, {0: batch()})
    response = await produce(node, {0: batch(1), 1: batch(), 2: batch(producer=8), 3: batch()})
    assert codes(response) == [ErrorCode.none] * 4
    asked = {one.producer_id: one.what for one in node.verifier.asked[1:]}
    assert asked == {P: [(topic.topic_id, 1), (topic.topic_id, 3)], 8: [(topic.topic_id, 2)]}


@simulated
async def test_batches_are_staged_before_anything_is_asked_and_requests_share_the_answer() -> None:
    node = made(2)
    node.verifier.held = asyncio.get_running_loop().create_future()
    first = produce(node, {0: batch(), 1: batch()})
    second = produce(node, {0: batch(1)})
    third = produce(node, {0: build(producer=(8, 0, 0))})
    await asyncio.sleep(0.001)
    assert len(node.verifier.asked) == 1
    assert third.done()
    assert not first.done()
    node.verifier.held.set_result(None)
    assert codes(await first) == [ErrorCode.none] * 2
    assert codes(await second) == [ErrorCode.none]
    assert [one.base_sequence for one in node.partition().appended] == [0, 0, 1]


@simulated
async def test_a_request_that_is_given_up_does_not_take_the_answer_from_others() -> None:
    node = made()
    node.verifier.held = asyncio.get_running_loop().create_future()
    first, second = produce(node, {0: batch()}), produce(node, {0: batch(1)})
    await asyncio.sleep(0.001)
    first.cancel()
    await asyncio.sleep(0.001)
    node.verifier.held.set_result(None)
    assert codes(await second) == [ErrorCode.none]
    assert len(node.partition().appended) == 2, "those behind it were sent in the belief that it comes first"


@simulated
async def test_a_slow_coordinator_is_waited_for_no_longer_than_the_request_says() -> None:
    node = made()
    node.verifier.held = asyncio.get_running_loop().create_future()
    started = asyncio.get_running_loop().time()
    assert codes(await produce(node, {0: batch()}, seconds=0.5)) == [ErrorCode.request_timed_out]
    assert asyncio.get_running_loop().time() - started == pytest.approx(0.5)
    node.verifier.held.set_result(None)
    await asyncio.sleep(0.001)
    assert opened(node) is not None


# What is refused.


@simulated
async def test_a_transactional_batch_needs_a_transactional_id_and_not_the_other_way_round() -> None:
    node = made()
    response = await node.produce({0: batch()})
    assert codes(response) == [ErrorCode.transactional_id_authorization_failed]
    assert not node.partition().appended
    assert codes(await produce(node, {0: build()})) == [ErrorCode.none]
    assert not node.verifier.asked


@simulated
async def test_a_plain_batch_of_a_producer_whose_transaction_is_open_is_refused() -> None:
    node = made()
    await produce(node, {0: batch()})
    plain = build([Record(b"v")], producer=(P, 0, 1))
    assert codes(await produce(node, {0: plain})) == [ErrorCode.invalid_txn_state]


@simulated
async def test_a_newer_clients_transaction_begins_with_sequence_zero() -> None:
    node = made()
    response = await produce(node, {0: batch(3)}, NEW)
    assert codes(response) == [ErrorCode.out_of_order_sequence_number]
    assert not node.verifier.asked
    # An older client's has the epoch of those before, whose state may have expired.
    assert codes(await produce(node, {0: batch(3)}, OLD)) == [ErrorCode.none]


@simulated
async def test_a_newer_clients_second_batch_may_come_while_the_first_is_on_its_way() -> None:
    node = made()
    node.partition().hold = True
    first, second = produce(node, {0: batch()}, NEW), produce(node, {0: batch(1)}, NEW)
    await asyncio.sleep(0.5)
    third = produce(node, {0: batch(2)}, NEW)
    await asyncio.sleep(0.001)
    node.partition().settle()
    assert [codes(await one) for one in (first, second, third)] == [[ErrorCode.none]] * 3
    assert len(node.verifier.asked) == 1


KAFKA = {
    # What the coordinator says: what a producer of versions 3, 11, 12 is told.
    "request_timed_out": ["not_enough_replicas"] * 3,
    "coordinator_load_in_progress": ["not_enough_replicas"] * 3,
    "coordinator_not_available": ["not_enough_replicas"] * 3,
    "not_coordinator": ["not_enough_replicas"] * 3,
    "concurrent_transactions": ["not_enough_replicas", "not_enough_replicas", "concurrent_transactions"],
    "producer_fenced": ["invalid_producer_epoch"] * 3,
    "invalid_producer_epoch": ["invalid_producer_epoch"] * 3,
    "invalid_producer_id_mapping": ["invalid_producer_id_mapping"] * 3,
    "invalid_txn_state": ["invalid_txn_state", "transaction_abortable", "invalid_txn_state"],
}


@pytest.mark.parametrize("said", KAFKA)
@simulated
async def test_what_the_coordinator_refuses_with_is_told_in_a_producers_codes(said: str) -> None:
    for version, told in zip((3, OLD, NEW), KAFKA[said], strict=True):
        node = made(2)
        node.verifier.answer = Refusal(KafkaError[said.upper()], "because")
        response = await produce(node, {0: batch(), 1: batch()}, version)
        assert [code.name for code in codes(response)] == [told] * 2
        if version >= 8:
            assert "because" in only_message(response)
        assert not node.partition().appended
        node.verifier.answer = Verified(1)
        assert codes(await produce(node, {0: batch()}, version)) == [ErrorCode.none], "asked anew"


@pytest.mark.parametrize("version", [3, OLD, NEW])
@simulated
async def test_a_partition_that_is_in_no_transaction_is_refused_alone(version: int) -> None:
    node = made(3)
    node.verifier.answer = Verified(4)
    node.verifier.missing = [1]
    found = codes(await produce(node, {0: batch(), 1: batch(), 2: batch()}, version))
    alone = {3: ErrorCode.invalid_txn_state, OLD: ErrorCode.transaction_abortable, NEW: ErrorCode.none}
    assert found == [ErrorCode.none, alone[version], ErrorCode.none]
    assert opened(node, 2) == OpenTransaction(4, 0, 0)
    assert len(node.verifier.asked) == (1 if version == NEW else 4)


@pytest.mark.parametrize(("said", "version"), [("producer_fenced", OLD), ("invalid_txn_state", NEW)])
@simulated
async def test_what_the_coordinator_refuses_altogether_is_asked_once(said: str, version: int) -> None:
    node = made(2)
    node.verifier.answer = Refusal(KafkaError[said.upper()], "because")
    await produce(node, {0: batch(), 1: batch()}, version)
    assert len(node.verifier.asked) == 1


def only_message(response: Any) -> str:
    return str(response.responses[0].partition_responses[0].error_message)


@simulated
async def test_a_verification_that_breaks_is_logged_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    node = made()
    node.verifier.answer = OSError("no")
    with caplog.at_level(logging.ERROR):
        assert codes(await produce(node, {0: batch()})) == [ErrorCode.not_enough_replicas]
    assert "could not be verified" in caplog.text


# What comes late.


@simulated
async def test_a_batch_whose_transaction_ends_while_it_is_verified_is_refused() -> None:
    node = made()
    node.verifier.held = asyncio.get_running_loop().create_future()
    late = produce(node, {0: batch()}, OLD)
    await asyncio.sleep(0.001)
    node.partition().end(P, 0, 1, commit=False)
    node.verifier.held.set_result(None)
    assert codes(await late) == [ErrorCode.invalid_txn_state]
    assert node.partition().last_stable_offset == 1


@simulated
async def test_a_batch_that_waits_while_its_transaction_ends_is_refused() -> None:
    node = made()
    await produce(node, {0: batch()}, OLD)
    node.partition().hold = True
    late = produce(node, {0: batch(1)}, OLD)
    await asyncio.sleep(0.001)
    node.partition().end(P, 0, 1)
    node.partition().settle()
    assert codes(await late) == [ErrorCode.invalid_txn_state]


@simulated
async def test_a_fenced_producers_late_batch_is_refused_by_its_epoch() -> None:
    node = made()
    await produce(node, {0: batch()})
    node.partition().hold = True
    late = produce(node, {0: batch(1)})
    await asyncio.sleep(0.001)
    node.partition().end(P, 1, 1, commit=False)
    node.partition().settle()
    assert codes(await late) == [ErrorCode.invalid_producer_epoch]
    node.partition().hold = False
    node.verifier.answer = Verified(2)
    assert codes(await produce(node, {0: batch(0, epoch=1)})) == [ErrorCode.none]
    assert opened(node) == OpenTransaction(2, 2, 1)


@simulated
async def test_a_retry_is_answered_as_its_first_time_while_the_transaction_is_open() -> None:
    node = made()
    await produce(node, {0: batch(count=2)})
    again = only(await produce(node, {0: batch(count=2)}))
    assert (again.error_code, again.base_offset) == (ErrorCode.none, 0)
    assert node.partition().high_watermark == 2
    assert len(node.verifier.asked) == 1
