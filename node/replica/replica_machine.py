"""A state machine as this node gives it to Raft: the pure one, with notification of applied entries.

The pure machines notify no other part. This one forwards to one of them, hands every entry to the replica's
recorder, and signals each applied entry. It decides nothing, so replicas stay equal.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from strandline.statemachine.machine import Captured, StateMachine

Plain = TypeVar("Plain", bound=StateMachine)


class Recorder(Protocol):
    """Keeps the applied entries between two checkpoints, and publishes the captured state."""

    def begin_term(self, index: int, term: int, node: int) -> None: ...

    def applied(self, index: int, term: int, command: bytes) -> None:
        """Called before the entry's own apply, so that a checkpoint finds its own entry recorded."""

    def checkpoint(self, index: int, captured: Captured) -> None: ...

    def restored(self) -> None:
        """The state was replaced by a snapshot's: the entries between the two were never applied here."""


class ReplicaMachine(Generic[Plain]):
    """A StateMachine for the log; `plain` is the state, to be read and not to be driven.

    `applied()` is called after each command and after a snapshot was installed. Checkpoints reach the
    recorder through `plain`, which is made with `recorder.checkpoint`.
    """

    def __init__(self, plain: Plain, recorder: Recorder, applied: Callable[[], None]) -> None:
        self.plain = plain
        self.kind = plain.kind
        self._recorder = recorder
        self._applied = applied

    def begin_term(self, index: int, term: int, node: int) -> None:
        self._recorder.begin_term(index, term, node)
        self.plain.begin_term(index, term, node)

    def apply(self, index: int, term: int, command: bytes) -> Any:
        self._recorder.applied(index, term, command)
        result = self.plain.apply(index, term, command)
        self._applied()
        return result

    def snapshot(self) -> bytes:
        return self.plain.snapshot()

    def capture(self) -> Captured:
        return self.plain.capture()

    def restore(self, state: bytes) -> None:
        # What is made here stays: the collector would go through hundreds of thousands of objects, again and
        # again, and the loop would be held for two to three times as long.
        collects = gc.isenabled()
        gc.disable()
        try:
            self.plain.restore(state)
        finally:
            if collects:
                gc.enable()
        self._recorder.restored()
        self._applied()
