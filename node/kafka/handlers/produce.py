"""Produce: checks each partition's batch, hands it to its partition, and answers when all have ended.

Everything up to the staging of the last batch happens before the first `await`: the requests of a connection
are started in their order, so their batches reach every partition in that order, however long each takes.
Batches of transactions that the partition does not know yet are staged too, and verified afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.authorization import ID_REFUSED, may_with_id
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE, data_wait
from strandline.node.kafka.handlers.error_codes import code_of
from strandline.node.kafka.handlers.leading import LeaderHints, led_partition, topic_of
from strandline.node.kafka.handlers.produced_transactions import Questions
from strandline.node.kafka.handlers.topic_rules import TopicRules, limits_of, rules_of, with_append_time
from strandline.node.kafka.wire.handler import CloseConnection, Request
from strandline.node.kafka.wire.record_batch import (
    BatchHeader,
    InvalidBatch,
    validate_at_once,
)
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.partition.batch import AppendResult, ProducedBatch
from strandline.node.partition.partition import Partition
from strandline.node.refusal import Reason, Refusal
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.partition.partition_commands import Appended
from strandline.statemachine.partition.producer_state import NO_TRANSACTION

_KEYLESS: Final = "a compacted topic takes no record without a key"


class _Staged(NamedTuple):
    """A partition with a staged batch; `append_time` is -1 if the client's timestamps count."""

    partition: Partition
    result: asyncio.Future[AppendResult]
    append_time: int
    replicas: int
    """As in ProducedBatch."""


_Outcome: TypeAlias = _Staged | Refusal | ErrorCode
"""Outcome of one partition's batch; an ErrorCode if there is no such partition to write to here."""


