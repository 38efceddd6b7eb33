"""DescribeGroups: classic groups with their members. Those of KIP-848 have a request of their own."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from strandline.node.coordinator.groups.classic_state import ClassicGroupState
from strandline.node.coordinator.groups.group_views import CLASSIC, group_view
from strandline.node.kafka.handlers.authorization import NOT_ASKED, operations_of_group
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.handlers.error_codes import code_of
from strandline.node.kafka.handlers.group_coordinators import group_coordinator
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.kafka_errors import KafkaError

_SAYS_NOT_FOUND: Final = 6
"""Before this version a group that is not there is in the state Dead, without an error (KIP-1043)."""


async def describe_groups(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """Each group that was asked for, in that order."""
    return a.DescribeGroupsResponse(
        throttle_time=NO_THROTTLE,
        groups=tuple(_described(context, request, group_id, a) for group_id in request.payload.groups),
    )


def _described(context: BrokerContext, request: Request, group_id: str, a: ResponseTypes) -> Any:
    version = request.header.api_version
    coordinator = group_coordinator(context, request, Operation.DESCRIBE, group_id, may_be_empty=True)
    if isinstance(coordinator, KafkaError):
        return _nothing(a, group_id, code_of(coordinator), None, "")
    operations = operations_of_group(context, request, group_id)
    view = group_view(coordinator, group_id)
    if view is None or view.kind != CLASSIC:
        what = "not found" if view is None else "not a classic group"
        late = version >= _SAYS_NOT_FOUND
        code = ErrorCode.group_id_not_found if late else ErrorCode.none
        return _nothing(
            a,
            group_id,
            code,
            f"Group {group_id} is {what}." if late else None,
            ClassicGroupState.DEAD.value,
            NOT_ASKED if late else operations,
        )
    return a.DescribedGroup(
        error_code=ErrorCode.none,
        error_message=None,
        group_id=group_id,
        group_state=view.state,
        protocol_type=view.protocol_type,
        protocol_data=view.protocol,
        members=tuple(
            a.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in view.members
        ),
        authorized_operations=operations,
    )


def _nothing(
    a: ResponseTypes,
    group_id: str,
    code: ErrorCode,
    message: str | None,
    state: str,
    operations: int = NOT_ASKED,
) -> Any:
    return a.DescribedGroup(
        error_code=code,
        error_message=message,
        group_id=group_id,
        group_state=state,
        protocol_type="",
        protocol_data="",
        members=(),
        authorized_operations=operations,
    )
