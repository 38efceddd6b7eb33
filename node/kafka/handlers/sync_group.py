"""SyncGroup: the leader of a generation brings the assignments, and every member gets its own."""

from __future__ import annotations

from typing import Any, Final

from strandline.node.coordinator.groups.classic_state import SyncRequest, SyncResponse
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.handlers.error_codes import code_of
from strandline.node.kafka.handlers.group_coordinators import group_coordinator
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.kafka_errors import KafkaError

_SAYS_PROTOCOL: Final = 5
"""From this version on a client has to say which protocol it means."""


async def sync_group(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """The member's assignment, once its group's leader has assigned."""
    synced = await _synced(context, request)
    return a.SyncGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=code_of(synced.error),
        protocol_type=synced.protocol_type,
        protocol_name=synced.protocol,
        assignment=synced.assignment,
    )


async def _synced(context: BrokerContext, request: Request) -> SyncResponse:
    payload = request.payload
    protocol_type, protocol = (getattr(payload, name, None) for name in ("protocol_type", "protocol_name"))
    if request.header.api_version >= _SAYS_PROTOCOL and None in (protocol_type, protocol):
        return SyncResponse(KafkaError.INCONSISTENT_GROUP_PROTOCOL)
    coordinator = group_coordinator(context, request, Operation.READ, payload.group_id)
    if coordinator is KafkaError.COORDINATOR_LOAD_IN_PROGRESS:
        # As Kafka: older clients do not know that error here, and all begin again with this one.
        return SyncResponse(KafkaError.REBALANCE_IN_PROGRESS)
    if isinstance(coordinator, KafkaError):
        return SyncResponse(coordinator)
    ask = SyncRequest(
        payload.member_id,
        getattr(payload, "group_instance_id", None),
        payload.generation_id,
        protocol_type,
        protocol,
        {each.member_id: each.assignment for each in payload.assignments},
    )
    return await coordinator.sync(payload.group_id, ask)
