"""How a transaction, or a whole incarnation of a producer, comes to an end that its client did not choose."""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

FENCES: Final = (
    ErrorCode.producer_fenced,
    ErrorCode.invalid_producer_epoch,
    ErrorCode.invalid_producer_id_mapping,
)
ABORTS: Final = (
    *FENCES,
    ErrorCode.invalid_txn_state,
    ErrorCode.transaction_abortable,
    ErrorCode.unknown_producer_id,
)
"""What a batch may be refused with for good: its transaction is over, or its producer is."""
GONE_MEMBER: Final = (
    ErrorCode.illegal_generation,
    ErrorCode.unknown_member_id,
    ErrorCode.rebalance_in_progress,
    ErrorCode.stale_member_epoch,
    ErrorCode.fenced_instance_id,
)


class Fenced(Exception):
    """This incarnation is over: another one has its place."""


class Abortable(Exception):
    """The transaction cannot be committed, and has to be aborted."""


class InDoubt(Exception):
    """A commit was asked for, and nobody knows whether it was decided."""


class GivenUp(Exception):
    """Nobody answered for too long: whatever was asked may have been done."""
