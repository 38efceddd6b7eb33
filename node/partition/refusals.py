"""Turns refusals of the log and of the state machine into the one kind that producers get."""

from __future__ import annotations

from typing import Final, cast

from strandline.node.raft.outcome import Applied, NotLeader, Outcome, Overloaded, Unknown
from strandline.node.refusal import Reason, Refusal
from strandline.statemachine.partition.partition_commands import CommandResult
from strandline.statemachine.partition.rejection import Rejected, Rejection

_LOG: Final = {
    NotLeader: Reason.NOT_LEADER,
    Overloaded: Reason.NOT_NOW,
    Unknown: Reason.UNDECIDED,
}
_STATE: Final = {
    Rejection.OUT_OF_ORDER_SEQUENCE_NUMBER: (Reason.OUT_OF_ORDER, "sequence {} is expected next"),
    Rejection.INVALID_PRODUCER_EPOCH: (Reason.STALE_PRODUCER_EPOCH, "the producer's epoch is {} by now"),
    Rejection.TRANSACTION_ENDED: (
        Reason.NOT_IN_TRANSACTION,
        "the producer's transactions up to number {} have ended here",
    ),
    Rejection.NOT_IN_TRANSACTION: (
        Reason.NOT_IN_TRANSACTION,
        "the producer's transaction of number {} is open, and the batch is not part of it",
    ),
    Rejection.OLDER_TERM: (Reason.NOT_LEADER, "the entry is of a term before {}"),
}
_FITS_ALL_BEHIND: Final = (Reason.NOT_LEADER, Reason.NOT_NOW, Reason.STORAGE_FAILED)


def refusal_of(outcome: NotLeader | Overloaded | Unknown | Rejected) -> Refusal:
    """The reason why an entry or a batch was not applied; an unknown outcome is never taken for a refusal."""
    if isinstance(outcome, Rejected):
        reason, message = _STATE[outcome.reason]
        return Refusal(reason, message.format(outcome.current))
    return Refusal(_LOG[type(outcome)], outcome.reason)


def result_of(outcome: Outcome) -> CommandResult | Refusal:
    """The result of an entry's last command."""
    if not isinstance(outcome, Applied):
        return refusal_of(outcome)
    if isinstance(outcome.value, Rejected):
        return refusal_of(outcome.value)
    return cast(CommandResult, outcome.value[-1])


def behind(refusal: Refusal) -> Refusal:
    """The answer to the batches behind a refused one: they certainly were not appended, and are to come again
    behind it, whatever is said of it."""
    if refusal.reason in _FITS_ALL_BEHIND:
        return refusal
    return Refusal(Reason.NOT_NOW, f"a batch of this producer before this one failed: {refusal.message}")