async def produce(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """The answer, or None with acks=0; raises CloseConnection for an error that has no answer then."""
    ask = request.payload
    questions = None if ask.transactional_id is None else Questions(context, request, ask.transactional_id)
    refused = questions is not None and not may_with_id(
        context, request, Operation.WRITE, ask.transactional_id
    )
    topics = [
        ID_REFUSED
        if refused
        else topic_of(
            context,
            request,
            Operation.WRITE,
            getattr(asked, "name", None),
            getattr(asked, "topic_id", None),
        )
        for asked in ask.topic_data
    ]
    outcomes = [
        [_stage(context, request, questions, topic, data) for data in asked.partition_data]
        for asked, topic in zip(ask.topic_data, topics, strict=True)
    ]
    if questions is not None:
        questions.ask()
    results = [one.result for of_topic in outcomes for one in of_topic if isinstance(one, _Staged)]
    if pending := [result for result in results if not result.done()]:
        # With acks=0 there is no answer, so no timeout either.
        await _all_done(context.loop, pending, data_wait(ask.timeout) if ask.acks else None)
    if ask.acks == 0:
        _close_on_failure(outcomes)
        return None
    hints = LeaderHints(context, a, request.session.listener)
    responses = tuple(
        a.TopicProduceResponse(
            **_named(asked),
            partition_responses=tuple(
                _answer(a, hints, topic, data.index, outcome)
                for data, outcome in zip(asked.partition_data, of_topic, strict=True)
            ),
        )
        for asked, topic, of_topic in zip(ask.topic_data, topics, outcomes, strict=True)
    )
    return a.ProduceResponse(responses=responses, throttle_time=NO_THROTTLE, node_endpoints=hints.endpoints())


# In.


def _stage(
    context: BrokerContext,
    request: Request,
    questions: Questions | None,
    topic: Topic | ErrorCode,
    data: Any,
) -> _Outcome:
    ask = request.payload
    if ask.acks not in (-1, 0, 1):
        return Refusal(Reason.BAD_ACKS, f"acks is -1, 0 or 1, not {ask.acks}")
    if isinstance(topic, ErrorCode):
        return topic
    partition = led_partition(context, topic, data.index)
    if isinstance(partition, ErrorCode):
        _note_missed(context, request, topic, data)
        return partition
    rules = rules_of(topic.configs)
    now = context.wall_ms()
    try:
        header, rest = validate_at_once(
            data.records, version=request.header.api_version, limits=limits_of(rules, now)
        )
    except InvalidBatch as invalid:
        return invalid.refusal
    transaction, verification = NO_TRANSACTION, None
    if header.is_transactional:
        if questions is None:
            message = "a transactional batch in a request without a transactional id"
            return Refusal(Reason.NO_TRANSACTIONAL_ID, message)
        known = questions.transaction_of(partition, topic, data.index, header)
        if isinstance(known, Refusal):
            return known
        if isinstance(known, int):
            transaction = known
        else:
            verification = known
    records, newest, append_time = data.records, header.max_timestamp, -1
    if rules.append_time:
        records, newest, append_time = with_append_time(records, header, now), now, now
    validation = None
    if rest is not None:
        validation = context.loop.run_in_executor(context.work_executor, _validate, rest)
    # With acks=all only, as in Kafka.
    replicas = _beyond_majority(rules, topic) if rules.min_in_sync > 1 and ask.acks == -1 else 0
    batch = _batch(request, header, records, newest, transaction, replicas)
    result = partition.append(batch, validation, verification)
    return _Staged(partition, result, append_time, replicas)


def _beyond_majority(rules: TopicRules, topic: Topic) -> int:
    """Number of replicas that have to hold a batch, if that is more than a commit needs; else 0."""
    return rules.min_in_sync if rules.min_in_sync > topic.replication_factor // 2 + 1 else 0


def _validate(rest: Callable[[], None]) -> Refusal | None:
    """Run the slow checks of records, in a thread; returns their refusal, or None."""
    try:
        rest()
    except InvalidBatch as invalid:
        return invalid.refusal
    return None


def _batch(
    request: Request,
    header: BatchHeader,
    records: bytes,
    newest: int,
    transaction: int,
    replicas: int,
) -> ProducedBatch:
    return ProducedBatch(
        records,
        header.record_count,
        newest,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        request.connection,
        transaction,
        replicas,
    )


def _note_missed(context: BrokerContext, request: Request, topic: Topic, data: Any) -> None:
    """Note on a replica that does not lead, or not yet, that it missed this batch.

    It may lead when the next batch of the same producer comes, a moment later on the same connection. Its
    state may not have the producer then, and the later batch would be taken for the producer's first.
    """
    replica = context.partitions.get(topic.topic_id, data.index)
    if replica is None:
        return
    limits = limits_of(rules_of(topic.configs), context.wall_ms())
    try:
        header, _ = validate_at_once(data.records, version=request.header.api_version, limits=limits)
    except InvalidBatch:
        return
    replica.missed(_batch(request, header, data.records, header.max_timestamp, NO_TRANSACTION, 0))


# Out.


async def _all_done(
    loop: asyncio.AbstractEventLoop, results: list[asyncio.Future[AppendResult]], seconds: float | None
) -> None:
    """Wait for all results, at most this long; the others go on after that.

    asyncio.wait does the same for three times the price, on the path of every produce request.
    """
    left = len(results)
    over = loop.create_future()

    def one_done(_: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            end()

    def end() -> None:
        if not over.done():
            over.set_result(None)

    for result in results:
        result.add_done_callback(one_done)
    timer = None if seconds is None else loop.call_later(seconds, end)
    try:
        await over
    finally:
        if timer is not None:
            timer.cancel()


def _close_on_failure(outcomes: list[list[_Outcome]]) -> None:
    for of_topic in outcomes:
        for outcome in of_topic:
            failed = outcome.result.result() if isinstance(outcome, _Staged) else outcome
            if isinstance(failed, Appended):
                continue
            code, message = (
                (failed, None) if isinstance(failed, ErrorCode) else (code_of(failed), failed.message)
            )
            reason = f"{code.name}: {message}" if message else code.name
            raise CloseConnection(f"a produce request with acks=0 failed: {reason}")


def _answer(
    a: ResponseTypes, hints: LeaderHints, topic: Topic | ErrorCode, index: int, outcome: _Outcome
) -> Any:
    if isinstance(outcome, ErrorCode):
        return _failure(a, hints, topic, index, outcome)
    if isinstance(outcome, Refusal):
        return _refused(a, hints, topic, index, outcome)
    if not outcome.result.done():
        # min.insync.replicas may be all that it waits for.
        reason = Reason.UNDECIDED if outcome.replicas else Reason.LATE
        late = Refusal(reason, "not acknowledged in time; it may be in the log, now or later")
        return _refused(a, hints, topic, index, late)
    result = outcome.result.result()
    if isinstance(result, Refusal):
        return _refused(a, hints, topic, index, result)
    return a.PartitionProduceResponse(
        index=index,
        error_code=ErrorCode.none,
        base_offset=result.base_offset,
        log_append_time=_append_time(outcome, result),
        log_start_offset=outcome.partition.start_offset,
        record_errors=(),
        error_message=None,
    )


def _append_time(staged: _Staged, appended: Appended) -> datetime | None:
    """The broker's time in the batch; None if the client's counts.

    A duplicate has that of the attempt that got there, as in Kafka. Where level zero does not have the batch
    any more that is not known, and None.
    """
    time: int | None = staged.append_time
    if time == -1:
        return None
    if appended.duplicate:
        time = staged.partition.machine.batch_time(appended.base_offset)
    return None if time is None else datetime.fromtimestamp(time / 1000, UTC)


def _refused(
    a: ResponseTypes, hints: LeaderHints, topic: Topic | ErrorCode, index: int, refusal: Refusal
) -> Any:
    return _failure(a, hints, topic, index, code_of(refusal), refusal.message, refusal.records)


def _failure(
    a: ResponseTypes,
    hints: LeaderHints,
    topic: Topic | ErrorCode,
    index: int,
    code: ErrorCode,
    message: str | None = None,
    records: Sequence[int] = (),
) -> Any:
    return a.PartitionProduceResponse(
        index=index,
        error_code=code,
        base_offset=-1,
        log_append_time=None,
        log_start_offset=-1,
        record_errors=tuple(
            a.BatchIndexAndErrorMessage(batch_index=record, batch_index_error_message=_KEYLESS)
            for record in records
        ),
        error_message=message,
        **hints.fields(code, topic, index),
    )


def _named(asked: Any) -> dict[str, Any]:
    name = getattr(asked, "name", None)
    return {"topic_id": asked.topic_id} if name is None else {"name": name}
