"""The end of a node's leaderships: for good before it stops, or for a while, so that it can be restarted."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from strandline.node.raft.group import RaftGroup
from strandline.node.raft.group_services import GroupServices

log = logging.getLogger(__name__)

AT_ONCE: Final = 64
"""Groups that are handed over at a time."""
ROUND_SECONDS: Final = 2.0
"""Time limit of one round of a drain for a while; then it begins again with what the node still leads."""
PAUSE_SECONDS: Final = 0.1
"""Between two such rounds: a group whose followers could not take over is tried again."""
LEADERLESS_TIMEOUTS: Final = 2.0
"""Longest election timeouts without a leader after which a group needs this node. Another had time to win:
it may lack an entry that this node has."""


class LeaderDrain:
    """Hands over what a node leads, and keeps it from leading again. Everything belongs on the host's loop.

    A node that is drained votes, and follows as before.
    """

    def __init__(self, host: GroupServices) -> None:
        self._host = host
        self._for_good = False
        self._until = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def seconds_left(self) -> float | None:
        """Seconds until a drain for a while ends; None without one."""
        return self._until - self._host.loop.time() if self._task is not None else None

    def for_good(self) -> None:
        """Take no leadership from now on, as the node is about to stop."""
        self.end()
        self._for_good = True
        self._host.leaving = True

    def for_a_while(self, seconds: float) -> bool:
        """Hand over all leaderships and take none, for this time; False if the node is about to stop.

        A restart ends it with the process. If none comes, the node may lead again by itself: so a drain that
        its operator forgets costs the cluster no more than this time. It ends sooner if a group finds no
        leader without this node.
        """
        if self._for_good:
            return False
        self.end()
        self._until = self._host.loop.time() + seconds
        self._host.leaving = True
        self._task = self._host.loop.create_task(self._run())
        return True

    def end(self) -> None:
        """Lead again from now on, unless the node is about to stop."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
            self._host.leaving = False

    async def hand_over(self, seconds: float) -> None:
        """Transfer this node's leaderships, for up to this many seconds.

        A part at a time: thousands of elections at once would take the other nodes' leaders down with them.
        """
        host = self._host
        deadline = host.loop.time() + seconds
        while host.loop.time() < deadline:
            led = [group for group in host.by_rank() if group.is_leader and len(group.voters) > 1]
            under_way = sum(group.transfer_target is not None for group in led)
            for group in led:
                if under_way >= AT_ONCE:
                    break
                under_way += group.transfer()
            if not under_way:
                return
            await asyncio.sleep(host.config.heartbeat_seconds / 4)

    def _could_lead(self, group: RaftGroup) -> bool:
        """Whether this node could lead a group but for the drain; a replica that joins could not."""
        return self._host.node_id in group.voters and group.failure is None and group.damaged_below is None

    async def _run(self) -> None:
        host = self._host
        since: dict[int, float] = {}
        patience = LEADERLESS_TIMEOUTS * host.config.election_max_seconds
        while (left := self._until - host.loop.time()) > 0:
            try:
                await self.hand_over(min(left, ROUND_SECONDS))
            except Exception:
                log.exception("handing leaderships over failed and will be retried")
            await asyncio.sleep(PAUSE_SECONDS)
            now = host.loop.time()
            since = {
                group.id: since.get(group.id, now)
                for group in host.groups.values()
                if not group.is_leader and group.leader is None and self._could_lead(group)
            }
            if any(now - began >= patience for began in since.values()):
                log.warning(
                    "the drain of this node's leaderships ends: group %d has no leader without it", min(since)
                )
                self.end()
                return
        log.info("this node was drained of its leaderships, and may lead again")
        self.end()
