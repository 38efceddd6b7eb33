"""The controller's state machine as this node gives it to Raft: the plain one, and word of what it applied.

`Controller` is pure and tells nobody. This one hands every entry to the checkpoint recorder first, and says
that something was applied. It decides nothing, so replicas stay equal whatever listens.
"""

from __future__ import annotations

from collections.abc import Callable

from node.partition.machine import Recorder
from statemachine.controller import Controller, Result


class ControllerReplica:
    """A StateMachine for the log; `plain` is what the rest of the node reads."""

    kind = Controller.kind

    def __init__(self, recorder: Recorder, applied: Callable[[], None]) -> None:
        """`applied()` is called after each command and after a snapshot was installed."""
        self.plain = Controller(recorder.checkpoint)
        self._recorder = recorder
        self._applied = applied

    def begin_term(self, index: int, term: int, node: int) -> None:
        self._recorder.begin_term(index, term, node)
        self.plain.begin_term(index, term, node)

    def apply(self, index: int, term: int, command: bytes) -> Result:
        self._recorder.applied(index, term, command)
        result = self.plain.apply(index, term, command)
        self._applied()
        return result

    def snapshot(self) -> bytes:
        return self.plain.snapshot()

    def restore(self, state: bytes) -> None:
        self.plain.restore(state)
        self._recorder.restored()
        self._applied()
