"""DeleteGroups: forget groups without members, with all their offsets."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.handlers.error_codes import code_of
from strandline.node.kafka.handlers.group_coordinators import group_coordinator
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.refusal import Refusal
from strandline.node.runtime.gather import gather_bounded
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.groups.group_commands import DeleteGroup
from strandline.statemachine.kafka_errors import KafkaError, Refused


async def delete_groups(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """Delete the groups, with a result for each once it is decided; a name given twice is answered once."""
    names = dict.fromkeys(request.payload.groups_names)

    async def delete(group_id: str) -> Any:
        code = await _deleted(context, request, group_id)
        return a.DeletableGroupResult(group_id=group_id, error_code=code)

    return a.DeleteGroupsResponse(
        throttle_time=NO_THROTTLE, results=tuple(await gather_bounded(names, delete))
    )


async def _deleted(context: BrokerContext, request: Request, group_id: str) -> ErrorCode:
    coordinator = group_coordinator(context, request, Operation.DELETE, group_id, may_be_empty=True)
    if isinstance(coordinator, KafkaError):
        return code_of(coordinator)
    if coordinator.classic.has_members(group_id):
        # A member joins, and is not in the log yet.
        return ErrorCode.non_empty_group
    done = await coordinator.execute(DeleteGroup(group_id))
    return code_of(done) if isinstance(done, Refusal | Refused) else ErrorCode.none
