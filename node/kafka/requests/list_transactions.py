"""ListTransactions: the transactional ids that this node coordinates; tools ask every node.

The filter by pattern of version 2 is left out: its language is RE2's, which Python's is not.
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from node.kafka.answers import Answers
from node.kafka.handler import Request
from node.kafka.requests.context import BrokerContext
from node.kafka.requests.outcomes import NO_THROTTLE
from statemachine.transaction_state import AT_REST, State, Transaction

_KNOWN: Final = (*(state.value for state in State), "Dead", "PrepareEpochFence")
"""Kafka's states; no transaction is ever seen in the last two here."""


async def list_transactions(context: BrokerContext, request: Request, a: Answers) -> Any:
    """Those that pass every filter given: state, producer id, running longer than so many ms (KIP-994)."""
    payload = request.payload
    coordinators = context.coordinators.led_transactions()
    confirmed = [one for one in coordinators if await one.replica.confirm()]
    if len(confirmed) < len(coordinators):
        return a.ListTransactionsResponse(
            throttle_time=NO_THROTTLE,
            error_code=ErrorCode.coordinator_not_available,
            unknown_state_filters=(),
            transaction_states=(),
        )
    duration = getattr(payload, "duration_filter", -1)
    before = context.wall_ms() - duration

    def passes(one: Transaction) -> bool:
        if payload.state_filters and one.state.value not in payload.state_filters:
            return False
        if payload.producer_id_filters and one.producer_id not in payload.producer_id_filters:
            return False
        return duration < 0 or (one.state not in AT_REST and one.started < before)

    return a.ListTransactionsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        unknown_state_filters=tuple(state for state in payload.state_filters if state not in _KNOWN),
        transaction_states=tuple(
            a.TransactionState(
                transactional_id=one.transactional_id,
                producer_id=one.producer_id,
                transaction_state=one.state.value,
            )
            for coordinator in confirmed
            for one in coordinator.machine.transactions.values()
            if passes(one)
        ),
    )
