"""Restore points: a checkpoint of all topics that a cluster can go on from, named in the storage.

Documents of different groups fit together if no transaction is decided between the first and the last, if
coordinators of groups come before partitions, and coordinators of transactions after them; docs/restore.md
gives the reasons. So decisions are held on all nodes while the documents are taken (`begin`, `end`), and the
point is put once every document is stored (`put`). A checkpoint for which that could not be done is a
checkpoint like any other, and only the point is missing.

Pruning (checkpoint_pruning.py) knows of a point when it is put, and not before. A node may stand still
between its documents and its point, at any step, for any time. So a point is put within a time in which no
pruning can have overlooked it, and its documents are looked at once it is there; else it is taken back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from strandline.node.checkpoints.context import CheckpointContext
from strandline.node.checkpoints.rounds import each
from strandline.node.coordinator.decision_hold import (
    HOLD,
    MAX_HOLD_SECONDS,
    RELEASE,
    SETTLE_SECONDS,
)
from strandline.node.objectstore.store import MAX_DELETE, MAX_LIST, ObjectNotFound, StoreError, every_name
from strandline.node.rpc import CallFailed
from strandline.snapshot.document import decode
from strandline.snapshot.names import snapshot_name
from strandline.snapshot.restore_point import (
    GroupState,
    RestorePoint,
    RestorePointDamaged,
    attempt_number,
    attempts_prefix,
    decode_point,
    point_name,
    point_number,
    points_prefix,
)
from strandline.statemachine.controller import controller_snapshot
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP, Topic
from strandline.statemachine.internal_topics import INTERNAL_TOPICS, TRANSACTIONS_TOPIC

log = logging.getLogger(__name__)

KEPT_POINTS: Final = 3
"""So many points stay, the newest. The documents of an earlier one may be gone."""
POINT_SECONDS: Final = 720.0
"""Longest time from before a point's first document until the point is there: a checkpoint lasts 600 s at
most. It is a fifth below the time for which pruning waits, so that clocks may differ in their rate."""
_CALL_SECONDS: Final = SETTLE_SECONDS + 1.0


class NoRestorePoint(Exception):
    """A checkpoint is no restore point; one line says why."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A hold of decisions on these nodes."""

    token: int
    nodes: tuple[int, ...]
    led: Mapping[int, int]
    """Term of the leader of each coordinator of transactions, by Raft group."""
    topic: Topic | None
    """The coordinators' topic; None if there were no transactions yet."""
    began_ms: int
    began: float
    """The loop's time before the first document was asked for."""


