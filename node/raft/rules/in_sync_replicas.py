"""The replicas that keep up, and waiting for more of them than a majority (Kafka's min.insync.replicas)."""

from __future__ import annotations

import asyncio
import logging

from strandline.node.raft.pysyncobj_seam import LEADER
from strandline.node.raft.rules.commitment import Commitment
from strandline.node.raft.rules.lease import Lease
from strandline.node.raft.rules.progress import Phase
from strandline.node.raft.rules.replica_state import Part, ReplicaState
from strandline.node.raft.rules.replica_waits import ReplicaWaits

log = logging.getLogger(__name__)


class InSyncReplicas(Part):
    """The voters in sync, and the requests that wait for more of them than a majority."""

    __slots__ = ("commitment", "lease", "waits")

    def __init__(self, state: ReplicaState, lease: Lease, commitment: Commitment) -> None:
        super().__init__(state)
        self.lease = lease
        self.commitment = commitment
        self.waits: ReplicaWaits = ReplicaWaits()
        """Callers that wait until more voters than a majority hold an entry."""

    def count(self) -> int:
        """Number of voters, this one included, that answer and have nearly all committed entries.

        A follower counts while its log is known to match, it lags by no more than a full pipeline, and it has
        answered within the longest election timeout: a follower that is slow for a moment still counts.
        """
        return 1 + len(self.state.other_voters()) - len(self.behind())

    def behind(self) -> list[int]:
        """The other voters, as the leader counts them, that are not in sync.

        An operator's question puts this to every group that a node leads, so it is one bare loop.
        """
        state, acked_at, me = self.state, self.lease.acked_at, self.host.node_id
        oldest = self.host.now() - self.settings.election_max_seconds
        least = state.commit - self.settings.max_inflight_messages
        found = []
        for peer in state.voters:
            if peer == me:
                continue
            progress = state.progress.get(peer)
            if (
                progress is None
                or progress.phase is not Phase.REPLICATE
                or progress.match < least
                or acked_at(peer) < oldest
            ):
                found.append(peer)
        return found

    def when_held(self, index: int, count: int) -> asyncio.Future[bool]:
        """Resolves to True once `count` voters hold entry `index`, which is committed, on their disks.

        To False when fewer are there, or this node leads no more; a caller that does not wait
        for ever gives it that result itself.
        """
        future: asyncio.Future[bool] = self.host.loop.create_future()
        if self.state.role != LEADER:
            future.set_result(False)
        else:
            self.waits.add(index, count, future)
            self.waits.release(self.commitment.matches())
        return future

    def release(self) -> None:
        """Answer the requests that wait for entries that enough voters hold by now."""
        if self.waits:
            self.waits.release(self.commitment.matches())

    def give_up(self, in_sync: int = 0) -> None:
        """Answer False to requests that wait for more than `in_sync` voters."""
        self.waits.give_up(in_sync)
