"""Reads a restore point from the storage, with the states that it names, and changes nothing there.

A state that cannot be read, or that names an object which is gone, is found here, before anything is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from strandline.node.objectstore.storage_owner import KEY, Owner, read_owner
from strandline.node.objectstore.store import ObjectNotFound, ObjectStore
from strandline.node.restore.point_choice import (
    Candidate,
    candidates,
    decoded,
    numbers,
    publishing_ms,
    read_documents_point,
    read_tail_point,
)
from strandline.node.restore.reading import READS_AT_ONCE, CannotRestore, for_each, names_below
from strandline.node.restore.stored_tails import newest_tail_ms, tail_documents
from strandline.snapshot.document import SnapshotDamaged, SnapshotDocument, SnapshotTooNew, decode
from strandline.snapshot.names import snapshot_name
from strandline.snapshot.restore_point import (
    GroupState,
    RestoreAttempt,
    RestorePoint,
    attempt_number,
    attempts_prefix,
    decode_attempt,
)
from strandline.snapshot.tail_point import TailPoint
from strandline.statemachine.controller.controller_snapshot import load
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP, ControllerState
from strandline.statemachine.internal_topics import INTERNAL_TOPICS
from strandline.statemachine.object_names import PREFIX as LEVEL_ZERO_PREFIX
from strandline.statemachine.partition.extent import ObjectExtent
from strandline.statemachine.partition.level_one import LEVEL_ONE_PREFIX, level_one_name
from strandline.statemachine.partition.partition_state import PartitionState

_NAMED: Final = 3
"""Things that a refusal names; the rest is counted."""
_ATTEMPT_CURE: Final = (
    "bring it back. It is the record of a restore, which says the numbers that the restored cluster may have"
    " used, so that no point can be restored without it"
)


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """One partition as the point has it."""

    group: int
    topic: str
    partition: int
    start_offset: int
    end_offset: int
    """Records below it are restored, and none from it on."""


@dataclass(slots=True)
class StoredPoint:
    """A restore point with its states, checked against what the storage holds."""

    owner: Owner
    point: RestorePoint
    attempts: tuple[RestoreAttempt, ...]
    controller: ControllerState
    documents: dict[int, SnapshotDocument]
    """By group; a group that the controller knows and that has none was created after the point's others."""
    partitions: list[StoredPartition] = field(default_factory=list)
    later_points: int = 0
    """Newer points, if an earlier one was asked for."""
    named: frozenset[str] = frozenset()
    """Objects of level zero and one that the states name, each of which is there."""
    names: frozenset[str] = frozenset()
    """All objects of level zero and one that were there."""
    tail_point: TailPoint | None = None
    """The tail point, if the states are from tails; None: they are documents."""
    last_sign_ms: int | None = None
    """Unix ms of the newest tail, of whatever life; None where there are no tails."""
    interval_ms: int = 0
    """The time between two publications of tails, about which see `point_choice.publishing_ms`."""
    unusable: tuple[str, ...] = ()
    """For each later point that was passed over, its problem."""

    @property
    def missing_seconds(self) -> float | None:
        """The time whose records may be missing: from the point to the newest tail, and one publishing
        interval more. None where that cannot be told: there are no tails."""
        if self.last_sign_ms is None:
            return None
        return (max(0, self.last_sign_ms - self.point.taken_ms) + self.interval_ms) / 1000

    @property
    def named_objects(self) -> int:
        """Number of the objects that the states name."""
        return len(self.named)

    @property
    def later_objects(self) -> int:
        """Objects that no state names: some have later records, which are not restored."""
        return len(self.names) - self.named_objects


async def read_point(store: ObjectStore, number: int | None = None, *, leased: bool = False) -> StoredPoint:
    """Read the newest restore point, or the one of this number; with `leased` only one whose objects are kept
    by leases, so no tail point. Raises CannotRestore, StoreError, and ForeignStorage if the storage's owner
    cannot be read."""
    owner = await read_owner(store)
    if owner is None:
        names = await store.list("", "", 1)
        if not names:
            raise CannotRestore(
                "the storage is empty", "name the folder or prefix that the cluster had as storage.url"
            )
        raise CannotRestore(
            f"the storage has no object {KEY!r}, which names the cluster that it belongs to",
            "name the folder or prefix that the cluster had as storage.url",
        )
    attempts = await read_attempts(store, owner.cluster)
    unusable: list[str] = []
    to_try = await candidates(store, owner, number, leased=leased)
    for left, candidate in zip(range(len(to_try) - 1, -1, -1), to_try, strict=True):
        try:
            found = await _read(store, owner, attempts, candidate)
        except CannotRestore as problem:
            if not candidate.is_tail_point or not left:
                raise
            unusable.append(f"{candidate}: {problem.cause}")
            continue
        found.later_points = 0 if number is None else sum(one > number for one in await numbers(store, owner))
        found.unusable = tuple(unusable)
        return found
    raise AssertionError("the last candidate is returned or raised")


async def _read(
    store: ObjectStore, owner: Owner, attempts: tuple[RestoreAttempt, ...], candidate: Candidate
) -> StoredPoint:
    """Read a point with its states, and check what they name; raises CannotRestore, StoreError."""
    tail_point = await read_tail_point(store, owner, candidate) if candidate.is_tail_point else None
    if tail_point is None:
        point = await read_documents_point(store, owner, candidate.number)
    else:
        point = _as_restore_point(tail_point)
    _check_incarnation(owner, point, attempts)
    documents = await (_documents(store, point) if tail_point is None else tail_documents(store, tail_point))
    state = _controller(documents, point)
    found = StoredPoint(owner, point, attempts, state, documents, tail_point=tail_point)
    found.last_sign_ms = await newest_tail_ms(store, point.cluster)
    found.interval_ms = await publishing_ms(store, owner) if tail_point is None else tail_point.interval_ms
    await _check_objects(store, found)
    return found


