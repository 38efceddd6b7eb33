"""ListTransactions: the transactional ids that this node coordinates; tools ask every node."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from strandline.node.coordinator.transactions.transaction_coordinator import TransactionCoordinator
from strandline.node.kafka.handlers.authorization import may_with_id
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.re2.automaton import InvalidPattern
from strandline.node.re2.patterns import compiled
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.internal_topics import TRANSACTIONS_TOPIC
from strandline.statemachine.transactions.transaction_state import AT_REST, Transaction, TransactionState

_BEYOND_ASCII: Final = "\x7f"
"""Stands for such a character where a pattern is matched; the automata know ASCII's alone."""
_KNOWN: Final = (*(state.value for state in TransactionState), "Dead", "PrepareEpochFence")
"""Kafka's states; no transaction is ever seen in the last two here."""


async def list_transactions(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """List the transactions that pass every filter of the request.

    Filters: state, producer id, running longer than this many ms (KIP-994), an id that matches a pattern as a
    whole (KIP-1152). The list is complete or an error: an operator that looks for hanging transactions takes
    one that is missing from it for one that no coordinator will end.
    """
    payload = request.payload
    if context.coordinators.loading(TRANSACTIONS_TOPIC):
        return _none(a, ErrorCode.coordinator_load_in_progress)
    coordinators = context.coordinators.led_transactions()
    confirmed = [one for one in coordinators if await one.replica.confirm()]
    if len(confirmed) < len(coordinators):
        return _none(a, ErrorCode.coordinator_not_available)
    pattern = getattr(payload, "transactional_id_pattern", None)
    try:
        matching = _matching(pattern, confirmed) if pattern else None
    except InvalidPattern:
        return _none(a, ErrorCode.invalid_regular_expression)
    duration = getattr(payload, "duration_filter", -1)
    before = context.wall_ms() - duration

    def passes(one: Transaction) -> bool:
        if not may_with_id(context, request, Operation.DESCRIBE, one.transactional_id, quiet=True):
            return False
        if payload.state_filters and one.state.value not in payload.state_filters:
            return False
        if payload.producer_id_filters and one.producer_id not in payload.producer_id_filters:
            return False
        if matching is not None and one.transactional_id not in matching:
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


def _matching(pattern: str, coordinators: list[TransactionCoordinator]) -> dict[str, None]:
    """The ids that match; raises InvalidPattern."""
    automaton = compiled(pattern)
    return {
        transactional_id: None
        for coordinator in coordinators
        for transactional_id in coordinator.machine.transactions
        if automaton.matches("".join(one if one.isascii() else _BEYOND_ASCII for one in transactional_id))
    }


def _none(a: ResponseTypes, code: ErrorCode) -> Any:
    return a.ListTransactionsResponse(
        throttle_time=NO_THROTTLE, error_code=code, unknown_state_filters=(), transaction_states=()
    )
