"""What every replicated state machine offers the log that drives it.

A machine is pure: no clock, no randomness, no I/O. Time and ids arrive inside commands, so the same
entries give the same state, byte for byte, on every replica. That is what lets a simulator, a property
test and an audit treat a replica's history as a function of its log.
"""

from __future__ import annotations

from typing import Any, Protocol


class Corruption(ValueError):
    """The log holds what no correct leader writes; the replica must stop, its state is not to be used."""


class StateMachine(Protocol):
    """A deterministic function from log entries to state.

    An exception out of any method means that the log holds something no correct leader writes: the
    replica that meets it stops, rather than going on with a state nobody else has. A command that merely
    lost a race must be answered by value.
    """

    kind: str
    """Names the machine in its snapshots, e.g. ``"partition"``."""

    def begin_term(self, index: int, term: int, node: int) -> None:
        """Apply the first entry of a term: `node` leads from log index `index` on."""

    def apply(self, index: int, term: int, command: bytes) -> Any:
        """Apply one command, exactly once and in log order; the result goes to whoever proposed it."""

    def snapshot(self) -> bytes:
        """The whole state as canonical bytes: equal states give equal bytes."""

    def restore(self, state: bytes) -> None:
        """Replace the whole state by what `snapshot` gave; raises ValueError when it cannot be read."""