async def read_attempts(store: ObjectStore, cluster: str) -> tuple[RestoreAttempt, ...]:
    """All records of attempts to restore, in the order of names. Raises CannotRestore, StoreError."""
    found: list[RestoreAttempt] = []
    async for name in names_below(store, attempts_prefix(cluster)):
        if attempt_number(name) is not None:
            data = bytes(await store.get(name))
            found.append(decoded(name, decode_attempt, data, _ATTEMPT_CURE))
    return tuple(found)


def _as_restore_point(point: TailPoint) -> RestorePoint:
    groups = tuple(GroupState(one.group, one.log_index, one.node) for one in point.groups)
    return RestorePoint(
        point.cluster, point.incarnation, point.number, point.taken_ms, point.cluster_epoch, 0, groups
    )


def _check_incarnation(owner: Owner, point: RestorePoint, attempts: Sequence[RestoreAttempt]) -> None:
    """Raise CannotRestore if the storage's owner changed otherwise than by an attempt to restore."""
    if owner.incarnation not in (point.incarnation, *(attempt.incarnation for attempt in attempts)):
        raise CannotRestore(
            f"restore point {point.number} is of incarnation {point.incarnation}, and the storage belongs to"
            f" {owner}",
            "name the storage that the cluster had",
        )


async def _documents(store: ObjectStore, point: RestorePoint) -> dict[int, SnapshotDocument]:
    found: dict[int, SnapshotDocument] = {}

    async def read(named: GroupState) -> None:
        found[named.group] = await _document(store, point.cluster, named)

    await for_each(point.groups, read, READS_AT_ONCE)
    return dict(sorted(found.items()))


async def _document(store: ObjectStore, cluster: str, named: GroupState) -> SnapshotDocument:
    name = snapshot_name(cluster, named.group, named.log_index, named.node)
    try:
        document = decode(bytes(await store.get(name)))
    except ObjectNotFound:
        raise CannotRestore(
            f"{name}, which the restore point names, is gone",
            "name an earlier point with --point, or bring the object back",
        ) from None
    except (SnapshotDamaged, SnapshotTooNew) as error:
        raise CannotRestore(
            f"{name}: {error}", "bring the object back, or name an earlier point with --point"
        ) from None
    if (document.cluster, document.group, document.index) != (cluster, named.group, named.log_index):
        raise CannotRestore(
            f"{name} holds the state of group {document.group} of cluster {document.cluster!r} at entry"
            f" {document.index}",
            "the object was copied or renamed: bring the right one back",
        )
    return document


def _controller(documents: Mapping[int, SnapshotDocument], point: RestorePoint) -> ControllerState:
    document = documents.get(CONTROLLER_GROUP)
    if document is None:
        raise CannotRestore(f"restore point {point.number} lacks the controller", "name an earlier one")
    try:
        return load(document.state)
    except ValueError as error:
        raise CannotRestore(
            f"the controller's state cannot be read: {error}", "name an earlier point"
        ) from None


async def _check_objects(store: ObjectStore, found: StoredPoint) -> None:
    """Compare what the partitions name with what the storage holds."""
    stored_names = await object_names(store)
    named: set[str] = set()
    lost: list[str] = []
    for topic in found.controller.topics.values():
        if topic.name in INTERNAL_TOPICS:
            continue
        for number, place in enumerate(topic.partitions):
            document = found.documents.get(place.group)
            if document is None:
                found.partitions.append(StoredPartition(place.group, topic.name, number, 0, 0))
                continue
            try:
                state = PartitionState.loaded(document.state)
            except Exception as error:
                raise CannotRestore(
                    f"the state of {topic.name}-{number} cannot be read: {error}",
                    "use the release that wrote it, or name an earlier point with --point",
                ) from None
            names = set(_objects(state, topic.topic_id, number))
            if names - stored_names:
                lost.append(f"{topic.name}-{number} ({min(names - stored_names)})")
            named |= names
            found.partitions.append(
                StoredPartition(place.group, topic.name, number, state.start_offset, state.next_offset)
            )
    if lost:
        more = f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
        raise CannotRestore(
            f"objects that restore point {found.point.number} names are gone, of {', '.join(lost[:_NAMED])}"
            f"{more}",
            "its leases ended, or something else deleted them: bring them back, or name another point with"
            " --point",
        )
    found.names, found.named = stored_names, frozenset(named)


async def object_names(store: ObjectStore) -> frozenset[str]:
    """Names of all objects of level zero and one; raises StoreError."""
    prefixes = (LEVEL_ZERO_PREFIX, LEVEL_ONE_PREFIX)
    return frozenset([name for prefix in prefixes async for name in names_below(store, prefix)])


def _objects(state: PartitionState, topic_id: bytes, number: int) -> Iterator[str]:
    """Names of the objects that a reader of the partition may need."""
    for extent in state.extents:
        if isinstance(extent, ObjectExtent):
            yield extent.object_name
    for one in state.level_one:
        yield level_one_name(topic_id, number, one.term, one.unique)
