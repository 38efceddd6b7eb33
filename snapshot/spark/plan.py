"""From the newest published checkpoints to what each Spark task reads.

The controller's checkpoint says which groups a topic has, each group's checkpoint where its batches lie. An
object holds batches of many partitions, so tasks are cut along objects rather than partitions: each object is
read by one task or two, whatever the number of partitions. A task costs tens of milliseconds in Python, so
there are few of them, and each reads in windows that bound its memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Final

import msgpack
import numpy as np
from numpy.typing import NDArray

from snapshot.document import SnapshotDamaged, SnapshotDocument, SnapshotTooNew, decode
from snapshot.extent_rows import EXTENT_ROWS
from snapshot.names import PREFIX, SnapshotName, group_prefix, parse_name
from snapshot.spark.fetch import PARALLEL_GETS, Slice, first_offset_since
from snapshot.spark.options import EARLIEST, LATEST, ReadOptions, SourceError
from snapshot.storage import ObjectMissing, Storage, StorageError
from statemachine.controller_state import CONTROLLER_GROUP, ControllerState, Topic
from statemachine.extents import INLINE_ROW
from statemachine.object_names import OBJECT_ID_BYTES
from statemachine.partition import SNAPSHOT_FIELDS, SNAPSHOT_FORMAT

WINDOW_BYTES: Final = 16 * 1024 * 1024
"""Stored bytes that a task fetches and decodes at a time; also what a task should at least have to do."""
TASKS_PER_CORE: Final = 3
LISTINGS: Final = 3
"""How often a group's checkpoints are listed when the newest is gone before it was read."""

