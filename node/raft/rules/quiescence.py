"""Quiescence: an idle group sends nothing, and the shared heartbeat of a pair of nodes covers it.

`peer_heartbeat.py` has the set of such groups that two nodes share, `shared_heartbeats.py` its heartbeat.
"""

from __future__ import annotations

import logging

from strandline.node.raft.pysyncobj_seam import LEADER
from strandline.node.raft.rules.leader_contact import LeaderContact
from strandline.node.raft.rules.lease import Lease
from strandline.node.raft.rules.messages import (
    MessageKind,
    Quiesce,
)
from strandline.node.raft.rules.progress import NOTHING, Phase, Progress
from strandline.node.raft.rules.replica_state import Part, ReplicaState

log = logging.getLogger(__name__)


class Quiescence(Part):
    """Begins and ends the time in which the shared heartbeat of a pair of nodes covers a group."""

    __slots__ = ("contact", "lease")

    def __init__(self, state: ReplicaState, contact: LeaderContact, lease: Lease) -> None:
        super().__init__(state)
        self.contact = contact
        self.lease = lease

    def is_idle(self) -> bool:
        """Whether every entry is committed and applied, and no request, change or transfer is waiting."""
        state = self.state
        last = self.journal.last
        settled = state.change is None and state.transfer_target is None
        return settled and state.commit == last == state.applied and not state.readers and not state.waiting

    def may_begin(self, peer: int, progress: Progress, now: float) -> bool:
        """Whether a follower has every entry, was heard just now, and got nothing new for a whole heartbeat.

        A silent follower gets the group's own heartbeats; otherwise a lost quorum would be noticed late.
        """
        state = self.state
        return (
            progress.phase is Phase.REPLICATE
            and progress.match == self.journal.last
            and self.is_idle()
            and now - state.idle_since >= self.settings.heartbeat_seconds
            and now - self.lease.acked_at(peer) <= 2 * self.settings.heartbeat_seconds
        )

    def quorum_is_quiesced(self) -> bool:
        """A majority of the voters takes the shared heartbeat, so an absent one needs no attention."""
        state = self.state
        me = self.host.node_id
        quiet = sum(1 for node in state.voters if node == me or self._is_quiesced(node))
        return quiet * 2 > len(state.voters)

    def _is_quiesced(self, peer: int) -> bool:
        progress = self.state.progress.get(peer)
        return progress is not None and progress.quiesced_since is not None

    def begin_towards(self, peer: int, progress: Progress, now: float) -> None:
        """From now on the pair's heartbeat stands for the group, until the leadership ends or the follower
        objects; new entries do not change that. Told again, it says that all up to here is committed.
        """
        state = self.state
        if self.host.send(peer, Quiesce(state.id, MessageKind.QUIESCE, state.term, self.journal.last)):
            progress.settled = self.journal.last
            if progress.quiesced_since is None:
                progress.quiesced_since = now
                self.host.peer_heartbeat(peer).lead(state.id, state.term, now)

    def end_towards(self, peer: int, progress: Progress) -> None:
        state = self.state
        if progress.quiesced_since is not None:
            # What the shared heartbeat proved stays proven, or the next tick would find the quorum lost.
            progress.acked_sent_at = self.lease.acked_at(peer)
            progress.quiesced_since = None
            progress.settled = NOTHING
            self.host.peer_heartbeat(peer).unlead(state.id)
            self.host.set_active(state, True)

    def on_refused(self, peer: int) -> None:
        """The peer does not take the shared heartbeat for this group: say it by the group's own messages."""
        state = self.state
        progress = state.progress.get(peer)
        if state.role == LEADER and progress is not None:
            self.end_towards(peer, progress)

    def on_quiesce(self, peer: int, message: Quiesce) -> None:
        """The leader says that all is committed and will be silent: agree only if all is here."""
        state = self.state
        last = message.last
        self.contact.follow(peer)
        if state.damaged_below is not None or self.journal.last != last or self.journal.unsynced:
            self.leave()
            self.host.peer_heartbeat(peer).refuse(state.id)
            return
        state.commit = max(state.commit, last)
        if state.applied < state.commit:
            self.host.wake(state)
        if state.quiesced_under != peer:
            self.leave()
            state.quiesced_under = peer
        self.host.peer_heartbeat(peer).follow(state.id, state.term, self.host.now())
        self.host.set_active(state, False)

    def leave(self) -> None:
        """A follower goes back to its own timer, counted from when the leader was last heard."""
        state = self.state
        if state.quiesced_under is None:
            return
        state.heard_at = self.contact.last_heard()
        now = self.host.now()
        self.host.peer_heartbeat(state.quiesced_under).unfollow(state.id)
        state.quiesced_under = None
        silent = self.host.attention.since(state.heard_at, now)
        state.deadline = self.host.attentive() - silent + state._SyncObj__generateRaftTimeout()
        self.host.set_active(state, True)
