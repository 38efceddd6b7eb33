"""A read's view of each partition: the place of its records, within the requested offsets and times.

The controller's newest state says which groups a topic has, each group's where its records lie: in level
one up to the last reconciled offset, behind it in level zero. A level-one object is cut by its own index,
which is read only where offsets and times that are wanted may lie.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np

from strandline.snapshot.document import SnapshotDocument
from strandline.snapshot.extent_rows import EXTENT_ROWS, LEVEL_ONE_ROWS, aborted_rows
from strandline.snapshot.level_one_format import LevelOneFooter, parse_footer
from strandline.snapshot.object_frame import BadObject
from strandline.snapshot.spark.fetch import (
    PARALLEL_GETS,
    WAITS_SECONDS,
    ObjectGone,
    first_offset_since,
    get_referred,
)
from strandline.snapshot.spark.newest import (
    NewestCheckpoints,
    Place,
    check_pattern,
    check_wanted,
    cure,
    wanted_checkpoints,
    wanted_places,
    which,
)
from strandline.snapshot.spark.options import EARLIEST, LATEST, ReadOptions, SourceError
from strandline.snapshot.spark.pieces import PieceKind, Rows, Slice, of_blocks, of_level_zero
from strandline.snapshot.storage import Storage, StorageError
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name
from strandline.statemachine.partition.partition_state import snapshot_fields
from strandline.statemachine.partition.producers import Producers
from strandline.statemachine.partition.watermarks import last_stable_offset

Seen = TypeVar("Seen")
FROM_WHAT_IS_THERE: Final = "startingOffsets=earliest begins with what is there"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PartitionView:
    """A partition as of its newest published state, and the part of it that is wanted."""

    topic: str
    topic_id: bytes
    number: int
    document: str
    """Name of the checkpoint's document, or of the tail, for messages."""
    first: int
    end: int
    objects: Rows
    """Rows of LEVEL_ONE_ROWS whose blocks are not looked up yet; all of them lie before `rows`."""
    rows: Rows
    """Rows of PIECES."""
    inline: Mapping[int, bytes]
    aborted: Rows
    """Rows of ABORTED_ROWS that are to be left out, in the order of their markers."""
    term: int
    """The newest term that the state knows."""
    leader_epochs: Sequence[Sequence[int]]
    """Terms that wrote records, oldest first, each with the first offset that it could write."""

    def within(self, first: int, end: int) -> PartitionView:
        """The same with only the objects and pieces that hold offsets in `[first, end)`."""
        first, end = max(first, self.first), min(end, self.end)
        objects, rows = (
            rows[(rows["base_offset"] < end) & (rows["end_offset"] > first)]
            for rows in (self.objects, self.rows)
        )
        return replace(self, first=first, end=max(end, first), objects=objects, rows=rows)

    def with_blocks(self, footers: Sequence[LevelOneFooter]) -> PartitionView:
        """The same with the blocks of its objects, whose footers these are, in their place."""
        blocks = [of_blocks(footer.term, footer.unique, footer.blocks, footer.holes) for footer in footers]
        whole = replace(self, objects=self.objects[:0], rows=np.concatenate([*blocks, self.rows]))
        return whole.within(self.first, self.end)

    def slice(self, chosen: Any) -> Slice:
        """Some of its pieces, in offset order, as a task gets them."""
        rows = self.rows[np.sort(chosen)]
        bases = rows["base_offset"][rows["kind"] == PieceKind.INLINE].tolist()
        inline = {base: self.inline[base] for base in bases}
        return Slice(
            self.topic,
            self.topic_id,
            self.number,
            self.document,
            self.first,
            self.end,
            rows.tobytes(),
            inline,
            self._aborted_in(rows).tobytes(),
        )

    def _aborted_in(self, rows: Rows) -> Rows:
        """The aborted transactions that some pieces may have batches of."""
        if not self.aborted.size or not rows.size:
            return self.aborted[:0]
        aborted = self.aborted
        first, end = rows["base_offset"][0], rows["end_offset"][-1]
        within: Rows = aborted[(aborted["last_offset"] > first) & (aborted["first_offset"] < end)]
        return within


class NotPublished(SourceError):
    """A partition that there is has no published state: it is new, or its leader could not publish yet."""


def partition_views(storage: Storage, options: ReadOptions) -> list[PartitionView]:
    """The wanted partitions, in the order of topics and numbers; raises SourceError."""
    try:
        checkpoints = wanted_checkpoints(storage, options)
        return looked_again(checkpoints, partial(_found, storage, options, checkpoints))
    except (StorageError, BadObject) as error:
        raise SourceError(str(error)) from error


def looked_again(checkpoints: NewestCheckpoints, look: Callable[[], Seen]) -> Seen:
    """Return what `look` gives; it is called again where a newer state will name what is missing.

    That takes up to the sum of WAITS_SECONDS. Raises what `look` raises.
    """
    for wait in (*WAITS_SECONDS[1:], None):
        try:
            return look()
        except (ObjectGone, NotPublished) as error:
            hopeless = isinstance(error, NotPublished) and not checkpoints.has_tails
            if wait is None or hopeless or not checkpoints.renewed(wait):
                raise
    raise AssertionError("the last look returns or raises")


def report_loss(lost: Sequence[str], fail: bool, warn: Callable[[str], object], cure: str) -> None:
    """Raise SourceError for records that are gone before they were read, or warn of each if so asked."""
    if lost and fail:
        more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise SourceError(
            f"{lost[0]}{more}: option failOnDataLoss=false goes on without them, with a warning; {cure}"
        )
    for message in lost:
        warn(message)


