"""A wall clock for nodes whose own clock is far off: the time that most nodes of the cluster agree on.

Retention deletes by age, and leases end by time. A node that was started with its clock a year ahead would
delete objects that the others keep. So each node sends the time of its own clock now and then, and a node
that is far from most of them follows the others instead. Differences of seconds are ignored: they do no harm,
and message delays must not lead a disciplined clock astray.

The other nodes' times are kept relative to the loop's clock, which only runs forward: so they hold when this
node's own wall clock jumps, and when a node is silent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

FAR_MS: Final = 10_000
"""Largest difference of two clocks that count as equal."""
SAMPLES: Final = 8
"""Samples of one node's clock that are kept. A message that was delayed makes its sender's clock look slow,
never fast, so the greatest sample is the nearest to the truth."""


class ClockEstimate(NamedTuple):
    """The offset of this node's clock from those of the others."""

    offset_ms: int
    """Correction of this node's own clock; 0 while it is close to the others."""
    trusted: bool
    """Whether more than half of the cluster's nodes, this one included, agree on the time."""


class ClusterClock:
    """One node's idea of the time, in ms since 1970. Belongs to `loop`."""

    def __init__(
        self,
        node: int,
        nodes: Callable[[], Sequence[int]],
        wall_ms: Callable[[], int],
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`nodes()` are those of the cluster now, this one, `node`, included; `wall_ms` is its own clock."""
        self._node = node
        self._nodes = nodes
        self._wall_ms = wall_ms
        self._loop = loop
        self._shown: dict[int, deque[int]] = {}
        """For each other node, the time of its clock when the loop's clock was 0."""
        self._near: int | None = None
        """As of the last sample: own readings near this one need no second look."""

    def own_ms(self) -> int:
        """This node's own clock, which is sent to others uncorrected."""
        return self._wall_ms()

    def observe(self, node: int, wall_ms: int) -> None:
        """Take the time that another node's own clock has just shown."""
        if node == self._node:
            return
        self._shown.setdefault(node, deque(maxlen=SAMPLES)).append(wall_ms - self._loop_ms())
        estimate = self.estimate()
        self._near = None if estimate.offset_ms else self._wall_ms() - self._loop_ms()

    def now_ms(self) -> int:
        """The time: that of the own clock, unless most of the cluster agrees on another."""
        own = self._wall_ms()
        if not self._shown or (self._near is not None and abs(own - self._loop_ms() - self._near) < FAR_MS):
            return own
        return own + self.estimate().offset_ms

    def agreed_ms(self) -> int | None:
        """The time that most nodes agree on; None while they do not: nothing may go by its age then."""
        return self.now_ms() if self.trusted else None

    @property
    def trusted(self) -> bool:
        """Whether deletions may depend on `now_ms`. False if no majority of the nodes agrees on the time: too
        few have sent their time, or the clocks of those that have contradict each other."""
        return self.estimate().trusted

    def estimate(self) -> ClockEstimate:
        """This node's clock compared with those of the others."""
        own = self._wall_ms() - self._loop_ms()
        nodes = self._nodes()
        shown = sorted([own, *[max(times) for node, times in self._shown.items() if node in nodes]])
        middle = shown[(len(shown) - 1) // 2]
        # If there is a majority that agrees, the median is one of it, or lies between two of it.
        agreeing = len([other for other in shown if abs(other - middle) <= FAR_MS])
        if 2 * agreeing <= len(nodes):
            return ClockEstimate(0, trusted=False)
        return ClockEstimate(0 if abs(own - middle) <= FAR_MS else middle - own, trusted=True)

    def _loop_ms(self) -> int:
        return int(1000 * self._loop.time())
