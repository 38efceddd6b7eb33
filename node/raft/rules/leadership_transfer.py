"""Leadership transfer (thesis §3.10).

PySyncObj ran its transfer through ordinary votes, which voters that just heard the leader refuse.
"""

from __future__ import annotations

import logging

from strandline.node.raft.pysyncobj_seam import LEADER
from strandline.node.raft.rules.lease import Lease
from strandline.node.raft.rules.messages import (
    MessageKind,
    TimeoutNow,
)
from strandline.node.raft.rules.progress import NEVER, Phase
from strandline.node.raft.rules.replica_state import Part, ReplicaState

log = logging.getLogger(__name__)


class LeadershipTransfer(Part):
    """A leader's way to hand its leadership over."""

    __slots__ = ("lease", "timeout_now_at")

    def __init__(self, state: ReplicaState, lease: Lease) -> None:
        super().__init__(state)
        self.lease = lease
        self.timeout_now_at: float = NEVER

    def begin(self, target: int | None = None) -> bool:
        """Hand leadership to `target`, or to the most caught-up voter; whether it was begun.

        It is not when the target could not take over now, and nothing is lost. Once it is, new commands are
        refused, and the lease is given up for the rest of the term, because the target's election skips the
        rule the lease stands on. Ends by itself after one election timeout.
        """
        state = self.state
        if state.role != LEADER or state.transfer_target is not None:
            return False
        candidates = [peer for peer in state.other_voters() if self.can_take_over(peer)]
        if target is None and candidates:
            target = max(candidates, key=lambda peer: state.progress[peer].match)
        if target not in candidates:
            return False
        state.transfer_target = target
        state.transfer_deadline = self.host.now() + self.settings.election_max_seconds
        state.lease_allowed = False
        self.host.set_active(state, True)
        self.host.wake(state)
        return True

    def advance(self) -> None:
        """Send the target to its election once it has the whole log; give up after the deadline."""
        state = self.state
        target = state.transfer_target
        if target is None or target not in state.progress or self.host.now() >= state.transfer_deadline:
            state.transfer_target = None
        elif (
            state.progress[target].match == self.journal.last
            and self.is_ready()
            and self.host.now() >= self.timeout_now_at + self.settings.heartbeat_seconds
        ):
            self.timeout_now_at = self.host.now()
            self.host.send(target, TimeoutNow(state.id, MessageKind.TIMEOUT_NOW, state.term))

    def on_declined(self, peer: int) -> None:
        """The target says that it will not stand for election: another may take over at once.

        Two nodes that are told to stop together would otherwise hand all groups to each other and back.
        """
        state = self.state
        if state.transfer_target == peer:
            self.host.peer_heartbeat(peer).cannot_lead_at = self.host.now()
            state.transfer_target = None
            self.timeout_now_at = NEVER

    def nominate(self) -> None:
        """Ask the best follower to stand for election at once, before this leader steps down.

        The follower then need not wait for its own timeout. Otherwise a leader that can send but not receive
        would delay an election by its heartbeats, and then for a timeout more.
        """
        state = self.state
        reachable = [
            peer
            for peer in state.other_voters()
            if self.host.connected(peer) and peer in state.progress and self.could_lead(peer)
        ]
        if reachable:
            best = max(reachable, key=lambda peer: state.progress[peer].match)
            self.host.send(best, TimeoutNow(state.id, MessageKind.TIMEOUT_NOW, state.term))

    def is_ready(self) -> bool:
        """All that this leader accepted has ended, so a transfer leaves no outcome unknown."""
        return not self.state.waiting

    def can_take_over(self, peer: int) -> bool:
        """Whether a follower can win an election within the time that a transfer has: it answers, needs no
        snapshot first, and could lead. A new leader gives it the time to answer."""
        state = self.state
        progress = state.progress.get(peer)
        heard = max(self.lease.acked_at(peer), state.leader_since)
        return (
            progress is not None
            and progress.phase is not Phase.SNAPSHOT
            and self.host.connected(peer)
            and self.could_lead(peer)
            and self.host.now() - heard <= 3 * self.settings.heartbeat_seconds
        )

    def keeps_up(self, peer: int) -> bool:
        """Whether a follower could take over at once: it lacks little if anything."""
        state = self.state
        progress = state.progress.get(peer)
        return (
            progress is not None
            and progress.phase is Phase.REPLICATE
            and self.journal.last - progress.match <= self.settings.max_inflight_messages
            and self.can_take_over(peer)
        )

    def could_lead(self, peer: int) -> bool:
        """Whether a peer has a vote, its disk takes it, and it is not about to stop, as far as is known.

        It says so in answers to the heartbeat of quiet groups, and when it declines. Where it has entries to
        write that it cannot write, it falls behind.
        """
        said_at = self.host.peer_heartbeat(peer).cannot_lead_at
        unable = self.host.now() - said_at <= 3 * self.settings.heartbeat_seconds
        return not unable and self.state.counts(peer)
