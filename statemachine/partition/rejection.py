"""Rejection: the reason why a partition's command changed nothing, as a value that every replica comes to."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Rejection(Enum):
    """Reason for which a command changed nothing: it lost a race, or its producer is out of sequence."""

    OLDER_TERM = "older_term"
    """The whole entry was made, or its level-one objects were written, in an earlier term; `current` is the
    present one."""
    INVALID_PRODUCER_EPOCH = "invalid_producer_epoch"
    """`current` is the producer's newest epoch."""
    OUT_OF_ORDER_SEQUENCE_NUMBER = "out_of_order_sequence_number"
    """`current` is the sequence that would be next."""
    LOWER_EPOCH = "lower_epoch"
    """Nothing to advance; `current` is the highest epoch applied."""
    LOWER_START_OFFSET = "lower_start_offset"
    """`current` is the present start offset."""
    CHECKPOINT_NOT_LEASED = "checkpoint_not_leased"
    """Its lease ended before; `current` is the state machine's time in ms."""
    RECONCILED_ELSEWHERE = "reconciled_elsewhere"
    """Level zero no longer begins there: reconciled, or retention went on. `current` is where it begins."""
    LEVEL_ONE_CHANGED = "level_one_changed"
    """The objects to replace are not there (any more); `current` is 0."""
    TRANSACTION_ENDED = "transaction_ended"
    """The batch's transaction has ended here, or the marker is not newer; `current` is the number up to which
    the producer's transactions have ended here."""
    NOT_IN_TRANSACTION = "not_in_transaction"
    """The producer's transaction is open, and the batch is not of it; `current` is its number."""
    LESS_CLEAN = "less_clean"
    """The publisher's log is less clean than level one, and would bring back what was superseded; `current`
    is the offset up to which level one is clean."""
    REMOVAL_NOT_NEWER = "removal_not_newer"
    """Nothing is higher than before, and nothing has become ripe; `current` is the present `mtro`."""

    HOLD_TOO_LOW = "hold_too_low"
    """Below `current`, the lowest offset that can be held, records may have been superseded and removed, or
    deleted: a hold that was there has run out."""
    HOLD_ABOVE_THE_END = "hold_above_the_end"
    """`current` is the partition's next offset."""
    TOO_MANY_HOLDS = "too_many_holds"
    """`current` is the number of readers that hold the partition."""


class Rejected(NamedTuple):
    """A command without effect, and the value that stood against it."""

    reason: Rejection
    current: int
