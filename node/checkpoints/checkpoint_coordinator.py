"""Taking a checkpoint of whole topics: every partition, then the controller, then wait for the documents.

The controller comes last, so that its document knows every topic whose partitions have one. Nothing makes the
groups stand still together: each stops at an entry of its own, on all of its replicas. A checkpoint of all
topics is a restore point where that can be had (restore_points.py). A command whose answer
was lost may have been carried out; a repetition takes one more checkpoint, which is harmless. So every
step is repeated until it succeeds or the time is over, and the report gives each group's progress.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from strandline.node.checkpoints.changes import Changes, contents, controller_contents
from strandline.node.checkpoints.checkpoint_pruning import CheckpointPruning
from strandline.node.checkpoints.context import CheckpointContext
from strandline.node.checkpoints.renewal import RenewalReport, Renewals
from strandline.node.checkpoints.restore_points import Holding, NoRestorePoint, RestorePoints
from strandline.node.checkpoints.rounds import CALL_SECONDS, each, rounds
from strandline.node.controller.client import Unavailable
from strandline.node.controller.members import member_ids
from strandline.node.objectstore.store import StoreError
from strandline.node.refusal import Refusal
from strandline.node.rpc import CallFailed
from strandline.snapshot.names import SnapshotName, checkpoint_prefix, parse_name
from strandline.snapshot.restore_point import GroupState
from strandline.statemachine.controller.controller_commands import ControllerCheckpoint
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP
from strandline.statemachine.coordinator_machine import CoordinatorCheckpoint
from strandline.statemachine.internal_topics import GROUPS_TOPIC, INTERNAL_TOPICS, TRANSACTIONS_TOPIC
from strandline.statemachine.partition.partition_commands import Checkpoint, CheckpointTaken

METHOD = "checkpoint"
_SHARES: Final = (1 / 8, 3 / 8, 1 / 2)
"""Parts of the time by which each of the `_phases` is over."""
MAX_DOCUMENTS = 1_000


@dataclass(frozen=True, slots=True)
class PublishedCheckpoint:
    """One group's part. `topic` and `partition` are None for the controller; without an `index` the
    checkpoint was not taken, as far as is known, and `error` says why."""

    group: int
    topic: str | None
    partition: int | None
    index: int | None
    published_by: tuple[int, ...]
    missing: tuple[int, ...]
    """Live replicas whose document was not in the store when the time was over."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """Result of a `take`: partitions in the order of their topics, then the controller."""

    cluster: str
    checkpoints: tuple[PublishedCheckpoint, ...]
    restore_point: int | None = None
    """Number of the restore point that names these documents; see docs/restore.md."""
    no_restore_point: str | None = None
    """The reason why there is none; None also where not all topics were asked for."""

    @property
    def complete(self) -> bool:
        """Every group has its checkpoint, from every replica that is alive."""
        return all(part.index is not None and not part.missing for part in self.checkpoints)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"complete": self.complete, **asdict(self)}


class UnknownTopic(ValueError):
    """A topic that was asked for does not exist."""


class CheckpointUnderWay(Exception):
    """Another checkpoint was being taken on this node until the time was over."""


@dataclass(slots=True)
class _Part:
    """One group's checkpoint on its way."""

    group: int
    topic: str | None
    partition: int | None
    replicas: tuple[int, ...]
    index: int | None = None
    published: tuple[int, ...] = ()
    error: str | None = None


@dataclass(slots=True)
class _Point:
    """The restore point that a checkpoint of all topics is to be."""

    held: Holding | None = None
    number: int | None = None
    problem: str | None = None


def _taken(part: _Part) -> bool:
    return part.index is not None


def _phases(parts: Sequence[_Part]) -> tuple[list[_Part], list[_Part], list[_Part]]:
    """Coordinators of groups, partitions, coordinators of transactions.

    So no offset of a group is above the end of its partition, and each open transaction of a partition is
    known to its coordinator (docs/restore.md).
    """
    groups = [part for part in parts if part.topic == GROUPS_TOPIC]
    transactions = [part for part in parts if part.topic == TRANSACTIONS_TOPIC]
    return groups, [part for part in parts if part.topic not in INTERNAL_TOPICS], transactions


