"""Requests that wait until more replicas than a majority hold an entry.

A committed entry is on a majority's disks. A topic may require more replicas before a record is acknowledged
(Kafka's `min.insync.replicas`). This module has no influence on commitment.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable


class ReplicaWaits:
    """The waits of one leader, in one term: a queue for each number of replicas that is waited for."""

    __slots__ = ("_queues",)

    def __init__(self) -> None:
        self._queues: dict[int, deque[tuple[int, asyncio.Future[bool]]]] = {}

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, index: int, count: int, future: asyncio.Future[bool]) -> None:
        """Tell `future` True once `count` voters hold entry `index`. Indexes do not go down."""
        self._queues.setdefault(count, deque()).append((index, future))

    def release(self, matches: Iterable[int]) -> None:
        """Answer the requests whose entries enough voters hold, given each voter's durable index."""
        ordered = sorted(matches, reverse=True)
        for count, queue in list(self._queues.items()):
            level = ordered[count - 1] if count <= len(ordered) else -1
            while queue and queue[0][0] <= level:
                _tell(queue.popleft()[1], True)
            if not queue:
                del self._queues[count]

    def give_up(self, in_sync: int = 0) -> None:
        """Answer False to all requests that wait for more than `in_sync` voters."""
        for count in [count for count in self._queues if count > in_sync]:
            for _, future in self._queues.pop(count):
                _tell(future, False)


def _tell(future: asyncio.Future[bool], held: bool) -> None:
    if not future.done():
        future.set_result(held)
