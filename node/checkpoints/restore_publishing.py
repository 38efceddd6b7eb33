"""Takes restore points now and then, at the node that leads the controller.

The objects that a point names are kept by leases. So while a next point cannot be taken, the leases of the
newest one are renewed: else the point would be worthless just when it is needed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from strandline.node.checkpoints.checkpoint_coordinator import CheckpointCoordinator, CheckpointUnderWay
from strandline.node.checkpoints.context import CheckpointContext
from strandline.node.controller.periodic import PeriodicPart

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
TAKE_SECONDS: Final = 60.0
"""Time limit for one point."""
RENEW_SECONDS: Final = 20.0
SPARE_LEASES: Final = 3
"""Intervals that a lease lasts, and TAKE_SECONDS more: two points may fail, and a renewal with them."""
PUTS_PER_SECOND: Final = 20.0
"""A point takes a put for each replica and one for each group's log. With more groups they come less often,
so that this is never exceeded on average."""


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
        self._least = context.config.checkpoints.publish_seconds
        self._due: float | None = None
        """By the loop's time; None while this node does not lead."""

    def start(self) -> None:
        """See PeriodicPart; nothing where `checkpoints.publish_seconds` is 0."""
        if self._least:
            super().start()

    @property
    def interval(self) -> float:
        """Seconds from one point to the next, with the topics that there are."""
        machine = self._context.controller.machine
        members = [partition.replicas for topic in machine.topics for partition in topic.partitions]
        puts = sum(map(len, members)) + len(members) + len(machine.nodes) + 2
        return max(self._least, puts / PUTS_PER_SECOND)

    async def _look(self) -> None:
        if self._context.controller.leader != self._context.config.node.id:
            self._due = None
            return
        now = self._loop.time()
        if self._due is None:
            self._due = now + self.interval
        if now < self._due:
            return
        self._due = now + self.interval
        lease_ms = round((SPARE_LEASES * self.interval + TAKE_SECONDS) * 1000)
        why: str | None = "a partition has no leader"
        if self._all_led():
            try:
                report = await self._coordinator.take(None, lease_ms, min(TAKE_SECONDS, self.interval))
            except CheckpointUnderWay as error:
                why = str(error)
            else:
                if report.restore_point is not None:
                    log.info("restore point %d is taken", report.restore_point)
                    return
                why = report.no_restore_point
        log.warning("no restore point is taken: %s; the newest one is kept", why)
        leases = await self._coordinator.points.newest_leases()
        if leases:
            await self._coordinator.renew(leases, lease_ms, RENEW_SECONDS)

    def _all_led(self) -> bool:
        """Whether each group has a leader: without, transactions would be held for nothing."""
        return all(
            self._context.leaders.leader_of(partition.group) is not None
            for topic in self._context.controller.machine.topics
            for partition in topic.partitions
        )