class RestorePoints:
    """One per node. Everything belongs on the context's loop."""

    def __init__(self, context: CheckpointContext) -> None:
        self._context = context

    async def begin(self, seconds: float = MAX_HOLD_SECONDS) -> Holding:
        """Hold the decisions on transactions on every live node for so long at most; raises NoRestorePoint.

        Only while all coordinators of transactions have a leader that holds still is a point taken.
        """
        machine, began = self._context.controller.machine, self._context.loop.time()
        token = 1 + self._context.rng.getrandbits(62)
        nodes = tuple(node for node, known in machine.nodes.items() if not known.fenced)
        held = Holding(token, nodes, {}, machine.topic(TRANSACTIONS_TOPIC), self._context.wall_ms(), began)
        try:
            led = await self._each(nodes, HOLD, [token, int(seconds * 1000)])
            _check_all_led(held.topic, led)
        except NoRestorePoint:
            self.let_go(held)
            raise
        return replace(held, led=led)

    async def end(self, held: Holding) -> None:
        """Let decisions go on. Raises NoRestorePoint unless they were held on all nodes until now."""
        try:
            led = await self._each(held.nodes, RELEASE, [held.token])
        except NoRestorePoint:
            self.let_go(held)
            raise
        if led != held.led:
            raise NoRestorePoint("a coordinator of transactions changed its leader meanwhile")
        known = self._context.controller.machine.topic(TRANSACTIONS_TOPIC)
        if (known is None) != (held.topic is None):
            raise NoRestorePoint("the first transaction began meanwhile")

    async def put(self, held: Holding, groups: Sequence[GroupState]) -> int:
        """Name the documents in the storage, and give the point's number; raises NoRestorePoint.

        The number is the log index of the controller's document, which was taken while decisions were held.
        Only one node holds them at a time. So a later point has a higher number, however late its node puts
        it, and no two points have the same. A later one may be there already, and then this one is not put.
        Nor is one that comes too late. One that turns out to be late, or to name what is gone, is taken back.
        Points before the newest ones are deleted. A deletion that fails is repeated with the next point.
        """
        machine, store = self._context.controller.machine, self._context.store
        cluster = self._context.config.cluster.id
        (controller,) = [state for state in groups if state.group == CONTROLLER_GROUP]
        number = controller.log_index
        try:
            await self._check_groups(controller, groups)
            points = await self._names()
            attempts = await store.list(attempts_prefix(cluster), "", MAX_LIST)
            newest = max((point_number(name) or 0 for name in points), default=0)
            if newest >= number:
                raise NoRestorePoint(f"restore point {newest}, which was taken later, is there already")
            made = RestorePoint(
                cluster,
                machine.incarnation or "",
                number,
                held.began_ms,
                machine.cluster_epoch,
                max((attempt_number(name) or 0 for name in attempts), default=0),
                tuple(sorted(groups)),
            )
            self._check_age(held)
            await store.put(point_name(cluster, number), [made.encode()])
        except StoreError as error:
            raise NoRestorePoint(f"the storage: {error}") from error
        try:
            await self._confirm(groups)
            self._check_age(held)
        except NoRestorePoint as problem:
            raise NoRestorePoint(f"{problem}{await self._take_back(number)}") from None
        try:
            await store.delete_many(points[: 1 - KEPT_POINTS][-MAX_DELETE:])
        except StoreError as error:
            log.warning("restore points before the newest %d are kept for now: %s", KEPT_POINTS, error)
        return number

    def _check_age(self, held: Holding) -> None:
        """Raise NoRestorePoint if pruning may have taken the documents for such that no point names."""
        age = self._context.loop.time() - held.began
        if age > POINT_SECONDS:
            raise NoRestorePoint(
                f"it is {age:,.0f} s old, and after {POINT_SECONDS:,.0f} s its documents may be deleted: the"
                " node or its storage stood still meanwhile; take another"
            )

    async def _confirm(self, groups: Sequence[GroupState]) -> None:
        """See that the documents of a point are there. Raises NoRestorePoint."""
        cluster = self._context.config.cluster.id
        problems: list[str] = []

        async def look(state: GroupState) -> None:
            name = snapshot_name(cluster, *state)
            try:
                await self._context.store.size(name)
            except ObjectNotFound:
                problems.append(f"{name} was deleted before the point was there: take another")
            except StoreError as error:
                problems.append(f"the storage: {error}")

        await each(groups, look)
        if problems:
            raise NoRestorePoint(problems[0])

    async def _take_back(self, number: int) -> str:
        """Delete a point that must not be relied on; gives what there is to say of it."""
        name = point_name(self._context.config.cluster.id, number)
        try:
            await self._context.store.delete_many([name])
        except StoreError as error:
            log.error("%s may name documents that are gone, and cannot be deleted: %s", name, error)
            return f"; {name} is left, and restores nothing: delete it"
        return ""

    async def _check_groups(self, controller: GroupState, groups: Sequence[GroupState]) -> None:
        """See that these are the groups that the controller's document knows.

        Raises NoRestorePoint, and StoreError. A topic may have come or gone since the groups were looked up.
        """
        name = snapshot_name(self._context.config.cluster.id, *controller)
        try:
            state = controller_snapshot.load(decode(bytes(await self._context.store.get(name))).state)
        except ValueError as error:
            raise NoRestorePoint(f"the controller's document {name} cannot be read: {error}") from error
        known = {place.group for topic in state.topics.values() for place in topic.partitions}
        differing = known.symmetric_difference(one.group for one in groups) - {CONTROLLER_GROUP}
        if differing:
            raise NoRestorePoint(
                f"topics were made or deleted meanwhile, as that of group {min(differing)}: take another"
            )

    async def kept(self) -> list[RestorePoint]:
        """The points that stay, oldest first; raises StoreError, and RestorePointDamaged with its name."""
        kept = []
        for name in (await self._names())[-KEPT_POINTS:]:
            try:
                kept.append(decode_point(bytes(await self._context.store.get(name))))
            except RestorePointDamaged as error:
                raise RestorePointDamaged(f"{name}: {error}") from error
        return kept

    async def forget(self, point: RestorePoint, document: str) -> None:
        """Delete a point of which a document is gone; raises StoreError.

        Its node ended between the point and its look at the documents, or something else deleted them.
        """
        name = point_name(self._context.config.cluster.id, point.number)
        log.error("%s names %s, which is gone: the point restores nothing and is deleted", name, document)
        await self._context.store.delete_many([name])

    async def newest(self) -> RestorePoint | None:
        """The newest point, if this life of the cluster took it and it can be read; raises StoreError."""
        points = await self._names()
        if not points:
            return None
        try:
            point = decode_point(bytes(await self._context.store.get(points[-1])))
        except ObjectNotFound:
            return None  # its node has taken it back meanwhile
        except RestorePointDamaged as error:
            log.error("%s: %s", points[-1], error)
            return None
        return point if point.incarnation == self._context.controller.machine.incarnation else None

    def leases(self, point: RestorePoint) -> list[tuple[int, int]]:
        """Group and log index of each partition that a point names: coordinators and the controller have no
        leases."""
        partitions = {
            partition.group
            for topic in self._context.controller.machine.topics
            if topic.name not in INTERNAL_TOPICS
            for partition in topic.partitions
        }
        return [(one.group, one.log_index) for one in point.groups if one.group in partitions]

    async def _names(self) -> list[str]:
        """Names of all points in the storage, oldest first; raises StoreError."""
        names = await every_name(self._context.store, points_prefix(self._context.config.cluster.id))
        return [name for name in names if point_number(name) is not None]

    async def _each(self, nodes: Sequence[int], method: str, payload: list[int]) -> dict[int, int]:
        """Call all nodes; gives the leader's term of each coordinator of transactions, by group."""
        calls = self._context.calls
        tasks = [
            self._context.loop.create_task(calls.call(node, method, payload, _CALL_SECONDS)) for node in nodes
        ]
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        led: dict[int, int] = {}
        for node, answer in zip(nodes, answers, strict=True):
            if isinstance(answer, CallFailed):
                raise NoRestorePoint(f"node {node} does not hold its transactions still: {answer.reason}")
            if isinstance(answer, BaseException):
                raise answer
            led |= {int(group): int(term) for group, term in answer}
        return led

    def let_go(self, held: Holding) -> None:
        """End the hold wherever it lasts; where that cannot be said it ends by itself."""
        for node in held.nodes:
            self._context.calls.tell(node, RELEASE, [held.token])


def _check_all_led(topic: Topic | None, led: Mapping[int, int]) -> None:
    known = {place.group for place in topic.partitions} if topic else set()
    if led.keys() - known:
        raise NoRestorePoint("the first transaction began just now, and this node does not know of it yet")
    missing = [place.group for place in topic.partitions if place.group not in led] if topic else []
    if missing:
        raise NoRestorePoint(
            f"{len(missing)} coordinators of transactions have no leader that is ready, as that of group"
            f" {missing[0]}"
        )
