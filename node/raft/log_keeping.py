"""A group's part in keeping the node's write-ahead log short."""

from __future__ import annotations

import logging

from strandline.node.raft.configuration import Configuration
from strandline.node.raft.rules.replica_state import Part, ReplicaState
from strandline.node.raft.snapshots.taking import SnapshotTaking
from strandline.node.raft.wal.carrying import GroupLog
from strandline.node.raft.wal.raft_log import RaftLog

log = logging.getLogger(__name__)


class LogKeeping(Part):
    """Moves a group's records along, so that the log's oldest segment can go."""

    __slots__ = ("log", "taking")

    def __init__(self, state: ReplicaState, log: RaftLog, taking: SnapshotTaking) -> None:
        super().__init__(state)
        self.log = log
        self.taking = taking

    def moves_by_itself(self) -> bool:
        """Whether a snapshot can cover all that it holds, if not now then when it is this group's turn."""
        state = self.state
        return state.failure is None and state.damaged_below is None and state.applied == self.journal.last

    def group_log(self) -> GroupLog:
        """The log as it stands, for carrying it along."""
        state = self.state
        if state.snapshot_index and state.damaged_below is None:
            return GroupLog(self.log, state.snapshot_members, state.snapshot_term)
        base = state.configurations[0]
        members = Configuration(self.journal.base, base.voters, base.learners, base.folders)
        return GroupLog(self.log, members, self.journal.base_term)

    def record_again(self) -> None:
        """Write term, vote and base again, so that the segment they lie in is not needed for them."""
        state = self.state
        self.journal.record_state()
        if state.snapshot_index and state.damaged_below is None:
            members = state.snapshot_members
            self.journal.record_snapshot(
                state.snapshot_index, state.snapshot_term, members.voters, members.learners, members.folders
            )
        elif state.applied:
            self.taking.take()
        elif self.journal.last == 0:
            base = state.configurations[0]
            self.journal.reset(0, 0, base.voters, base.learners, base.folders)
