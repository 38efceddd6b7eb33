"""DescribeTransactions: the producer of a transactional id, and the partitions of its newest transaction."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.authorization import may_with_topic
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.handlers.error_codes import code_of
from strandline.node.kafka.handlers.transactional_ids import coordinator_for
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.refusal import Refusal
from strandline.node.runtime.gather import gather_bounded
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.internal_topics import GROUPS_TOPIC, coordinator_of
from strandline.statemachine.kafka_errors import KafkaError
from strandline.statemachine.transactions.transaction_state import Transaction

MAX_IDS: Final = 10_000
"""Ids of one request; Kafka has no bound."""


async def describe_transactions(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """Each id as of now, or NOT_COORDINATOR, TRANSACTIONAL_ID_NOT_FOUND, INVALID_REQUEST for an empty one."""

    async def describe(transactional_id: str) -> Any:
        if len(ids) > MAX_IDS:
            return _nothing(a, transactional_id, ErrorCode.invalid_request)
        coordinator = coordinator_for(context, request, Operation.DESCRIBE, transactional_id)
        if isinstance(coordinator, KafkaError):
            return _nothing(a, transactional_id, code_of(coordinator))
        found = await coordinator.describe(transactional_id)
        if isinstance(found, Refusal):
            return _nothing(a, transactional_id, code_of(found))
        return _described(context, request, a, found)

    ids = request.payload.transactional_ids
    states = await gather_bounded(ids, describe)
    return a.DescribeTransactionsResponse(throttle_time=NO_THROTTLE, transaction_states=tuple(states))


def topics_of(context: BrokerContext, one: Transaction) -> dict[str, list[int]]:
    """A transaction's partitions by topic; groups are partitions of their offsets' topic, as in Kafka.

    A topic that was deleted since is left out.
    """
    machine = context.controller.machine
    topics: dict[str, list[int]] = {}
    for topic_id, number in sorted(one.partitions):
        topic = machine.topic_by_id(topic_id)
        if topic is not None:
            topics.setdefault(topic.name, []).append(number)
    offsets = machine.topic(GROUPS_TOPIC)
    if offsets is not None and one.groups:
        count = len(offsets.partitions)
        topics[GROUPS_TOPIC] = sorted({coordinator_of(group, count) for group in one.groups})
    return topics


def _described(context: BrokerContext, request: Request, a: ResponseTypes, one: Transaction) -> Any:
    return a.TransactionState(
        error_code=ErrorCode.none,
        transactional_id=one.transactional_id,
        transaction_state=one.state.value,
        transaction_timeout=timedelta(milliseconds=one.timeout_ms),
        transaction_start_time=_time(one.started),
        producer_id=one.producer_id,
        producer_epoch=one.epoch,
        topics=tuple(
            a.TopicData(topic=topic, partitions=tuple(numbers))
            for topic, numbers in topics_of(context, one).items()
            if may_with_topic(context, request, Operation.DESCRIBE, topic, quiet=True)
        ),
    )


def _nothing(a: ResponseTypes, transactional_id: str, code: ErrorCode) -> Any:
    return a.TransactionState(
        error_code=code,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout=timedelta(0),
        transaction_start_time=_time(0),
        producer_id=0,
        producer_epoch=0,
        topics=(),
    )


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds)
