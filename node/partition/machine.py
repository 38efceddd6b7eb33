"""The state machine a partition gives to Raft: the plain one, and word of what it applied.

`PartitionStateMachine` is pure and tells nobody. This one forwards to it, hands every entry to the replica's
recorder, and says that something changed. It decides nothing, so replicas stay equal whatever listens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from statemachine.partition import PartitionStateMachine
from statemachine.partition_commands import EntryResult


class Recorder(Protocol):
    """Who keeps the applied entries between two checkpoints, and publishes what a checkpoint captured."""

    def begin_term(self, index: int, term: int, node: int) -> None: ...

    def applied(self, index: int, term: int, command: bytes) -> None:
        """Called before the entry's own apply, so that a checkpoint finds its own entry recorded."""

    def checkpoint(self, index: int, state: bytes) -> None: ...

    def restored(self) -> None:
        """The state was replaced by a snapshot's: entries are missing between what came before and after."""


class ReplicaMachine:
    """A StateMachine for the log; `plain` is the partition's state, to be read and not to be driven."""

    kind = PartitionStateMachine.kind

    def __init__(self, creation_epoch: int, recorder: Recorder, changed: Callable[[], None]) -> None:
        self.plain = PartitionStateMachine(creation_epoch, recorder.checkpoint)
        self._recorder = recorder
        self._changed = changed

    def begin_term(self, index: int, term: int, node: int) -> None:
        self._recorder.begin_term(index, term, node)
        self.plain.begin_term(index, term, node)

    def apply(self, index: int, term: int, command: bytes) -> EntryResult:
        self._recorder.applied(index, term, command)
        result = self.plain.apply(index, term, command)
        self._changed()
        return result

    def snapshot(self) -> bytes:
        return self.plain.snapshot()

    def restore(self, state: bytes) -> None:
        self.plain.restore(state)
        self._recorder.restored()
        self._changed()
