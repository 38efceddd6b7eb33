"""What a leader may believe: quorum checks, leases, linearizable reads (Raft §6.4 of the thesis, §8), quiet.

A lease runs from the *send* time of a round that a majority answered. PySyncObj took the time an answer
came in, so a leader that had been paused could read old answers and go on leading; it also led on for 30
seconds without a quorum.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from strandline.node.raft.outcome import Applied, Outcome
from strandline.node.raft.pysyncobj_seam import FOLLOWER, LEADER
from strandline.node.raft.rules.messages import MessageKind, Quiesce
from strandline.node.raft.rules.progress import NEVER, NOTHING, Phase, Progress, majority_of
from strandline.node.raft.rules.replication import Replication


class Reads(Replication):
    """A leader's proof that it still leads, and the groups for which nothing needs to be said."""

    def __init__(self, *args: Any) -> None:
        self.readers: deque[tuple[float, int, asyncio.Future[Outcome]]] = deque()
        """(asked at, read index, future), waiting for the leader to be confirmed."""
        self.applied_waiters: deque[tuple[int, asyncio.Future[Outcome]]] = deque()
        """(read index, future), confirmed and waiting for entries to be applied."""
        self.idle_since = 0.0
        super().__init__(*args)

    # Quorum and lease.

    def acked_at(self, peer: int) -> float:
        """Send time, by this node's clock, of the newest message that the peer answered in this term."""
        progress = self.progress.get(peer)
        if progress is None or self.host.is_newcomer(peer):
            return NEVER
        if progress.quiet_since is not None:
            shared = self.host.pair(peer).acked_sent_at
            # One that left at this very time may have left in the same tick before, without this group.
            if shared > progress.quiet_since:
                return max(shared, progress.acked_sent_at)
        return progress.acked_sent_at

    def can_take_over(self, peer: int) -> bool:
        """Whether a follower can win an election within the time that a transfer has: it answers, needs no
        snapshot first, and has a disk that takes its vote. A new leader gives it the time to answer."""
        progress = self.progress.get(peer)
        heard = max(self.acked_at(peer), self.leader_since)
        return (
            progress is not None
            and progress.phase is not Phase.SNAPSHOT
            and self.host.connected(peer)
            and self.takes_votes(peer)
            and self.host.now() - heard <= 3 * self.settings.heartbeat_seconds
        )

    def keeps_up(self, peer: int) -> bool:
        """Whether a follower could take over at once: it lacks little if anything."""
        progress = self.progress.get(peer)
        return (
            progress is not None
            and progress.phase is Phase.REPLICATE
            and self.journal.last - progress.match <= self.settings.max_inflight_messages
            and self.can_take_over(peer)
        )

    def in_sync(self) -> int:
        """How many voters, this one included, are there and have nearly all that is committed.

        A follower counts while its log is known to match, it lags by no more than a full pipeline, and it has
        answered within the longest election timeout: one that is only slow for a moment counts.
        """
        oldest = self.host.now() - self.settings.election_max_seconds
        behind = self.commit - self.settings.max_inflight_messages
        count = 1
        for peer in self.voters:
            progress = self.progress.get(peer)
            if (
                progress is not None
                and progress.phase is Phase.REPLICATE
                and progress.match >= behind
                and self.acked_at(peer) >= oldest
            ):
                count += 1
        return count

    def when_held(self, index: int, count: int) -> asyncio.Future[bool]:
        """Resolves to True once `count` voters hold entry `index`, which is committed, on their disks.

        To False when so many are not there any more, or this node leads no more; a caller that does not wait
        for ever gives it that result itself.
        """
        future: asyncio.Future[bool] = self.host.loop.create_future()
        if self.role != LEADER:
            future.set_result(False)
        else:
            self.held.add(index, count, future)
            self.held.release(self.matches())
        return future

    def quorum_heard_at(self) -> float:
        """The latest time at which a majority of the voters, counting this one, still took us for leader."""
        now, me = self.host.now(), self.host.node_id
        return majority_of(now if node == me else self.acked_at(node) for node in self.voters)

    def has_lease(self) -> bool:
        """Whether no other node can have been elected yet, so that a read needs no round of its own."""
        if not self.lease_allowed:
            return False
        return self.lease_start() + self.settings.lease_seconds > self.host.now()

    def lease_start(self) -> float:
        return self.quorum_heard_at()

    def lost_quorum(self) -> bool:
        """Check-quorum (thesis §6.2): a leader that no majority answers for an election timeout is none."""
        heard = max(self.quorum_heard_at(), self.leader_since)
        now, patience = self.host.now(), self.settings.election_min_seconds + self.host.many()
        return now - heard > patience and self.host.attention.since(heard, now) > patience

    # Linearizable reads.

    async def barrier(self) -> Outcome:
        """Wait until this node is confirmed to lead and has applied all that was committed before the call.

        Returns Applied, or NotLeader; a read has no effect, so its outcome is never unknown. After it,
        state read from the machine on this node is linearizable (thesis §6.4).
        """
        if self.role != LEADER or self.failure is not None:
            return self.not_leader()
        index = max(self.commit, self.term_start)
        future: asyncio.Future[Outcome] = self.host.loop.create_future()
        if self.has_lease():
            self._await_applied(index, future)
        else:
            self.readers.append((self.host.now(), index, future))
            self.host.reading[self.id] = self
            for peer in self.progress:
                if self.host.connected(peer):
                    self.send_heartbeat(peer, self.progress[peer], self.host.now())
            self.on_confirmed()
        return await future

    def on_confirmed(self) -> None:
        """Let the readers go on that asked before the newest round a majority answered was sent."""
        if not self.readers:
            return
        heard = self.quorum_heard_at()
        while self.readers and self.readers[0][0] <= heard:
            _, index, future = self.readers.popleft()
            self._await_applied(index, future)
        if not self.readers:
            self.host.reading.pop(self.id, None)

    def _await_applied(self, index: int, future: asyncio.Future[Outcome]) -> None:
        self.applied_waiters.append((index, future))
        self.release_applied()

    def release_applied(self) -> None:
        """Answer the confirmed readers whose index is applied by now."""
        while self.applied_waiters and self.applied_waiters[0][0] <= self.applied:
            index, future = self.applied_waiters.popleft()
            if not future.done():
                future.set_result(Applied(None, index, self.term))

    def fail_readers(self) -> None:
        waiting = [reader[-1] for reader in self.readers] + [waiter[-1] for waiter in self.applied_waiters]
        for future in waiting:
            if not future.done():
                future.set_result(self.not_leader())
        self.readers.clear()
        self.applied_waiters.clear()
        self.held.give_up()
        self.host.reading.pop(self.id, None)

    # The leader's clock.

    def leader_tick(self, now: float) -> None:
        """Once per half heartbeat while anything is going on: heartbeats, quorum, quiet, transfer."""
        if self.lost_quorum() or self.host.disk_stalled():
            self.nominate()
            self.step_down()
            return
        self.continue_transfer()
        self.continue_change()
        assured = True
        for peer, progress in self.progress.items():
            assured &= self._tick_peer(peer, progress, now)
        if assured and self.is_idle():
            self.host.set_active(self, False)

    def _tick_peer(self, peer: int, progress: Progress, now: float) -> bool:
        """Keep one follower informed; whether nothing need be said to it until something happens."""
        if not self.host.connected(peer):
            return self.quorum_is_quiet()
        self.tick_snapshot(peer, now)
        if progress.quiet_since is not None and progress.settled == self.journal.last:
            return True
        if self.may_quiet(peer, progress, now):
            self.begin_quiet_towards(peer, progress, now)
            return progress.quiet_since is not None
        covered = progress.quiet_since is not None and progress.match == self.journal.last
        if not covered and now - progress.sent_at >= self.settings.heartbeat_seconds * 0.9:
            self.send_heartbeat(peer, progress, now)
        return False

    # Quiet: the shared heartbeat of a pair of nodes stands for the group.

    def is_idle(self) -> bool:
        """Everything here is committed and applied, and nobody waits."""
        last = self.journal.last
        settled = self.change is None and self.transfer_target is None
        return settled and self.commit == last == self.applied and not self.readers and not self.waiting

    def may_quiet(self, peer: int, progress: Progress, now: float) -> bool:
        """The follower has everything, was heard just now, and nothing new came for a whole heartbeat.

        One that fell silent gets the group's own heartbeats, or the lost quorum would be noticed late.
        """
        return (
            progress.phase is Phase.REPLICATE
            and progress.match == self.journal.last
            and self.is_idle()
            and now - self.idle_since >= self.settings.heartbeat_seconds
            and now - self.acked_at(peer) <= 2 * self.settings.heartbeat_seconds
        )

    def quorum_is_quiet(self) -> bool:
        """A majority of the voters takes the shared heartbeat, so an absent one needs no attention."""
        me = self.host.node_id
        quiet = sum(1 for node in self.voters if node == me or self._is_quiet(node))
        return quiet * 2 > len(self.voters)

    def _is_quiet(self, peer: int) -> bool:
        progress = self.progress.get(peer)
        return progress is not None and progress.quiet_since is not None

    def begin_quiet_towards(self, peer: int, progress: Progress, now: float) -> None:
        """From now on the pair's heartbeat stands for the group, until the leadership ends or the follower
        objects; new entries do not change that. Told again, it says that all up to here is committed.
        """
        if self.host.send(peer, Quiesce(self.id, MessageKind.QUIET, self.term, self.journal.last)):
            progress.settled = self.journal.last
            if progress.quiet_since is None:
                progress.quiet_since = now
                self.host.pair(peer).lead(self.id, self.term, now)

    def end_quiet_towards(self, peer: int, progress: Progress) -> None:
        if progress.quiet_since is not None:
            # What the shared heartbeat proved stays proven, or the next tick would find the quorum lost.
            progress.acked_sent_at = self.acked_at(peer)
            progress.quiet_since = None
            progress.settled = NOTHING
            self.host.pair(peer).unlead(self.id)
            self.host.set_active(self, True)

    def check_quorum(self) -> None:
        """A peer that shared its heartbeats has fallen silent: let the timer look, if it mattered."""
        if self.role == LEADER and self.lost_quorum():
            self.host.set_active(self, True)

    def wake_leader(self, peer: int) -> None:
        """The peer does not take the shared heartbeat for this group: say it by the group's own messages."""
        progress = self.progress.get(peer)
        if self.role == LEADER and progress is not None:
            self.end_quiet_towards(peer, progress)

    def on_quiet(self, peer: int, message: Quiesce) -> None:
        """The leader says that all is committed and will be silent: agree only if all is here."""
        last = message.last
        self.follow(peer)
        if self.damaged_below is not None or self.journal.last != last or self.journal.unsynced:
            self.leave_quiet()
            self.host.pair(peer).refuse(self.id)
            return
        self.commit = max(self.commit, last)
        if self.applied < self.commit:
            self.host.wake(self)
        if self.quiet_under != peer:
            self.leave_quiet()
            self.quiet_under = peer
        self.host.pair(peer).follow(self.id, self.term, self.host.now())
        self.host.set_active(self, False)

    def leave_quiet(self) -> None:
        """A follower goes back to its own timer, counted from when the leader was last heard."""
        if self.quiet_under is None:
            return
        self.heard_at = self.last_heard()
        now = self.host.now()
        self.host.pair(self.quiet_under).unfollow(self.id)
        self.quiet_under = None
        silent = self.host.attention.since(self.heard_at, now)
        self.deadline = self.host.attentive() - silent + self._SyncObj__generateRaftTimeout()
        self.host.set_active(self, True)

    # The pair's connection.

    def on_connect(self, peer: int) -> None:
        """A peer is back: what was under way to it is lost, so start from what it is known to hold."""
        progress = self.progress.get(peer)
        if self.role == LEADER and progress is not None:
            self._restart(peer, progress)
            self.host.wake(self)
        else:
            self.ask_first()

    def on_here(self, peer: int) -> None:
        """A follower's process has the group now: what it was asked before is lost, so ask at once."""
        progress = self.progress.get(peer)
        if self.role == LEADER and progress is not None and progress.phase is Phase.PROBE:
            progress.probe(progress.match + 1)
            self.host.wake(self)

    def on_disconnect(self, peer: int) -> None:
        """A peer is gone: nothing stands for this group between us any more."""
        progress = self.progress.get(peer)
        if self.role == LEADER and progress is not None:
            self._restart(peer, progress)
            self.held.give_up(self.in_sync())
        if self.quiet_under == peer:
            self.leave_quiet()
        if self.role == FOLLOWER and self.leader == peer:
            self.stand_in_turn(peer)

    def _restart(self, peer: int, progress: Progress) -> None:
        self.end_quiet_towards(peer, progress)
        self.end_snapshot(peer)
        progress.probe(progress.match + 1)
        self.host.set_active(self, True)

    # Declared here because another layer defines it.

    change: asyncio.Future[Outcome] | None

    def continue_change(self) -> None:
        raise NotImplementedError

    def tick_snapshot(self, peer: int, now: float) -> None:
        raise NotImplementedError
