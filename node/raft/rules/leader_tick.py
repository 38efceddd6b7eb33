"""The leader's timer: heartbeats, check-quorum, quiescence, and changes in progress."""

from __future__ import annotations

import logging

from strandline.node.raft.pysyncobj_seam import LEADER
from strandline.node.raft.rules.leadership_transfer import LeadershipTransfer
from strandline.node.raft.rules.lease import Lease
from strandline.node.raft.rules.membership_change import MembershipChange
from strandline.node.raft.rules.progress import Progress
from strandline.node.raft.rules.quiescence import Quiescence
from strandline.node.raft.rules.replica_state import Part, ReplicaState
from strandline.node.raft.rules.replication import Replication
from strandline.node.raft.rules.roles import Roles
from strandline.node.raft.rules.snapshot_protocols import SnapshotSender

log = logging.getLogger(__name__)


class LeaderTick(Part):
    """A leader's work as time passes."""

    __slots__ = ("lease", "membership_change", "quiescence", "replication", "roles", "sending", "transfer")

    def __init__(
        self,
        state: ReplicaState,
        lease: Lease,
        roles: Roles,
        transfer: LeadershipTransfer,
        membership_change: MembershipChange,
        quiescence: Quiescence,
        replication: Replication,
        sending: SnapshotSender,
    ) -> None:
        super().__init__(state)
        self.lease = lease
        self.roles = roles
        self.transfer = transfer
        self.membership_change = membership_change
        self.quiescence = quiescence
        self.replication = replication
        self.sending = sending

    def run(self, now: float) -> None:
        """Once per half heartbeat while anything is going on: heartbeats, quorum, quiet, transfer."""
        state = self.state
        if self.lease.lost_quorum() or self.host.disk_stalled():
            self.transfer.nominate()
            self.roles.step_down()
            return
        self.transfer.advance()
        self.membership_change.advance()
        assured = True
        for peer, progress in state.progress.items():
            assured &= self._tick_peer(peer, progress, now)
        idle = assured and self.quiescence.is_idle()
        self.sending.let_go(idle=idle)
        if idle:
            self.host.set_active(state, False)

    def _tick_peer(self, peer: int, progress: Progress, now: float) -> bool:
        """Keep one follower informed; whether nothing need be said to it until something happens."""
        if not self.host.connected(peer):
            return self.quiescence.quorum_is_quiesced()
        self.sending.tick(peer, now)
        if progress.quiesced_since is not None and progress.settled == self.journal.last:
            return True
        if self.quiescence.may_begin(peer, progress, now):
            self.quiescence.begin_towards(peer, progress, now)
            return progress.quiesced_since is not None
        covered = progress.quiesced_since is not None and progress.match == self.journal.last
        if not covered and now - progress.sent_at >= self.settings.heartbeat_seconds * 0.9:
            self.replication.send_heartbeat(peer, progress, now)
        return False

    def check_quorum(self) -> None:
        """A peer that shared its heartbeats has fallen silent: let the timer look, if it mattered."""
        state = self.state
        if state.role == LEADER and self.lease.lost_quorum():
            self.host.set_active(state, True)
