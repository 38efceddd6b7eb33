"""DescribeCluster, and the cluster's part of Metadata: nodes, controller, authorized operations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.authorization import NOT_ASKED, cluster_operations
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.statemachine.controller.controller_state import ListenerAddress, NodeRegistration

BROKERS: Final = 1
CONTROLLERS: Final = 2


def live_nodes(context: BrokerContext) -> list[NodeRegistration]:
    """The nodes that are alive."""
    return [node for node in context.controller.machine.nodes.values() if not node.fenced]


def reachable(
    nodes: Iterable[NodeRegistration], listener: str
) -> list[tuple[NodeRegistration, ListenerAddress]]:
    """The nodes that have this listener, and its address there.

    A node without it is left out, as in Kafka: at the address of another of its listeners a client would
    speak the wrong security protocol.
    """
    return [(node, address) for node in nodes if (address := node.address(listener)) is not None]


def controller_id(context: BrokerContext) -> int:
    """The node that clients should send administrative requests to, -1 when no node is alive.

    That is the controller's leader as this node believes now, not the last one the log tells of: without a
    majority nothing new is in the log, and it would go on naming a node that is gone. Every node passes such
    requests on, so while there is no leader, or it is fenced, clients are sent to this node.
    """
    nodes = context.controller.machine.nodes
    for node in (context.controller.leader, context.node_id):
        if node is not None and node in nodes and not nodes[node].fenced:
            return node
    return min((node.node for node in live_nodes(context)), default=-1)


async def describe_cluster(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """The nodes that are alive, and from version 2 on request those that are not."""
    payload = request.payload
    code, message = _refused(getattr(payload, "endpoint_type", BROKERS))
    wanted = live_nodes(context)
    if getattr(payload, "include_fenced_brokers", False):
        wanted = list(context.controller.machine.nodes.values())
    if code is not ErrorCode.none:
        wanted = []
    asked = payload.include_cluster_authorized_operations
    operations = cluster_operations(context, request) if asked else NOT_ASKED
    return a.DescribeClusterResponse(
        throttle_time=NO_THROTTLE,
        error_code=code,
        error_message=message,
        endpoint_type=BROKERS,
        cluster_id=context.controller.machine.cluster_id or "",
        controller_id=controller_id(context),
        brokers=tuple(
            a.DescribeClusterBroker(
                broker_id=node.node,
                host=address.host,
                port=address.port,
                rack=node.rack or None,
                is_fenced=node.fenced,
            )
            for node, address in reachable(wanted, request.session.listener)
        ),
        cluster_authorized_operations=operations,
    )


def _refused(endpoint_type: int) -> tuple[ErrorCode, str | None]:
    if endpoint_type == BROKERS:
        return ErrorCode.none, None
    if endpoint_type == CONTROLLERS:
        reason = (
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
        )
        return ErrorCode.mismatched_endpoint_type, reason
    return ErrorCode.unsupported_endpoint_type, f"Unsupported endpoint type {endpoint_type}"
