"""A state machine as this node gives it to Raft: the pure one, with notification of applied entries.

The pure machines notify no other part. This one forwards to one of them, hands every entry to the replica's
recorder, and signals each applied entry. It decides nothing, so replicas stay equal.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

from strandline.statemachine.machine import Captured, ReadState, StateMachine

_MANY: Final = 50_000
"""Objects that a collection may look at: it takes some 10 ms, in which the loop does nothing. More of them
are set aside, as in `runtime/garbage.py`."""

Plain = TypeVar("Plain", bound=StateMachine)


class Recorder(Protocol):
    """Keeps the applied entries between two checkpoints, and publishes the captured state."""

    def begin_term(self, index: int, term: int, node: int) -> None: ...

    def applied(self, index: int, term: int, command: bytes) -> None:
        """Called before the entry's own apply, so that a checkpoint finds its own entry recorded."""

    def checkpoint(self, index: int, captured: Captured) -> None: ...

    def restored(self) -> None:
        """The state was replaced by a snapshot's: the entries between the two were never applied here."""


class _ReadState:
    """A ReadState whose machine's recorder and leader hear that it was adopted."""

    def __init__(self, plain: ReadState, adopted: Callable[[], None]) -> None:
        self._plain = plain
        self._adopted = adopted
        self.let_go = plain.let_go

    def adopt(self) -> None:
        self._plain.adopt()
        self._adopted()


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

    def read(self, state: bytes) -> ReadState:
        # What is made here stays: the collector would go through hundreds of thousands of objects, again and
        # again, and whichever thread it runs in, the loop would be held meanwhile.
        collects = gc.isenabled()
        gc.disable()
        try:
            return _ReadState(self.plain.read(state), self._adopted)
        finally:
            if gc.get_count()[0] > _MANY:
                gc.freeze()
            if collects:
                gc.enable()

    def restore(self, state: bytes) -> None:
        self.read(state).adopt()

    def _adopted(self) -> None:
        self._recorder.restored()
        self._applied()
