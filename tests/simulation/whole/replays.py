"""The logs of a run, applied anew from their beginning: what a published state has to be equal to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from strandline.snapshot.document import SnapshotDocument
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.groups.groups import GroupsMachine
from strandline.statemachine.machine import Captured, StateMachine
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.transactions.transactions import TransactionsMachine
from tests.simulation.whole.ledger import BEGAN, Ledger


@dataclass(slots=True)
class _Replayed:
    machine: StateMachine
    index: int = 0
    begins: int = 0
    """The entry whose state a restored cluster's log begins with."""


class Replays:
    """One replay of each group. It only goes on."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._by_group: dict[int, _Replayed] = {}

    def begin_with(self, documents: Iterable[SnapshotDocument]) -> None:
        """Go on from a restored cluster's first states."""
        for document in documents:
            machine = empty(document.kind)
            machine.restore(document.state)
            self._by_group[document.group] = _Replayed(machine, document.index, document.index)

    def begins(self, group: int) -> int:
        """The entry that this life of the cluster begins with: 0 in the first one."""
        known = self._by_group.get(group)
        return 0 if known is None else known.begins

    def reached(self, group: int) -> StateMachine:
        """The state that was asked for last."""
        return self._by_group[group].machine

    def at(self, kind: str, group: int, index: int) -> StateMachine | None:
        """The state after an entry; None if that is before the last that was asked for, or its topic is
        gone."""
        entries, replayed = self._ledger.entries_of(group), self._by_group.get(group)
        if replayed is None:
            creation_epoch = 0
            if kind == PartitionStateMachine.kind:
                newest = self._ledger.objects.newest(group)
                if newest is None:
                    return None
                creation_epoch = newest.creation_epoch
            replayed = self._by_group[group] = _Replayed(empty(kind, creation_epoch))
        if index < replayed.index:
            return None
        for at in range(replayed.index + 1, index + 1):
            if at in entries:
                term, command = entries[at]
                if command == BEGAN:
                    replayed.machine.begin_term(at, term, 0)
                else:
                    replayed.machine.apply(at, term, command)
        replayed.index = index
        return replayed.machine


def empty(kind: str, creation_epoch: int = 0) -> StateMachine:
    """A state machine of this kind before its first entry."""
    if kind == Controller.kind:
        return Controller(ignore)
    if kind == GroupsMachine.kind:
        return GroupsMachine(ignore)
    if kind == TransactionsMachine.kind:
        return TransactionsMachine(ignore)
    return PartitionStateMachine(creation_epoch, ignore)


def ignore(index: int, captured: Captured) -> None:
    """A checkpoint that is met was published by the nodes."""
