"""FindCoordinator: there are no groups and no transactions yet, and clients are told so in a way they end on.

The request is answered at all because librdkafka takes its being spoken for the sign that a broker reads lz4.
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from node.kafka.answers import Answers
from node.kafka.handler import Request
from node.kafka.requests.context import BrokerContext
from node.kafka.requests.outcomes import NO_THROTTLE, Failure

GROUP: Final = 0
TRANSACTION: Final = 1

NO_GROUPS: Final = Failure(
    ErrorCode.coordinator_not_available,
    "Consumer groups are not supported yet: assign partitions by hand instead of subscribing.",
)
NO_TRANSACTIONS: Final = Failure(
    ErrorCode.transactional_id_authorization_failed,
    "Transactions are not supported yet: use an idempotent producer, without a transactional.id.",
)
"""COORDINATOR_NOT_AVAILABLE would be asked again until the client gives up, this ends it with its reason."""


async def find_coordinator(context: BrokerContext, request: Request, a: Answers) -> Any:
    """Every key of the request, or its only one before version 4, with why it has no coordinator."""
    payload = request.payload
    key_type = getattr(payload, "key_type", GROUP)
    if key_type == GROUP:
        failure = NO_GROUPS
    elif key_type == TRANSACTION:
        failure = NO_TRANSACTIONS
    else:
        failure = Failure(
            ErrorCode.invalid_request,
            f"No coordinator has keys of type {key_type}: there are 0 (group) and 1 (transaction).",
        )
    nobody = {
        "error_code": failure.code,
        "error_message": failure.message,
        "node_id": -1,
        "host": "",
        "port": -1,
    }
    keys = getattr(payload, "coordinator_keys", ())
    coordinators = tuple(a.Coordinator(key=key, **nobody) for key in keys)
    return a.FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=coordinators, **nobody)