class CheckpointCoordinator:
    """One per node; also answers the others' calls for the groups that are led here."""

    def __init__(self, context: CheckpointContext) -> None:
        self._context = context
        self.points = RestorePoints(context)
        self.changes = Changes(context)
        self._retention = CheckpointPruning(context, self.points)
        self._renewals = Renewals(context)
        self._one = asyncio.Lock()
        context.calls.serve(METHOD, self._serve)

    async def take(self, topics: Sequence[str] | None, lease_ms: int, timeout: float) -> CheckpointReport:  # noqa: ASYNC109
        """Take a checkpoint of these topics, or of all, and of the controller; lease it for this many ms.

        Works on any node and returns within `timeout` seconds, with what there is by then. A node takes one
        at a time: raises CheckpointUnderWay if another one does not end within `timeout`. Raises UnknownTopic
        before anything is done.
        """
        if lease_ms < 0:
            raise ValueError(f"no lease lasts {lease_ms} ms")
        end = self._context.loop.time() + timeout
        try:
            async with asyncio.timeout_at(end):
                await self._one.acquire()
        except TimeoutError:
            raise CheckpointUnderWay("a checkpoint is being taken on this node: wait for it") from None
        try:
            return await self._take(topics, lease_ms, end)
        finally:
            self._one.release()

    async def _take(self, topics: Sequence[str] | None, lease_ms: int, end: float) -> CheckpointReport:
        loop, point = self._context.loop, _Point()
        # Without it, a topic whose records are acknowledged might be missing here and from the point.
        known = await self._context.controller.catch_up((end - loop.time()) / 8)
        partitions = self._partitions(topics)
        if topics is None and known:
            await self._hold(point)
        elif topics is None:
            point.problem = "the controller did not say in time which topics there are"
        peers = tuple(member_ids(self._context.config.cluster.nodes, self._context.controller.machine))
        controller = _Part(CONTROLLER_GROUP, None, None, peers)
        parts = [*partitions, controller]
        # What cannot be had in one phase must not take the time of the next.
        began = loop.time()
        timeout = end - began
        try:
            for share, phase in zip(_SHARES, _phases(partitions), strict=True):
                await rounds(
                    loop,
                    phase,
                    lambda part: self._take_partition(part, lease_ms),
                    _taken,
                    began + timeout * share,
                )
            await rounds(loop, [controller], self._take_controller, _taken, began + timeout * 3 / 4)
        finally:
            await self._let_go(point)
        taken = list(filter(_taken, parts))
        # One group whose documents do not come must not keep all others' old ones for ever.
        found_by = end - min(timeout / 10, CALL_SECONDS)
        await rounds(loop, taken, self._find_documents, lambda part: not self._missing(part), found_by)
        # Only where the new one can be read: else an older one may be all that a reader has.
        published = [part for part in taken if part.published and not self._missing(part)]
        await self._put(point, parts, published)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(end):
                await each(published, self._remove_older)
        return CheckpointReport(
            self._context.config.cluster.id, tuple(map(self._reported, parts)), point.number, point.problem
        )

    async def _hold(self, point: _Point) -> None:
        try:
            point.held = await self.points.begin()
        except NoRestorePoint as problem:
            point.problem = str(problem)

    async def _let_go(self, point: _Point) -> None:
        if point.held is not None:
            try:
                await self.points.end(point.held)
            except NoRestorePoint as problem:
                point.problem = str(problem)

    async def _put(self, point: _Point, parts: Sequence[_Part], published: Sequence[_Part]) -> None:
        """Name the documents of all groups as a restore point, if they are one."""
        if point.held is None or point.problem is not None:
            return
        if len(published) < len(parts):
            point.problem = f"{len(parts) - len(published)} of {len(parts)} groups have no document of it"
            return
        states = [GroupState(part.group, part.index or 0, part.published[0]) for part in parts]
        try:
            point.number = await self.points.put(point.held, states)
        except NoRestorePoint as problem:
            point.problem = str(problem)

    async def renew(
        self,
        checkpoints: Sequence[tuple[int, int]],
        lease_ms: int,
        timeout: float,  # noqa: ASYNC109
    ) -> RenewalReport:
        """Renew leases; see Renewals.renew. Works on any node."""
        return await self._renewals.renew(checkpoints, lease_ms, timeout)

    def _partitions(self, names: Sequence[str] | None) -> list[_Part]:
        machine = self._context.controller.machine
        chosen = machine.topics
        if names is not None:
            found = {name: machine.topic(name) for name in names}
            unknown = [name for name, topic in found.items() if topic is None]
            if unknown:
                raise UnknownTopic(f"there is no topic {', '.join(unknown)}: see the list of topics")
            chosen = tuple(topic for topic in found.values() if topic is not None)
        return [
            _Part(partition.group, topic.name, number, partition.replicas)
            for topic in chosen
            for number, partition in enumerate(topic.partitions)
        ]

    async def _take_partition(self, part: _Part, lease_ms: int) -> None:
        leader = self._context.leaders.leader_of(part.group)
        if leader is None:
            part.error = "no leader is known: a majority of its replicas is down, or cannot be reached"
            return
        try:
            answer = await self._context.calls.call(leader.node, METHOD, [part.group, lease_ms], CALL_SECONDS)
        except CallFailed as failed:
            part.error = f"node {leader.node}, its leader: {failed.reason}"
            return
        part.index = answer if isinstance(answer, int) else None
        part.error = None if part.index is not None else f"node {leader.node}, its leader: {answer}"

    async def _take_controller(self, part: _Part) -> None:
        before = controller_contents(self._context.controller.machine)
        result = await self._context.controller.submit(ControllerCheckpoint(), timeout=CALL_SECONDS)
        if isinstance(result, int):
            part.index, part.error = result, None
            self.changes.taken(CONTROLLER_GROUP, result, before)
        else:
            part.error = result.reason if isinstance(result, Unavailable) else str(result)

    async def _find_documents(self, part: _Part) -> None:
        """See whose documents are in the store."""
        assert part.index is not None
        prefix = checkpoint_prefix(self._context.config.cluster.id, part.group, part.index)
        try:
            names = await self._context.store.list(prefix, "", MAX_DOCUMENTS)
        except StoreError as error:
            part.error = f"its documents cannot be listed: {error}"
            return
        found = [parse_name(name) for name in names]
        part.published = tuple(sorted(name.node for name in found if isinstance(name, SnapshotName)))
        part.error = None

    async def _remove_older(self, part: _Part) -> None:
        """Have its leader delete the checkpoints before it that are retained no more."""
        assert part.index is not None
        if part.group == CONTROLLER_GROUP:
            leader = self._context.controller.leader
        else:
            known = self._context.leaders.leader_of(part.group)
            leader = None if known is None else known.node
        if leader is not None:
            await self._retention.remove(leader, part.group, part.index)

    def _missing(self, part: _Part) -> tuple[int, ...]:
        """Replicas that count as alive and have no document there."""
        nodes = self._context.controller.machine.nodes
        live = [node for node in part.replicas if node in nodes and not nodes[node].fenced]
        return tuple(node for node in sorted(live) if node not in part.published)

    def _reported(self, part: _Part) -> PublishedCheckpoint:
        error = part.error
        if part.index is None and error is None:
            error = "the time was over before there was an answer"
        return PublishedCheckpoint(
            part.group, part.topic, part.partition, part.index, part.published, self._missing(part), error
        )

    async def _serve(self, peer: int, payload: Any) -> Any:
        """Take the checkpoint of a group that is led here: its index, or one line that says why not."""
        match payload:
            case [int(group), int(lease_ms)] if lease_ms >= 0:
                coordinator = self._context.coordinators.by_group(group)
                if coordinator is not None:
                    # Nothing of it lies elsewhere, so there is nothing that a lease could keep.
                    result = await coordinator.execute(CoordinatorCheckpoint())
                    return result.message if isinstance(result, Refusal) else result
                replica = self._context.partitions.by_group(group)
                if replica is None:
                    return "it has no replica of the group"
                await self._retention.release(replica)
                before = contents(replica.machine)
                result = await replica.execute(Checkpoint(lease_ms))
                if not isinstance(result, CheckpointTaken):
                    return str(result)
                self.changes.taken(group, result.log_index, before)
                return result.log_index
            case _:
                raise CallFailed("that is not a group and lease", unknown=False)
