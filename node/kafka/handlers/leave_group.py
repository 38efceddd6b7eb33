"""LeaveGroup: members leave, or an administrator removes them, by instance id if static (KIP-345)."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from strandline.node.coordinator.groups.classic_state import Leaving
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.handlers.error_codes import code_of
from strandline.node.kafka.handlers.group_coordinators import group_coordinator
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.kafka_errors import KafkaError

_OF_ALL: Final = (ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress)
"""Errors of the whole request, not of one member: the client asks again, or another node."""


async def leave_group(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """Remove members, with a result for each; before version 3 there is one, and the answer has its code."""
    payload = request.payload
    asked = getattr(payload, "members", None)
    leaving = (
        [Leaving(payload.member_id, None)]
        if asked is None
        else [Leaving(member.member_id, member.group_instance_id) for member in asked]
    )
    found = group_coordinator(context, request, Operation.READ, payload.group_id)
    if isinstance(found, KafkaError):
        return a.LeaveGroupResponse(throttle_time=NO_THROTTLE, error_code=code_of(found), members=())
    codes = [code_of(error) for error in await found.leave(payload.group_id, leaving)]
    failed = next((code for code in codes if code in _OF_ALL), None)
    if failed is not None:
        return a.LeaveGroupResponse(throttle_time=NO_THROTTLE, error_code=failed, members=())
    return a.LeaveGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=codes[0] if asked is None else ErrorCode.none,
        members=tuple(
            a.MemberResponse(member_id=one.member_id, group_instance_id=one.instance_id, error_code=code)
            for one, code in zip(leaving, codes, strict=True)
        ),
    )
