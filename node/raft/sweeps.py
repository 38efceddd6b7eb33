"""Walks over all groups of a node, a slice in each turn of the loop.

A peer that comes or goes concerns every group. Ten thousand of them in one callback would keep the loop from
everything else for a tenth of a second, the heartbeats of the other peers included. Walks follow one another
in the order in which they were begun, so that each group sees a peer go before it sees it come back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from strandline.node.raft.group import RaftGroup

SLICE: Final = 128
"""Groups in one turn: one to three milliseconds."""


class Sweeps:
    """The walks of one node that are under way."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._walks: deque[tuple[Callable[[RaftGroup], None], deque[RaftGroup]]] = deque()

    def begin(self, visit: Callable[[RaftGroup], None], groups: Iterable[RaftGroup]) -> None:
        """Visit all these groups: a first slice now, unless other walks are under way."""
        idle = not self._walks
        self._walks.append((visit, deque(groups)))
        if idle:
            self._slice()

    def _slice(self) -> None:
        left = SLICE
        while self._walks and left:
            visit, groups = self._walks[0]
            while groups and left:
                left -= 1
                visit(groups.popleft())
            if not groups:
                self._walks.popleft()
        if self._walks:
            self._loop.call_soon(self._slice)
