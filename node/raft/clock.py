"""The node's time: it never goes back, and it is known when the loop did not run."""

from __future__ import annotations

import asyncio

from strandline.node.raft.attention import Attention
from strandline.node.raft.config import RaftConfig
from strandline.node.raft.gap_log import GapLog
from strandline.node.raft.rules.progress import NEVER


class HostClock:
    """Seconds of one clock for all groups of a node."""

    def __init__(self, loop: asyncio.AbstractEventLoop, config: RaftConfig) -> None:
        self._loop = loop
        self._config = config
        self._behind = 0.0
        self._newest = loop.time()
        self._gap_log = GapLog()
        self.last_tick = self._newest
        self.attention = Attention(self._newest, config.tick_seconds)
        self.time_gap = (NEVER, NEVER)
        """Between which times the loop last did not run, or the clock jumped."""

    def start(self) -> None:
        """Ticks come from now on."""
        self.last_tick = self.now()
        self.attention = Attention(self.last_tick, self._config.tick_seconds)

    def now(self) -> float:
        """Seconds, never going backward even if the loop's clock does.

        A clock that was set back does not say how long ago it was: as long as a vote may have taken, so that
        no lease outlives it.
        """
        seen = self._loop.time() + self._behind
        if seen < self._newest:
            lost = self._newest - seen + self._config.election_min_seconds
            self._behind += lost
            seen += lost
        self._newest = seen
        return seen

    def attentive(self) -> float:
        """`now` on a clock that stops while the loop is blocked; see Attention."""
        return self.attention.clock(self.now())

    def notice_gap(self, now: float) -> None:
        """Restart the node's promises after a pause of the loop or a jump of the clock.

        A frame may be the first event after a jump. By the old promises its sender would get a vote while the
        leader's lease still runs.
        """
        gap = now - self.last_tick
        if gap > self._config.time_gap_seconds:
            before, self.last_tick = self.last_tick, now
            self._gap_log.add(now, gap)
            first, last = self.time_gap
            if before - last < self._config.election_min_seconds:
                # The promises that restarted at the earlier gap still hold, so the two gaps are one.
                before = first
            self.time_gap = before, now