_HASH: Final = np.uint64(0x9E3779B97F4A7C15) ** np.arange(1, 1 + OBJECT_ID_BYTES // 4, dtype=np.uint64)
"""Powers of an odd number, so that every word of an id counts."""

Rows = NDArray[Any]
Window = tuple[Slice, ...]


@dataclass(frozen=True)
class PartitionView:
    """A partition as of its newest published checkpoint, and the part of it that is wanted."""

    topic: str
    number: int
    document: str
    """Name of the checkpoint's document, for messages."""
    first: int
    end: int
    rows: Rows
    inline: Mapping[int, bytes]

    def within(self, first: int, end: int) -> PartitionView:
        """The same with only the extents that hold offsets in `[first, end)`."""
        first, end = max(first, self.first), min(end, self.end)
        base = self.rows["base_offset"]
        rows = self.rows[(base < end) & (base + self.rows["record_count"] > first)]
        return replace(self, first=first, end=max(end, first), rows=rows)

    def slice(self, chosen: Any) -> Slice:
        """Some of its extents, in offset order, as a task gets them."""
        rows = self.rows[np.sort(chosen)]
        bases = rows["base_offset"][rows["kind"] == INLINE_ROW].tolist()
        inline = {base: self.inline[base] for base in bases}
        return Slice(self.topic, self.number, self.document, self.first, self.end, rows.tobytes(), inline)


def plan(storage: Storage, options: ReadOptions, parallelism: int) -> list[tuple[Window, ...]]:
    """The windows of each task; raises SourceError. `parallelism` is the number of cores there are."""
    try:
        views = _views(storage, options)
    except StorageError as error:
        raise SourceError(str(error)) from error
    return pack(views, parallelism, options.min_partitions)


def newest_document(storage: Storage, cluster: str, group: int) -> tuple[str, SnapshotDocument] | None:
    """Name and content of a group's newest published checkpoint, from any replica whose document is whole.

    Raises SourceError when none is, or all are of a newer format.
    """
    for _ in range(LISTINGS - 1):
        try:
            return _newest_listed(storage, cluster, group)
        except ObjectMissing:
            continue  # newer ones have taken its place
    return _newest_listed(storage, cluster, group)


def _newest_listed(storage: Storage, cluster: str, group: int) -> tuple[str, SnapshotDocument] | None:
    names = [(parse_name(key), key) for key in storage.list(group_prefix(cluster, group))]
    published = [(name.log_index, key) for name, key in names if isinstance(name, SnapshotName)]
    newest = max((index for index, _ in published), default=0)
    problem = None
    for index, key in published:
        if index == newest:
            try:
                return key, decode(storage.get(key))
            except (SnapshotDamaged, SnapshotTooNew) as error:
                problem = problem or SourceError(f"{key}: {error}")
    if problem is not None:
        raise problem
    return None


def _views(storage: Storage, options: ReadOptions) -> list[PartitionView]:
    cluster = options.cluster or _only_cluster(storage)
    topics = _wanted_topics(storage, cluster, options)
    wanted = [
        (topic, number)
        for topic in topics
        for number in range(len(topic.partitions))
        if (chosen := options.topics[topic.name]) is None or number in chosen
    ]
    with ThreadPoolExecutor(PARALLEL_GETS) as pool:
        return list(pool.map(partial(_view, storage, cluster, options), wanted))


def _only_cluster(storage: Storage) -> str:
    found = storage.folders(PREFIX)
    if not found:
        raise SourceError(f"{storage.url}: no checkpoint is published there: run `strandline checkpoint`")
    if len(found) > 1:
        names = ", ".join(found)
        raise SourceError(
            f"{storage.url} holds several clusters ({names}): say which by the option 'cluster'"
        )
    return found[0]


def _wanted_topics(storage: Storage, cluster: str, options: ReadOptions) -> list[Topic]:
    found = newest_document(storage, cluster, CONTROLLER_GROUP)
    if found is None:
        raise SourceError(
            f"{storage.url}: no checkpoint of cluster {cluster} is published: run `strandline checkpoint`"
        )
    key, document = found
    try:
        state = ControllerState.load(document.state)
    except ValueError as error:
        raise SourceError(f"{key}: {error}") from error
    topics = []
    for name, chosen in options.topics.items():
        topic = state.by_name.get(name)
        if topic is None:
            there = ", ".join(sorted(state.by_name)) or "none"
            raise SourceError(
                f"there is no topic {name!r} in the newest checkpoint, but {there}: if it is new, run "
                "`strandline checkpoint`"
            )
        if beyond := sorted(number for number in chosen or () if number >= len(topic.partitions)):
            raise SourceError(
                f"topic {name!r} has no partition {beyond[0]}, only 0 to {len(topic.partitions) - 1}"
            )
        topics.append(topic)
    return topics


def _view(storage: Storage, cluster: str, options: ReadOptions, place: tuple[Topic, int]) -> PartitionView:
    topic, number = place
    found = newest_document(storage, cluster, topic.partitions[number].group)
    if found is None:
        raise SourceError(
            f"no checkpoint of partition {topic.name}-{number} is published: run `strandline checkpoint`"
        )
    key, document = found
    fields = _fields(key, document.state)
    view = PartitionView(
        topic.name,
        number,
        key,
        fields["start_offset"],
        fields["next_offset"],
        np.frombuffer(fields["extents"], EXTENT_ROWS),
        dict(fields["inline"]),
    )
    return _bounded(storage, options, view)


def _fields(key: str, state: bytes) -> dict[str, Any]:
    fields = msgpack.unpackb(state)
    version = fields.get("format", 0)
    if version > SNAPSHOT_FORMAT:
        raise SourceError(
            f"{key}: it has format {version}, this release reads up to {SNAPSHOT_FORMAT}: upgrade"
        )
    if tuple(fields) != SNAPSHOT_FIELDS:
        raise SourceError(f"{key}: its fields are {', '.join(map(str, fields))}")
    return dict(fields)


def _bounded(storage: Storage, options: ReadOptions, view: PartitionView) -> PartitionView:
    """Within the offsets and times asked for, and always within what the checkpoint holds."""
    special = {EARLIEST: view.first, LATEST: view.end}
    first = options.starting.of(view.topic, view.number)
    end = options.ending.of(view.topic, view.number)
    view = view.within(special.get(first, first), special.get(end, end))
    first, end = view.first, view.end
    if options.starting_timestamp is not None:
        first = _since(storage, view, options.starting_timestamp)
    if options.ending_timestamp is not None:
        end = _since(storage, view, options.ending_timestamp)
    return view.within(first, end)


def _since(storage: Storage, view: PartitionView, timestamp: int) -> int:
    """Offset of the first record of this time or later, as ListOffsets has it; the end when there is none."""
    for number in np.flatnonzero(view.rows["max_timestamp"] >= timestamp):
        found = first_offset_since(storage, view.slice(np.array([number])), timestamp)
        if found is not None:
            return found
    return view.end


def pack(
    views: Sequence[PartitionView], parallelism: int, min_partitions: int | None
) -> list[tuple[Window, ...]]:
    """Cut all extents into tasks of about equal bytes, along objects; equal arguments give equal tasks."""
    owner = np.repeat(np.arange(len(views)), [view.rows.size for view in views])
    if not owner.size:
        return [()]
    rows = np.concatenate([view.rows for view in views])
    number = np.concatenate([np.arange(view.rows.size) for view in views])
    order = _along_objects(views, rows, owner, number)
    after = np.cumsum(rows["length"][order], dtype=np.int64)
    total = int(after[-1])
    tasks = min(-(-total // WINDOW_BYTES), TASKS_PER_CORE * parallelism)
    tasks = min(max(tasks, min_partitions or 1), owner.size)
    packed = []
    shares = np.searchsorted(after, np.arange(1, tasks) * (total / tasks)) + 1
    for start, stop in pairwise(np.unique([0, *shares, order.size]).tolist()):
        windows = _windows(after, start, stop)
        packed.append(tuple(_window(views, owner, number, order[window]) for window in windows))
    return packed


def _along_objects(views: Sequence[PartitionView], rows: Rows, owner: Any, number: Any) -> Any:
    """An order in which the batches of an object are together, and objects about as old as each other.

    An object's place is how far into their partitions its batches lie; inline batches have their own.
    """
    sizes = np.array([max(view.rows.size, 1) for view in views])
    progress = number / sizes[owner]
    # Ids are compared by a hash, ten times faster; two objects that share one would only be placed together.
    words = np.frombuffer(rows["object_id"].tobytes(), "<u4").reshape(-1, OBJECT_ID_BYTES // 4)
    _, objects = np.unique((words * _HASH).sum(axis=1), return_inverse=True)
    place = np.ones(objects.max() + 1)
    np.minimum.at(place, objects, progress)
    inline = rows["kind"] == INLINE_ROW
    return np.lexsort(
        (number, owner, np.where(inline, -1, objects), np.where(inline, progress, place[objects]))
    )


def _windows(after: Any, start: int, stop: int) -> Iterator[slice]:
    """Runs of up to WINDOW_BYTES, at least one extent each; `after` are the bytes up to and with each."""
    begin = start
    while begin < stop:
        before = int(after[begin - 1]) if begin else 0
        most = int(np.searchsorted(after, before + WINDOW_BYTES, "right"))
        end = min(max(most, begin + 1), stop)
        yield slice(begin, end)
        begin = end


def _window(views: Sequence[PartitionView], owner: Any, number: Any, chosen: Any) -> Window:
    """Some extents, by partition and in offset order within each."""
    owners = owner[chosen]
    return tuple(views[one].slice(number[chosen[owners == one]]) for one in np.unique(owners).tolist())
