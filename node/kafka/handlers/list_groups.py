"""ListGroups: the groups whose coordinators this node leads; a client asks every node."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from strandline.node.coordinator.groups.group_views import group_views
from strandline.node.kafka.handlers.authorization import may_with_cluster, may_with_group
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.internal_topics import GROUPS_TOPIC


async def list_groups(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """List the groups: all, or those in the states (KIP-518) and of the types (KIP-848) of the request.

    COORDINATOR_LOAD_IN_PROGRESS, as in Kafka, while a coordinator that this node was elected for is not
    ready: the client would conclude that its groups do not exist.
    """
    if context.coordinators.loading(GROUPS_TOPIC):
        loading = ErrorCode.coordinator_load_in_progress
        return a.ListGroupsResponse(throttle_time=NO_THROTTLE, error_code=loading, groups=())
    states = [state.lower() for state in getattr(request.payload, "states_filter", ())]
    kinds = [kind.lower() for kind in getattr(request.payload, "types_filter", ())]
    everything = may_with_cluster(context, request, Operation.DESCRIBE, quiet=True)
    groups = tuple(
        a.ListedGroup(
            group_id=view.group_id,
            protocol_type=view.protocol_type,
            group_state=view.state,
            group_type=view.kind,
        )
        for coordinator in context.coordinators.led_groups()
        for view in group_views(coordinator)
        if (not states or view.state.lower() in states)
        and (not kinds or view.kind in kinds)
        and (everything or may_with_group(context, request, Operation.DESCRIBE, view.group_id, quiet=True))
    )
    return a.ListGroupsResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode.none, groups=groups)
