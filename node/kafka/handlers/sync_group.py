"""SyncGroup: the leader of a generation brings the assignments, and every member gets its own."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from strandline.node.coordinator.groups.classic_state import SyncAsk, Synced
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.group_coordinators import group_coordinator
from strandline.node.kafka.handlers.outcomes import NO_THROTTLE
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes

_SAYS_PROTOCOL: Final = 5
"""From this version on a client has to say which protocol it means."""


async def sync_group(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """The member's assignment, once its group's leader has assigned."""
    synced = await _synced(context, request)
    return a.SyncGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=synced.code,
        protocol_type=synced.protocol_type,
        protocol_name=synced.protocol,
        assignment=synced.assignment,
    )


async def _synced(context: BrokerContext, request: Request) -> Synced:
    payload = request.payload
    protocol_type, protocol = (getattr(payload, name, None) for name in ("protocol_type", "protocol_name"))
    if request.header.api_version >= _SAYS_PROTOCOL and None in (protocol_type, protocol):
        return Synced(ErrorCode.inconsistent_group_protocol)
    coordinator = group_coordinator(context, payload.group_id)
    if coordinator is ErrorCode.coordinator_load_in_progress:
        # As Kafka: older clients do not know that code here, and all begin again with this one.
        return Synced(ErrorCode.rebalance_in_progress)
    if isinstance(coordinator, ErrorCode):
        return Synced(coordinator)
    ask = SyncAsk(
        payload.member_id,
        getattr(payload, "group_instance_id", None),
        payload.generation_id,
        protocol_type,
        protocol,
        {each.member_id: each.assignment for each in payload.assignments},
    )
    return await coordinator.sync(payload.group_id, ask)
