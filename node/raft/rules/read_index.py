"""Linearizable reads: by the leader's lease, or by a round that a majority answers (Raft §8, thesis §6.4)."""

from __future__ import annotations

import asyncio
import logging

from strandline.node.raft.outcome import Applied, Outcome
from strandline.node.raft.pysyncobj_seam import LEADER
from strandline.node.raft.rules.lease import Lease
from strandline.node.raft.rules.replica_state import Part, ReplicaState
from strandline.node.raft.rules.replication import Replication

log = logging.getLogger(__name__)


class ReadIndex(Part):
    """Linearizable reads of a leader."""

    __slots__ = ("applied_waiters", "lease", "replication")

    def __init__(self, state: ReplicaState, lease: Lease, replication: Replication) -> None:
        super().__init__(state)
        self.lease = lease
        self.replication = replication
        self.applied_waiters: list[tuple[int, asyncio.Future[Outcome]]] = []
        """(read index, future), confirmed and waiting for entries to be applied."""

    async def barrier(self) -> Outcome:
        """Wait until this node is confirmed to lead and has applied all that was committed before the call.

        Returns Applied, or NotLeader; a read has no effect, so its outcome is never unknown. After it,
        state read from the machine on this node is linearizable (thesis §6.4).
        """
        state = self.state
        if state.role != LEADER or state.failure is not None:
            return state.not_leader()
        index = max(state.commit, state.term_start)
        future: asyncio.Future[Outcome] = self.host.loop.create_future()
        if self.lease.holds():
            self.applied_waiters.append((index, future))
            self.release()
        else:
            state.readers.append((self.host.now(), index, future))
            self.host.reading[state.id] = state
            for peer in state.progress:
                if self.host.connected(peer):
                    self.replication.send_heartbeat(peer, state.progress[peer], self.host.now())
            self.confirm()
        return await future

    def confirm(self) -> None:
        """Let the readers go on that asked before the newest round a majority answered was sent.

        An older round gives a lease, which serves all of them: as long as it lasts, no other node leads. A
        new leader's first message leaves before anything is asked of it, and the next a heartbeat later.
        """
        state = self.state
        if not state.readers:
            return
        heard = self.host.now() if self.lease.holds() else self.lease.quorum_heard_at()
        confirmed = 0
        for asked_at, index, future in state.readers:
            if asked_at > heard:
                break
            self.applied_waiters.append((index, future))
            confirmed += 1
        del state.readers[:confirmed]
        self.release()
        if not state.readers:
            self.host.reading.pop(state.id, None)

    def release(self) -> None:
        """Answer the confirmed readers whose index is applied by now."""
        state = self.state
        applied = 0
        for index, future in self.applied_waiters:
            if index > state.applied:
                break
            if not future.done():
                future.set_result(Applied(None, index, state.term))
            applied += 1
        del self.applied_waiters[:applied]

    def fail(self) -> None:
        state = self.state
        waiting = [reader[-1] for reader in state.readers] + [waiter[-1] for waiter in self.applied_waiters]
        for future in waiting:
            if not future.done():
                future.set_result(state.not_leader())
        state.readers.clear()
        self.applied_waiters.clear()
        self.host.reading.pop(state.id, None)
