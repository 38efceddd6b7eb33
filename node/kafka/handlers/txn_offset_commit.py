"""TxnOffsetCommit: make how far a group has come a part of a transaction (KIP-98, KIP-447, KIP-890).

Two fences stand here. The transaction's coordinator says whether the group is in the transaction that is open
now, and which number that has; and the group's log says, when the offsets are applied, whether that
transaction has ended meanwhile and whether the member still is one.
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from strandline.node.coordinator.groups.coordinator import GroupCoordinator
from strandline.node.kafka.handlers.authorization import (
    GROUP_REFUSED,
    ID_REFUSED,
    may_with_group,
    may_with_id,
)
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.handlers.error_codes import code_of
from strandline.node.kafka.handlers.group_coordinators import group_coordinator
from strandline.node.kafka.handlers.offset_rows import (
    OffsetRows,
    check_offsets,
    outcome_code,
    unchecked_offsets,
)
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.partition.batch import Verified
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.groups.group_commands import NO_GENERATION, NO_MEMBER, CommitTransactionOffsets
from strandline.statemachine.kafka_errors import KafkaError

_FIRST_THAT_ADDS: Final = 5
_FIRST_THAT_ABORTS: Final = 4
"""First version whose clients abort on TRANSACTION_ABORTABLE (KIP-1050)."""
_FIRST_WITH_LOADING: Final = 2
_NOT_KNOWN_YET: Final = (
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.request_timed_out,
)
"""Errors of the transaction's coordinator that a client would take for errors of the group's: it would look
for the group's coordinator again."""


async def txn_offset_commit(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """The answer once the offsets are pending in their transaction; they share one outcome."""
    version = request.header.api_version
    topics, code = request.payload.topics, _refused(context, request)
    if code is ErrorCode.none:
        rows = check_offsets(context, request, topics)
        if rows.offsets:
            code = await _commit(context, request, rows)
    else:
        rows = unchecked_offsets(topics)
    if code is ErrorCode.concurrent_transactions and version < _FIRST_THAT_ADDS:
        code = ErrorCode.coordinator_load_in_progress
    if code is ErrorCode.coordinator_load_in_progress and version < _FIRST_WITH_LOADING:
        code = ErrorCode.coordinator_not_available
    return a.TxnOffsetCommitResponse(
        throttle_time=NO_THROTTLE,
        topics=rows.answers(code, a.TxnOffsetCommitResponseTopic, a.TxnOffsetCommitResponsePartition),
    )


def _refused(context: BrokerContext, request: Request) -> ErrorCode:
    payload = request.payload
    if not may_with_id(context, request, Operation.WRITE, payload.transactional_id):
        return ID_REFUSED
    if not may_with_group(context, request, Operation.READ, payload.group_id):
        return GROUP_REFUSED
    return ErrorCode.none


async def _commit(context: BrokerContext, request: Request, rows: OffsetRows) -> ErrorCode:
    payload = request.payload
    coordinator = group_coordinator(context, request, Operation.READ, payload.group_id)
    if isinstance(coordinator, KafkaError):
        return code_of(coordinator)
    number = await _number(context, coordinator, request)
    if isinstance(number, ErrorCode):
        return number
    command = CommitTransactionOffsets(
        payload.group_id,
        getattr(payload, "member_id", NO_MEMBER),
        getattr(payload, "generation_id", NO_GENERATION),
        getattr(payload, "group_instance_id", None),
        payload.producer_id,
        payload.producer_epoch,
        number,
        rows.offsets,
    )
    return outcome_code(await coordinator.commit(command))


async def _number(context: BrokerContext, coordinator: GroupCoordinator, request: Request) -> int | ErrorCode:
    """The number of the open transaction that the group is in."""
    payload = request.payload
    known = coordinator.machine.producers.get(payload.producer_id)
    if known is not None and known.epoch == payload.producer_epoch and payload.group_id in known.groups:
        return known.open
    add = request.header.api_version >= _FIRST_THAT_ADDS
    answer = await context.verifier.group(
        payload.transactional_id, payload.producer_id, payload.producer_epoch, payload.group_id, add=add
    )
    if isinstance(answer, Verified):
        return answer.number
    return _group_code(code_of(answer), add=add, request=request)


def _group_code(code: ErrorCode, *, add: bool, request: Request) -> ErrorCode:
    """The code that a client expects of the group's coordinator, for an error of the transaction's.

    See Kafka's AddPartitionsToTxnManager. On a code that it does not expect, a client gives up its producer.
    """
    if code in _NOT_KNOWN_YET:
        return ErrorCode.coordinator_load_in_progress
    if code is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    if code is ErrorCode.invalid_txn_state and not add and request.header.api_version >= _FIRST_THAT_ABORTS:
        return ErrorCode.transaction_abortable
    return code