def _found(storage: Storage, options: ReadOptions, checkpoints: NewestCheckpoints) -> list[PartitionView]:
    state = checkpoints.controller()
    check_wanted(state, options)
    check_pattern(state, options)
    views = newest_views(checkpoints, wanted_places(state, options), options.committed)
    for (topic, number), view in views.items():
        if view is None:
            raise NotPublished(
                f"there is nothing of partition {topic}-{number} in {which(options)}: {cure(options)}; see "
                f"`strandline topic describe {topic}` for its leader, which publishes"
            )
    with ThreadPoolExecutor(PARALLEL_GETS) as pool:
        bounded = list(pool.map(partial(bounded_view, storage, options), filter(None, views.values())))
    lost = deleted(options, filter(None, views.values()))
    report_loss(lost, options.fail_on_data_loss, _log.warning, FROM_WHAT_IS_THERE)
    return with_blocks(storage, bounded)


def newest_views(
    checkpoints: NewestCheckpoints, places: Iterable[Place], committed: bool
) -> dict[tuple[str, int], PartitionView | None]:
    """All that the newest published state of each partition holds; None where none is published.

    Raises SourceError, StorageError.
    """

    def view(place: Place) -> PartitionView | None:
        topic, number = place
        load = partial(_view, topic, number, committed)
        return checkpoints.of_group(topic.partitions[number].group, load)

    wanted = list(places)
    checkpoints.follow([topic.partitions[number].group for topic, number in wanted])
    with ThreadPoolExecutor(PARALLEL_GETS) as pool:
        found = pool.map(view, wanted)
        return {(topic.name, number): one for (topic, number), one in zip(wanted, found, strict=True)}


def with_blocks(storage: Storage, views: Sequence[PartitionView]) -> list[PartitionView]:
    """The same with all blocks of their level-one objects looked up; raises StorageError, BadObject."""
    with ThreadPoolExecutor(PARALLEL_GETS) as pool:
        # A partition may have thousands of objects: they share the pool, whichever partition they are of.
        objects = [(view, row) for view in views for row in view.objects]
        footers = iter(list(pool.map(lambda one: _footer(storage, *one), objects)))
        return [view.with_blocks([next(footers) for _ in view.objects]) for view in views]


def _view(topic: Topic, number: int, committed: bool, key: str, document: SnapshotDocument) -> PartitionView:
    try:
        fields = snapshot_fields(document.state)
    except ValueError as error:
        raise SourceError(f"{key}: {error}") from error
    end, aborted = fields["next_offset"], aborted_rows(fields["aborted"])
    if committed:
        first_open = Producers.restored(fields["producers"]).first_open_offset
        end = last_stable_offset(fields["start_offset"], end, first_open)
    else:
        aborted = aborted[:0]
    return PartitionView(
        topic.name,
        topic.topic_id,
        number,
        key,
        fields["start_offset"],
        end,
        np.frombuffer(fields["level_one"], LEVEL_ONE_ROWS),
        of_level_zero(np.frombuffer(fields["extents"], EXTENT_ROWS)),
        dict(fields["inline"]),
        aborted,
        fields["term"],
        fields["leader_epochs"],
    )


def _footer(storage: Storage, view: PartitionView, row: Any) -> LevelOneFooter:
    """The footer of one of a view's objects; raises StorageError, BadObject."""
    extent = LevelOneExtent._make(row.item())
    name = level_one_name(view.topic_id, view.number, extent.term, extent.unique)
    start = extent.size - extent.index_bytes
    tail = get_referred(storage, name, start, extent.index_bytes, view.document)
    footer = parse_footer(name, tail, extent.size)
    if (footer.base_offset, footer.end_offset) != (extent.base_offset, extent.end_offset):
        held = f"it holds offsets {footer.base_offset} to {footer.end_offset}"
        raise BadObject(name, start, extent.size, f"{held}, in place of those that {view.document} says")
    return footer


def deleted(options: ReadOptions, views: Iterable[PartitionView]) -> list[str]:
    """Return what is gone of the offsets that are asked for by number, a line for each partition.

    A time asks for nothing that is gone, as in Kafka: it stands for the first record that is there.
    """
    lost = []
    for view in views:
        first, end = (bound.of(view.topic, view.number) for bound in (options.starting, options.ending))
        until = min(view.first, end) if end >= 0 else view.first
        if 0 <= first < until:
            lost.append(f"{view.topic}-{view.number}: offsets {first} to {until - 1} were deleted")
    return lost


def first_wanted(storage: Storage, options: ReadOptions, view: PartitionView) -> int:
    """The offset that a read begins with, also where it is asked for by number and was deleted.

    Raises StorageError, BadObject.
    """
    asked = options.starting.of(view.topic, view.number)
    return asked if 0 <= asked < view.first else bounded_view(storage, options, view).first


def bounded_view(storage: Storage, options: ReadOptions, view: PartitionView) -> PartitionView:
    """Within the offsets and times asked for, and always within what the checkpoint holds.

    Raises StorageError, BadObject.
    """
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
    objects = view.objects[view.objects["max_timestamp"] >= timestamp]
    parts = (replace(view, objects=objects[n : n + 1], rows=view.rows[:0]) for n in range(objects.size))
    for part in (*parts, replace(view, objects=objects[:0])):
        known = part.with_blocks([_footer(storage, part, row) for row in part.objects])
        for number in np.flatnonzero(known.rows["max_timestamp"] >= timestamp):
            found = first_offset_since(storage, known.slice(np.array([number])), timestamp)
            if found is not None:
                return found
    return view.end
