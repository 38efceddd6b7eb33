"""Applies committed entries, in order (Raft §5.3)."""

from __future__ import annotations

import logging

from strandline.node.raft.entries import EntryKind
from strandline.node.raft.rules.membership_change import MembershipChange
from strandline.node.raft.rules.pending_commands import PendingCommands
from strandline.node.raft.rules.read_index import ReadIndex
from strandline.node.raft.rules.replica_state import Part, ReplicaState, SafetyViolation
from strandline.node.raft.rules.snapshot_protocols import SnapshotTaker

log = logging.getLogger(__name__)


class Applying(Part):
    """The committed entries' way into the state machine."""

    __slots__ = ("commands", "membership_change", "reads", "taking")

    def __init__(
        self,
        state: ReplicaState,
        commands: PendingCommands,
        reads: ReadIndex,
        membership_change: MembershipChange,
        taking: SnapshotTaker,
    ) -> None:
        super().__init__(state)
        self.commands = commands
        self.reads = reads
        self.membership_change = membership_change
        self.taking = taking

    def run(self) -> None:
        """Apply committed entries in order, a bounded number a turn.

        `applied` moves before anything else sees the entry: PySyncObj applied an entry again when a
        callback raised. An exception from the machine stops this replica.
        """
        state = self.state
        if state.applied >= state.commit or state.damaged_below is not None:
            return
        count = min(state.commit - state.applied, self.settings.max_apply_per_turn)
        machine, was_ready = state.machine, state.is_ready
        for command, index, term in self.journal.after(state.applied, count):
            state.applied = index
            state.bytes_since_snapshot += len(command)
            kind = command[0]
            result = None
            if kind == EntryKind.REGULAR:
                result = machine.apply(index, term, command[1:])
            elif kind == EntryKind.BEGIN_TERM:
                machine.begin_term(index, term, int.from_bytes(command[1:], "big"))
            elif kind == EntryKind.MEMBERSHIP:
                self.membership_change.on_applied(index, term)
            else:
                raise SafetyViolation(f"group {state.id}: entry {index} is of unknown kind {kind}")
            waiting = state.waiting.pop(index, None)
            if waiting is not None:
                self.commands.resolve(waiting, result, index, term)
        state.idle_since = self.host.now()
        if not was_ready and state.is_ready:
            state.tell_ready()
        self.reads.release()
        if self.taking.due():
            self.taking.take()
        if state.applied < state.commit:
            self.host.wake(state)
