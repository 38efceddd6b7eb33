"""Takes tail points: restore points whose states are in tails, each time that nodes publish what is new.

The node that leads the controller has all live nodes look in step (tail_publishing.py), while decisions on
transactions are held, for some milliseconds and never over a second. In the order of a restore point's
documents each node says up to which entry it publishes each group that it leads, and that it leads the group
for sure. Once all of these tails are stored, the entries are put in one object. Where that cannot be done,
nothing is lost but the point: the tails are there, and the next look tries again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from strandline.node.checkpoints.context import CheckpointContext
from strandline.node.checkpoints.restore_points import NoRestorePoint, RestorePoints
from strandline.node.checkpoints.tail_pruning import stored_points
from strandline.node.checkpoints.tail_publishing import CUT, DUE, LOOKS, STEP_SECONDS, STORED
from strandline.node.controller.periodic import PeriodicPart
from strandline.node.coordinator.decision_hold import SHORT_HOLD_SECONDS
from strandline.node.objectstore.store import MAX_DELETE, StoreError
from strandline.node.rpc import CallFailed
from strandline.snapshot.tail_point import GroupEntry, TailPoint
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP

log = logging.getLogger(__name__)

KEPT_POINTS: Final = 3
"""So many tail points stay, the newest."""
DELETED_AT_ONCE: Final = 12
"""A deletion for so many of those that do not stay."""
MOST_LEFT: Final = 100
"""A deletion that fails has the next look take another point, and so try again, while fewer are left. With
more, the storage lets none be deleted, which is no matter of the points that are put."""
STORED_SECONDS: Final = 10.0
"""Time limit for the upload of the tails. After it there is no point: what the states name may go soon."""
WARN_SECONDS: Final = 60.0
"""A point that is older has a line in the log. An election, or a node that restarts, takes less."""


@dataclass(slots=True)
class TailPointMeasures:
    """Counts since the process started."""

    taken: int = 0
    missed: int = 0
    """Looks at which something was new and no point could be put."""


class TailPoints(PeriodicPart):
    """At work while this node leads the controller."""

    def __init__(
        self, context: CheckpointContext, points: RestorePoints, *, loop: asyncio.AbstractEventLoop
    ) -> None:
        seconds = context.config.publish.seconds
        super().__init__(seconds / LOOKS, "a tail point was not taken; the next one is tried", loop=loop)
        self._context = context
        self._points = points
        self._enabled = bool(seconds)
        self._interval_ms = round(seconds * 1000)
        self._names: list[str] | None = None
        """Names of the points that are stored, oldest first; None while this node does not lead."""
        self._undeleted = False
        """Whether points that do not stay could not be deleted the last time."""
        self._taken_ms = 0
        """Of the last point that this node chose."""
        self._missed = True
        """Whether the newest point may lack something that was published."""
        self.measures = TailPointMeasures()
        self._whole_at: float | None = None
        """The loop's time when the newest point had all that was published, or this node began to lead."""
        self._warned = False

    @property
    def age(self) -> float | None:
        """Seconds since the newest point had all that was published; None where this node takes none."""
        return None if self._whole_at is None else self._loop.time() - self._whole_at

    def start(self) -> None:
        """See PeriodicPart; nothing where no tails are wanted."""
        if self._enabled:
            super().start()

    async def _look(self) -> None:
        if self._context.controller.leader != self._context.config.node.id:
            self._names, self._missed, self._whole_at, self._warned = None, True, None, False
            return
        if self._whole_at is None:
            self._whole_at = self._loop.time()
        began = self._loop.time()
        machine = self._context.controller.machine
        nodes = [node for node, known in machine.nodes.items() if not known.fenced]
        try:
            if self._missed or any(await self._each(nodes, DUE, [])):
                self._missed = True
                point = await self._take()
                await self._put(point)
                self.measures.taken += 1
        except (NoRestorePoint, StoreError, CallFailed, TimeoutError) as error:
            self.measures.missed += 1
            self._tell(error)
            return
        self._missed, self._whole_at = False, began
        if self._warned:
            log.info("a restore would go on from a tail point of some seconds again")
        self._warned = False

    def _tell(self, error: Exception) -> None:
        """Warn once of points that cannot be taken for long, until one is."""
        age = self.age or 0.0
        if age > WARN_SECONDS and not self._warned:
            log.warning("no tail point for %.0f s, so that a restore would go further back: %s", age, error)
            self._warned = True
        log.debug("no tail point: %s", error)

    async def _take(self) -> TailPoint:
        """Choose the entries, and have all tails that lead to them stored.

        Raises NoRestorePoint, CallFailed, TimeoutError.
        """
        context, token = self._context, 1 + self._context.rng.getrandbits(62)
        held = await self._points.begin(SHORT_HOLD_SECONDS)
        chosen: dict[int, GroupEntry] = {}
        try:
            for step in range(STORED):
                answers = await self._each(held.nodes, CUT, [token, step])
                for node, rows in zip(held.nodes, answers, strict=True):
                    for group, index, term in rows:
                        _choose(chosen, GroupEntry(group, index, term, node))
            number, epoch = self._controller_entry(chosen)
        except BaseException:
            self._points.let_go(held)
            raise
        await self._points.end(held)
        # Names tell which of two points is the later one, also where the clock goes back.
        self._taken_ms = max(held.began_ms, self._taken_ms + 1)
        floors = await self._each(held.nodes, CUT, [token, STORED], STORED_SECONDS)
        return TailPoint(
            context.config.cluster.id,
            context.controller.machine.incarnation or "",
            number,
            self._taken_ms,
            epoch,
            self._interval_ms,
            tuple((node, *floor) for node, floor in zip(held.nodes, floors, strict=True) if floor),
            tuple(sorted(chosen.values())),
        )

    def _controller_entry(self, chosen: dict[int, GroupEntry]) -> tuple[int, int]:
        """The number of the point and the cluster epoch, once each group that the controller knows has its
        entry; raises NoRestorePoint."""
        machine = self._context.controller.machine
        known = {place.group for topic in machine.topics for place in topic.partitions} | {CONTROLLER_GROUP}
        if known - chosen.keys():
            raise NoRestorePoint(f"no node leads group {min(known - chosen.keys())} for sure")
        if chosen[CONTROLLER_GROUP].node != self._context.config.node.id:
            raise NoRestorePoint("the controller has another leader")
        return machine.applied_index, machine.cluster_epoch

    async def _put(self, point: TailPoint) -> None:
        store = self._context.store
        if self._names is None:
            self._names = await stored_points(store, self._context.config.cluster.id)
        await store.put(point.name, [point.encode()])
        if point.name not in self._names:
            self._names.append(point.name)
        old = sorted(self._names)[:-KEPT_POINTS]
        if len(old) >= DELETED_AT_ONCE:
            await self._delete(old)

    async def _delete(self, old: Sequence[str]) -> None:
        """Delete points that do not stay, the oldest first, as many as one request takes. Raises StoreError
        while few are left."""
        going = old[:MAX_DELETE]
        try:
            await self._context.store.delete_many(going)
        except StoreError as error:
            if len(old) < MOST_LEFT:
                raise
            if not self._undeleted:
                log.warning("tail points before the newest %d are kept for now: %s", KEPT_POINTS, error)
            self._undeleted = True
            return
        self._undeleted = False
        self._names = sorted({*(self._names or ())} - {*going})

    async def _each(
        self, nodes: Sequence[int], method: str, payload: Any, seconds: float = STEP_SECONDS
    ) -> list[Any]:
        """The answers of all nodes; raises CallFailed if there is one without."""
        calls = self._context.calls
        tasks = [self._loop.create_task(calls.call(node, method, payload, seconds)) for node in nodes]
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers


def _choose(chosen: dict[int, GroupEntry], entry: GroupEntry) -> None:
    """Each of two nodes may have led a group for sure, one after the other."""
    before = chosen.get(entry.group)
    if before is None or before.term < entry.term:
        chosen[entry.group] = entry
