"""Changes of a peer's connection: messages in flight to the peer are lost with it."""

from __future__ import annotations

import logging

from strandline.node.raft.pysyncobj_seam import FOLLOWER, LEADER
from strandline.node.raft.rules.election_timeout import ElectionTimeout
from strandline.node.raft.rules.in_sync_replicas import InSyncReplicas
from strandline.node.raft.rules.progress import Phase, Progress
from strandline.node.raft.rules.quiescence import Quiescence
from strandline.node.raft.rules.replica_state import Part, ReplicaState
from strandline.node.raft.rules.snapshot_protocols import SnapshotSender

log = logging.getLogger(__name__)


class PeerConnections(Part):
    """Reacts, for one group, to a peer that comes or goes."""

    __slots__ = ("isr", "quiescence", "sending", "timeouts")

    def __init__(
        self,
        state: ReplicaState,
        quiescence: Quiescence,
        sending: SnapshotSender,
        isr: InSyncReplicas,
        timeouts: ElectionTimeout,
    ) -> None:
        super().__init__(state)
        self.quiescence = quiescence
        self.sending = sending
        self.isr = isr
        self.timeouts = timeouts

    def on_connect(self, peer: int) -> None:
        """A peer is back: messages in flight are lost, so start from the entries it is known to hold."""
        state = self.state
        progress = state.progress.get(peer)
        if state.role == LEADER and progress is not None:
            self._restart(peer, progress)
            self.host.wake(state)
        else:
            self.timeouts.ask_first()

    def on_opened(self, peer: int) -> None:
        """A follower's process has the group now: earlier requests to it are lost, so ask at once."""
        state = self.state
        progress = state.progress.get(peer)
        if progress is not None and progress.phase is Phase.PROBE:
            progress.probe(progress.match + 1)
            self.host.wake(state)

    def on_disconnect(self, peer: int) -> None:
        """A peer is gone: no shared heartbeat with it covers this group any more."""
        state = self.state
        progress = state.progress.get(peer)
        if state.role == LEADER and progress is not None:
            self._restart(peer, progress)
            self.isr.waits.give_up(self.isr.count())
        if state.quiesced_under == peer:
            self.quiescence.leave()
        if state.role == FOLLOWER and state.leader == peer:
            self.timeouts.stand_in_turn(peer)

    def _restart(self, peer: int, progress: Progress) -> None:
        self.quiescence.end_towards(peer, progress)
        self.sending.end(peer)
        progress.probe(progress.match + 1)
        self.host.set_active(self.state, True)
