"""JoinGroup: become, or stay, a member of a group; answered when the group's join phase is over."""

from __future__ import annotations

from typing import Any, Final

from strandline.node.coordinator.groups.classic_state import JoinRequest, JoinResponse
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.handlers.error_codes import code_of
from strandline.node.kafka.handlers.group_coordinators import group_coordinator
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.kafka_errors import KafkaError

_TAKES_MEMBER_ID: Final = 4
"""Versions from this one on are given a member id and come again with it (KIP-394)."""
_NULL_PROTOCOL: Final = 7
"""From this version on the protocol's name may be null."""
_TAKES_SKIP: Final = 9
"""First version whose clients support leading without assigning (KIP-814)."""


async def join_group(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """The generation the client is in, or why it is in none."""
    payload, version = request.payload, request.header.api_version
    coordinator = group_coordinator(context, request, Operation.READ, payload.group_id)
    if isinstance(coordinator, KafkaError):
        joined = JoinResponse(coordinator, payload.member_id)
    else:
        joined = await coordinator.join(payload.group_id, _ask(request))
    none = None if version >= _NULL_PROTOCOL else ""
    return a.JoinGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=code_of(joined.error),
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=none if joined.protocol is None else joined.protocol,
        leader=joined.leader,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member_id,
        members=tuple(
            a.JoinGroupResponseMember(member_id=member_id, group_instance_id=instance_id, metadata=metadata)
            for member_id, instance_id, metadata in joined.members
        ),
    )


def _ask(request: Request) -> JoinRequest:
    payload, version = request.payload, request.header.api_version
    # Version 0 has one timeout for both, as Kafka's JoinGroupRequest has it.
    rebalance = payload.rebalance_timeout if version > 0 else payload.session_timeout
    return JoinRequest(
        payload.member_id,
        getattr(payload, "group_instance_id", None),
        request.header.client_id or "",
        f"/{request.client_host}",  # as Java writes an address without a name
        payload.session_timeout.total_seconds(),
        max(rebalance.total_seconds(), 0.0),
        payload.protocol_type,
        [(protocol.name, protocol.metadata) for protocol in payload.protocols],
        takes_member_id=version >= _TAKES_MEMBER_ID,
        takes_skip=version >= _TAKES_SKIP,
    )
