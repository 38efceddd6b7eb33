"""The plan of an export's next round: the offsets that it takes, cut into files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Final

import numpy as np

from strandline.snapshot.spark.export.documents import (
    BYTES,
    FIXED,
    Plan,
    Range,
    Settings,
    Unit,
    spans,
)
from strandline.snapshot.spark.export.errors import ExportError
from strandline.snapshot.spark.export.json_columns import FOLDER_KINDS, Fields, column_name, extended, grown
from strandline.snapshot.spark.newest import PUBLISHES, NewestCheckpoints
from strandline.snapshot.spark.options import SourceError
from strandline.snapshot.spark.sample import sampled
from strandline.snapshot.spark.stream_limits import ends
from strandline.snapshot.spark.stream_offsets import (
    RESTORED,
    Offsets,
    from_json,
    known,
    put,
    replaced_from,
    still_there,
    to_json,
)
from strandline.snapshot.spark.views import PartitionView, newest_views, with_blocks
from strandline.snapshot.storage import Storage
from strandline.statemachine.controller.controller_state import Topic

FILE_BYTES: Final = 64 * 1024 * 1024
"""Stored bytes that become one file: a second of work, so a run that is killed has not much to do again."""
ROUND_FILES: Final = 16
"""Files of a round, about. What is planned is fixed, so a round is a small part of a large topic."""
NO_LIMIT: Final = 2**63 - 1

ACCEPT: Final = "--lost-records accept goes on without them, and writes in the manifest what they were"


@dataclass(frozen=True)
class Limits:
    """Stored bytes of a file and of a round."""

    file_bytes: int = FILE_BYTES
    round_files: int = ROUND_FILES

    @property
    def round_bytes(self) -> int:
        return self.file_bytes * self.round_files


class Planner:
    """Plans the rounds of some topics.

    `start` gives the first offset of a partition that the target has nothing of; `given` are columns of
    topics' values.
    """

    def __init__(
        self,
        storage: Storage,
        cluster: str,
        settings: Settings,
        limits: Limits,
        start: Callable[[PartitionView], int],
        *,
        accept_loss: bool,
        given: Mapping[str, Fields],
    ) -> None:
        self._storage = storage
        self._cluster = cluster
        self._settings = settings
        self._limits = limits
        self._start = start
        self._accept_loss = accept_loss
        self._given = given

    def next_round(
        self,
        number: int,
        last: Plan | None,
        topics: Mapping[str, Topic],
        views: Mapping[tuple[str, int], PartitionView | None],
    ) -> Plan | None:
        """The plan of a round, or None if there is nothing new.

        `last` is the plan of the round before it, `topics` are those there are by name, `views` the
        partitions that are wanted.

        Raises ExportError, SourceError, StorageError, BadObject.
        """
        done = offsets_of(last.next if last is not None else {})
        wanted = {topic for topic, _ in views}
        taken, lost = still_there({name: one for name, one in done.items() if name in wanted}, topics)
        behind = []
        for view in _published(views):
            begin = known(taken, view)
            if begin is None:
                # One that a topic got since the round before, as one that was made again has, is wanted as a
                # whole.
                begin = 0 if view.topic in done else self._start(view)
                put(taken, view, begin)
            check_end(taken, view, begin)
            if view.first > begin:
                lost.append(f"{view.topic}-{view.number}: offsets {begin} to {view.first - 1} were deleted")
            if begin < view.end:
                behind.append(view.within(begin, view.end))
        refuse_loss(lost, self._accept_loss)
        until = ends(self._storage, behind, NO_LIMIT, self._limits.round_bytes)
        chosen = [view.within(view.first, end) for view, end in zip(behind, until, strict=True)]
        for view in chosen:
            put(taken, view, view.end)
        after = {**done, **taken}
        if to_json(after) == to_json(done):
            return None
        units = tuple(cut(with_blocks(self._storage, chosen), self._limits.file_bytes))
        columns, given = self._columns(last, chosen)
        next_offsets = to_json(after) if after else {}
        return Plan(number, self._settings, units, next_offsets, tuple(lost), self._cluster, columns, given)

    def _columns(
        self, last: Plan | None, chosen: Sequence[PartitionView]
    ) -> tuple[dict[str, Fields], tuple[str, ...]]:
        """The columns of values after the round, and the topics whose columns were given; none for bytes.

        A topic has those from before, and those that are given or that a sample of the round's records adds.
        """
        if self._settings.value == BYTES:
            return {}, ()
        found = dict(last.columns) if last is not None else {}
        for topic, fields in self._given.items():
            found[topic] = extended(topic, found.get(topic, {}), fields)
        given = {*self._given, *(last.given if last is not None else ())}
        for topic, views in groupby(chosen, lambda view: view.topic):
            if topic in given:
                continue
            sample = chain.from_iterable(
                batch.column("value").drop_null().to_pylist()
                for batch in sampled(self._storage, views, ("value",))
            )
            found[topic] = grown(found.get(topic, {}), sample)
        for topic in {view.topic for view in chosen}:
            self._check_folders(topic, found.get(topic, {}))
        return found, tuple(sorted(given))

    def _check_folders(self, topic: str, fields: Fields) -> None:
        """Raise ExportError if the target is partitioned by a column that the topic has not, or not of a kind
        whose values can be names of folders."""
        by = self._settings.partition_by
        if by in FIXED:
            return
        kinds = [kind for field, kind in fields.items() if column_name(field) == by]
        if not kinds:
            raise ExportError(
                f"topic {topic!r} has no column {by!r} to be partitioned by",
                f"name one of a field that its values have, or give it: --columns '{topic}: {by} string'",
            )
        if kinds[0] not in FOLDER_KINDS:
            raise ExportError(
                f"topic {topic!r} cannot be partitioned by {by!r}, whose values are no names of folders",
                f"name a column of text, whole numbers, days or booleans, or one of {', '.join(FIXED)}",
            )


def offsets_of(kept: Mapping[str, Mapping[str, str | int]]) -> Offsets:
    """The offsets of a round's `next`; raises ExportError."""
    try:
        return from_json(kept)
    except SourceError as error:
        raise ExportError("the offsets of the newest manifest cannot be read", "restore the file") from error


