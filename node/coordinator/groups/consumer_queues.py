"""Queues of the events that wait for a turn of their consumer group.

All events that wait when a turn begins are planned together, within bounds; the turns of a group come one
after the other, those of different groups at the same time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from strandline.node.coordinator.groups.consumer_classic import ClassicJoin
from strandline.node.coordinator.groups.consumer_events import Answer, MemberEvent, TimerExpired
from strandline.node.coordinator.groups.consumer_member import JOINING

MAX_WAITING: Final = 20_000
"""Events of one group's members that wait for their turn."""
MAX_TURN_EVENTS: Final = 1_000
MAX_TURN_BYTES: Final = 1024 * 1024
"""Of one turn, about: an entry of the log takes 4 MiB, and the targets have to go with it."""

Turn = list[tuple[MemberEvent, "asyncio.Future[Answer] | None"]]
"""Events that are planned together; each request has a future for its answer, a timer's end has none."""


@dataclass(slots=True)
class _Queue:
    events: deque[tuple[MemberEvent, asyncio.Future[Answer] | None]] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None
    turn: Turn = field(default_factory=list)
    """Events of the present turn."""

    def taken(self) -> Turn:
        """All events of the queue, which has none from now on."""
        events = [*self.turn, *self.events]
        self.turn.clear()
        self.events.clear()
        return events


class TurnQueues:
    """The queues of one coordinator's groups. Belongs to one loop.

    `run` takes a turn; `is_over` says whether the end of a timer still counts when its turn comes; `failed`
    gets the events of a group whose turn raised an exception.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        run: Callable[[str, Turn], Awaitable[None]],
        is_over: Callable[[str, TimerExpired], bool],
        failed: Callable[[str, Turn], None],
    ) -> None:
        self._loop = loop
        self._run = run
        self._is_over = is_over
        self._failed = failed
        self._queues: dict[str, _Queue] = {}

    def put(self, group_id: str, event: MemberEvent, future: asyncio.Future[Answer] | None) -> None:
        """Let an event wait for a turn of its group."""
        queue = self._queues.setdefault(group_id, _Queue())
        queue.events.append((event, future))
        if queue.task is None:
            queue.task = self._loop.create_task(self._work(group_id, queue))
            queue.task.add_done_callback(partial(self._worked, group_id, queue))

    def is_full(self, group_id: str) -> bool:
        """Whether as many events of the group wait as may wait."""
        queue = self._queues.get(group_id)
        return queue is not None and len(queue.events) >= MAX_WAITING

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._queues

    @property
    def group_ids(self) -> Collection[str]:
        """The groups that have events."""
        return self._queues.keys()

    @property
    def waiting(self) -> int:
        """Number of events that wait, in all groups."""
        return sum(len(queue.events) + len(queue.turn) for queue in self._queues.values())

    def stop(self) -> list[Turn]:
        """End all turns; returns the events that waited, by group."""
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            if queue.task is not None:
                queue.task.cancel()
        return [queue.taken() for queue in queues.values()]

    async def _work(self, group_id: str, queue: _Queue) -> None:
        try:
            while queue.events:
                queue.turn = self._next_turn(group_id, queue)
                if queue.turn:
                    await self._run(group_id, queue.turn)
                queue.turn = []
        finally:  # now: a member that was just answered may send a request before this task's callbacks run
            if self._queues.get(group_id) is queue:
                del self._queues[group_id]

    def _worked(self, group_id: str, queue: _Queue, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(group_id, queue.taken())
            message = "a turn of a consumer group failed"
            self._loop.call_exception_handler({"message": message, "exception": error})

    def _next_turn(self, group_id: str, queue: _Queue) -> Turn:
        """The events that are planned together: one of each member, as its second may answer its first."""
        turn: Turn = []
        members: set[str] = set()
        size = 0
        while queue.events and len(turn) < MAX_TURN_EVENTS and size < MAX_TURN_BYTES:
            event, future = queue.events[0]
            if event.member_id in members:
                break
            queue.events.popleft()
            if isinstance(event, TimerExpired):
                if not self._is_over(group_id, event):
                    continue
            elif isinstance(event, ClassicJoin):  # it has joined, whether or not it hears of it
                size += 256 + event.size
            elif future is not None and future.done() and event.epoch >= JOINING:
                continue  # the client is gone (one that leaves may be gone and is still removed)
            else:
                size += 256 + sum(map(len, event.topics or ())) + len(event.pattern or "")
            members.add(event.member_id)
            turn.append((event, future))
        return turn
