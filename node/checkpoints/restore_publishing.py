"""Takes restore points now and then, at the node that leads the controller.

A cluster in which nothing has changed since the newest point takes none. The objects that a point names
are kept by leases. So while no next point is taken, the leases of the newest one are renewed: else the point
would be worthless just when it is needed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from strandline.node.checkpoints.checkpoint_coordinator import CheckpointCoordinator, CheckpointUnderWay
from strandline.node.checkpoints.context import CheckpointContext
from strandline.node.controller.periodic import PeriodicPart
from strandline.node.objectstore.store import StoreError
from strandline.snapshot.restore_point import RestorePoint

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
TAKE_SECONDS: Final = 60.0
"""Time limit for one point."""
RENEW_SECONDS: Final = 20.0
FIRST_SECONDS: Final = 60.0
"""Time until the first point of all, and between two looks for the first topic."""
RETRY_SECONDS: Final = 300.0
"""Longest time until a point that could not be taken is tried again."""
SPARE_INTERVALS: Final = 2
SPARE_SECONDS: Final = 900.0
"""A lease lasts the interval and so many more, or this long, and TAKE_SECONDS: two points may fail, and a
renewal with them. Until then it keeps what has moved to other objects meanwhile."""
PUTS_PER_SECOND: Final = 20.0
"""A point takes two puts for each replica, of its document and its log. With more groups points come less
often, so that this is never exceeded on average."""


class RestorePublishing(PeriodicPart):
    """At work while this node leads the controller."""

    def __init__(
        self,
        context: CheckpointContext,
        coordinator: CheckpointCoordinator,
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(LOOK_SECONDS, "a restore point was not taken; the next one is tried", loop=loop)
        self._context = context
        self._coordinator = coordinator
        self._least = context.config.checkpoints.interval
        self._due: float | None = None
        """By the loop's time; None while this node does not lead."""

    def start(self) -> None:
        """See PeriodicPart; nothing where `checkpoints.interval` is 0."""
        if self._least:
            super().start()

    @property
    def interval(self) -> float:
        """Seconds from one point to the next, with the topics that there are."""
        machine = self._context.controller.machine
        members = [partition.replicas for topic in machine.topics for partition in topic.partitions]
        puts = 2 * (sum(map(len, members)) + len(machine.nodes)) + 1
        return max(self._least, puts / PUTS_PER_SECOND)

    @property
    def lease_ms(self) -> int:
        """Length of the leases of what a point names."""
        spare = min(SPARE_INTERVALS * self.interval, SPARE_SECONDS)
        return round((self.interval + spare + TAKE_SECONDS) * 1000)

    async def _look(self) -> None:
        if self._context.controller.leader != self._context.config.node.id:
            self._due = None
            self._coordinator.changes.forget_controller()
            return
        now = self._loop.time()
        if self._due is not None and now < self._due:
            return
        first_look = self._due is None
        self._due = now + min(self.interval, RETRY_SECONDS)
        try:
            newest = await self._coordinator.points.newest()
            if first_look:
                self._due = now + self._first_wait(newest)
            elif newest is None and not self._context.controller.machine.topics:
                self._due = now + min(self.interval, FIRST_SECONDS)
            elif (newest is not None and await self._goes_on(newest)) or await self._take():
                self._due = now + self.interval
            elif newest is not None:
                await self._renew(newest)
        except StoreError as error:
            log.warning("no restore point is taken: %s; it is tried again", error)

    def _first_wait(self, newest: RestorePoint | None) -> float:
        """Seconds until the first point of this leader: the leader before may have taken one lately."""
        if newest is None:
            return min(self.interval, FIRST_SECONDS)
        age = (self._context.wall_ms() - newest.taken_ms) / 1000
        return min(max(0.0, self.interval - age), self.interval)

    async def _goes_on(self, newest: RestorePoint) -> bool:
        """Whether the newest point has all that there is, and goes on to be kept."""
        return not await self._coordinator.changes.since(newest) and await self._renew(newest)

    async def _renew(self, point: RestorePoint) -> bool:
        """Renew a point's leases; whether none of them has ended."""
        leases = self._coordinator.points.leases(point)
        report = await self._coordinator.renew(leases, self.lease_ms, RENEW_SECONDS)
        return not any(lease.ended for lease in report.checkpoints)

    async def _take(self) -> bool:
        why: str | None = "a partition has no leader"
        if self._all_led():
            try:
                limit = min(TAKE_SECONDS, self.interval)
                report = await self._coordinator.take(None, self.lease_ms, limit)
            except CheckpointUnderWay as error:
                why = str(error)
            else:
                if report.restore_point is not None:
                    log.info("restore point %d is taken", report.restore_point)
                    return True
                why = report.no_restore_point
        log.warning("no restore point is taken: %s; the newest one is kept", why)
        return False

    def _all_led(self) -> bool:
        """Whether each group has a leader: without, transactions would be held for nothing."""
        return all(
            self._context.leaders.leader_of(partition.group) is not None
            for topic in self._context.controller.machine.topics
            for partition in topic.partitions
        )