def check_end(offsets: Offsets, view: PartitionView, end: int) -> None:
    """Raise ExportError if a partition ends before an offset up to which it was planned, or has other
    records below it by now."""
    if view.end < end:
        raise ExportError(
            f"{view.topic}-{view.number} ends at offset {view.end}, and had {end} when it was exported last",
            "the cluster has lost records or is another one: export it to another place",
        )
    if (first := replaced_from(offsets[view.topic], view, end)) is not None:
        raise ExportError(
            f"{view.topic}-{view.number}: {RESTORED.format(first)}, and was exported up to {end}",
            "export it to another place",
        )


def refuse_loss(lost: Sequence[str], accept: bool) -> None:
    """Raise ExportError for records that were deleted before they were exported, unless that is accepted."""
    if lost and not accept:
        more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise ExportError(f"{lost[0]}{more} before they were exported", ACCEPT)


def _published(views: Mapping[tuple[str, int], PartitionView | None]) -> Iterator[PartitionView]:
    """The partitions of which a checkpoint is published; raises SourceError for a topic without any."""
    for topic, named in groupby(views.items(), lambda item: item[0][0]):
        found = [view for _, view in named if view is not None]
        if not found:
            raise SourceError(f"there is nothing of topic {topic!r} in what is published: wait: {PUBLISHES}")
        yield from found


def cut(views: Iterable[PartitionView], file_bytes: int) -> Iterator[Unit]:
    """All offsets of some views, whose blocks are looked up, in units of at most so many stored bytes.

    A unit has one topic; it ends between two pieces, and has one at least.
    """
    for topic, of_topic in groupby(views, lambda view: view.topic):
        ranges: list[Range] = []
        room = file_bytes
        for view in of_topic:
            after = np.cumsum(view.rows["length"], dtype=np.int64)
            begin, at = view.first, 0
            while begin < view.end:
                used = int(after[at - 1]) if at else 0
                fit = max(at, int(np.searchsorted(after, used + room, "right")))
                if fit == at < after.size and not ranges:
                    fit += 1
                whole = fit == after.size
                end = view.end if whole else min(int(view.rows["end_offset"][fit - 1]), view.end)
                if whole or fit > at:
                    ranges.append(Range(view.number, begin, end))
                    room -= (int(after[fit - 1]) if fit else 0) - used
                    begin, at = end, fit
                if not whole:
                    yield Unit(topic, tuple(ranges))
                    ranges, room = [], file_bytes
        if ranges:
            yield Unit(topic, tuple(ranges))


def views_of(unit: Unit, views: Mapping[tuple[str, int], PartitionView]) -> list[PartitionView]:
    """The parts of the views that a unit has; what is not there is left out."""
    parts = [
        views[unit.topic, one.partition].within(one.first, one.end)
        for one in unit.ranges
        if (unit.topic, one.partition) in views
    ]
    return [part for part in parts if part.first < part.end]


def views_there(
    storage: Storage, checkpoints: NewestCheckpoints, plan: Plan, units: Sequence[Unit], *, committed: bool
) -> tuple[dict[tuple[str, int], PartitionView], list[str]]:
    """The partitions of some units as they are now, within what these have; and what is gone of that.

    Raises ExportError, SourceError, StorageError, BadObject.
    """
    state = checkpoints.controller()
    offsets = offsets_of(plan.next)
    wanted = spans(units)
    places = [
        (topic, number)
        for name, number in wanted
        if (topic := state.by_name.get(name)) is not None and topic.topic_id == offsets[name].topic_id
    ]
    found = newest_views(checkpoints, places, committed)
    views, lost = [], []
    for (name, number), (first, end) in wanted.items():
        view = found.get((name, number))
        if view is None:
            lost.append(f"{name}-{number}: the topic was deleted, with its offsets {first} to {end - 1}")
            continue
        check_end(offsets, view, end)
        if view.first > first:
            lost.append(f"{name}-{number}: offsets {first} to {min(view.first, end) - 1} were deleted")
        if view.first < end:
            views.append(view.within(first, end))
    return {(view.topic, view.number): view for view in with_blocks(storage, views)}, lost
