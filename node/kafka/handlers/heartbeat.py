"""Heartbeat: a member of a classic group is there, and learns whether it has to join again."""

from __future__ import annotations

from typing import Any

from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.handlers.error_codes import code_of
from strandline.node.kafka.handlers.group_coordinators import group_coordinator
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.refusal import Cause
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.kafka_errors import KafkaError


async def heartbeat(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """Answer NONE, or the error that makes the member act."""
    payload = request.payload
    found = group_coordinator(context, request, Operation.READ, payload.group_id)
    error: Cause | None
    if found is KafkaError.COORDINATOR_LOAD_IN_PROGRESS:
        # As Kafka: a new leader restarts the member's session timeout anyway.
        error = None
    elif isinstance(found, KafkaError):
        error = found
    else:
        instance_id = getattr(payload, "group_instance_id", None)
        error = found.heartbeat(payload.group_id, payload.member_id, instance_id, payload.generation_id)
    return a.HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=code_of(error))
