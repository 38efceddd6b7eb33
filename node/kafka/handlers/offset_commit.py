"""OffsetCommit: commits a group's offsets, for one of its members, or for any client while it has none.

Nothing is awaited before the command is in the log, so the commits of a connection are applied in the order
in which they came, even if several are in progress.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.authorization import GROUP_REFUSED, may_with_group
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
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.groups.group_commands import NO_RETENTION, CommitOffsets
from strandline.statemachine.kafka_errors import KafkaError

_FIRST_WITH_MEMBER_EPOCHS: Final = 9
_BEFORE: Final[Mapping[ErrorCode, ErrorCode]] = MappingProxyType(
    {
        ErrorCode.stale_member_epoch: ErrorCode.unsupported_version,
        ErrorCode.group_id_not_found: ErrorCode.illegal_generation,
    }
)
"""Error codes for clients of a version before KIP-848, as in Kafka."""


async def offset_commit(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """The answer once the offsets are in the log; those that can be committed share one outcome."""
    topics, code = request.payload.topics, ErrorCode.none
    if may_with_group(context, request, Operation.READ, request.payload.group_id):
        rows = check_offsets(context, request, topics)
        if rows.offsets:
            code = await _commit(context, request, rows)
    else:
        rows, code = unchecked_offsets(topics), GROUP_REFUSED
    return a.OffsetCommitResponse(
        throttle_time=NO_THROTTLE,
        topics=rows.answers(code, a.OffsetCommitResponseTopic, a.OffsetCommitResponsePartition),
    )


async def _commit(context: BrokerContext, request: Request, rows: OffsetRows) -> ErrorCode:
    payload = request.payload
    coordinator = group_coordinator(context, request, Operation.READ, payload.group_id, may_be_empty=True)
    if isinstance(coordinator, KafkaError):
        return code_of(coordinator)
    command = CommitOffsets(
        payload.group_id,
        payload.member_id,
        payload.generation_id_or_member_epoch,
        getattr(payload, "group_instance_id", None),
        rows.offsets,
        _retention_ms(getattr(payload, "retention_time", None)),
    )
    code = outcome_code(await coordinator.commit(command))
    if code is ErrorCode.none:
        coordinator.restart_session(payload.group_id, payload.member_id)
    return code if request.header.api_version >= _FIRST_WITH_MEMBER_EPOCHS else _BEFORE.get(code, code)


def _retention_ms(asked: timedelta | None) -> int:
    """The retention that versions 2 to 4 may ask for; below 0, and in later versions, the cluster's holds."""
    if asked is None or asked < timedelta(0):
        return NO_RETENTION
    return asked // timedelta(milliseconds=1)
