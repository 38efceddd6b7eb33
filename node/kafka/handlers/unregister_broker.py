"""UnregisterBroker (KIP-500), for `kafka-cluster unregister`: forgets a node, as `strandline node remove`.

Kafka forgets a broker that still runs or has replicas, and it comes back. Here both are refused.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.authorization import NO_CLUSTER, may_with_cluster
from strandline.node.kafka.handlers.cluster_changes import submit
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.handlers.failure import Failure
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.controller.node_folders import removing

_SUBMIT_SECONDS = 10.0
"""The request names no time limit."""


async def unregister_broker(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """Answers when the node is forgotten, or refused; its vote in the controller's group ends after that."""
    outcome = NO_CLUSTER
    if may_with_cluster(context, request, Operation.ALTER):
        deadline = context.loop.time() + _SUBMIT_SECONDS
        node = request.payload.broker_id
        if not 0 < node < 2**16:  # no node has it, and no entry of the log can name it
            outcome = Failure(ErrorCode.broker_id_not_registered, f"Node {node} is not registered.")
        else:
            machine = context.controller.machine
            command = removing(machine.folders, machine.feature_level, node)
            result = await submit(context, command, deadline)
            outcome = result if isinstance(result, Failure) else Failure(ErrorCode.none, None)
    return a.UnregisterBrokerResponse(
        throttle_time=NO_THROTTLE, error_code=outcome.code, error_message=outcome.message
    )
