"""`spark.readStream.format("strandline")`: topics as streams, from published checkpoints alone.

Spark starts one process beside the driver, in which one reader says how far the next micro-batch goes and
cuts it into tasks. `commit` is not called for the last batch and `stop` may never be, so nothing depends on
them. See docs/spark.md.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from strandline.snapshot.object_frame import BadObject
from strandline.snapshot.patient_storage import PATIENCE_SECONDS, PatientStorage
from strandline.snapshot.spark.fetch import PARALLEL_GETS
from strandline.snapshot.spark.newest import LISTINGS, NewestCheckpoints, check_wanted, wanted_places
from strandline.snapshot.spark.options import ReadOptions, SourceError
from strandline.snapshot.spark.plan import pack
from strandline.snapshot.spark.stream_limits import ends
from strandline.snapshot.spark.stream_offsets import (
    RESTORED,
    Offsets,
    Views,
    enter,
    from_json,
    is_older,
    known,
    put,
    ranges,
    replaced_from,
    same,
    still_there,
    to_json,
)
from strandline.snapshot.spark.stream_tasks import StreamSplit, StreamTasks
from strandline.snapshot.spark.views import (
    FROM_WHAT_IS_THERE,
    PartitionView,
    bounded_view,
    deleted,
    newest_views,
    report_loss,
    with_blocks,
)
from strandline.snapshot.storage import Storage, StorageError
from strandline.statemachine.controller.controller_state import ControllerState

LOOK_SECONDS: Final = 1.0
"""Least time between two looks at storage. Spark asks every 10 ms while nothing is new; checkpoints are
further apart than this."""
SETTLING_SECONDS: Final = 30.0
"""A checkpoint's last entry is the controller's, but documents come in any order. For so long after a new one
of the controller each partition is looked at; then only the controller, at a listing a look."""
WHOLE_SECONDS: Final = 60.0
"""Longest time between two looks at each partition: a document that comes later delays the stream by it."""
SHARED_BYTES: Final = 4 * 1024 * 1024
"""Least stored bytes of a micro-batch's task while cores are free. A stream waits for each of
its batches, and its workers are there; a task of less costs more than it saves."""
NO_LIMIT: Final = 2**63 - 1
"""Most offsets of a batch if no option says so: the largest number that Spark can be told."""

_FROM_ANEW: Final = "a new checkpointLocation starts from the beginning"

_log = logging.getLogger(__name__)


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader of a stream that cannot be; it says why as soon as it is asked for anything.

    Where none is made, Spark 4.3 tells of an error of its own behind the reason (UnboundLocalError).
    """

    def __init__(self, reason: SourceError) -> None:
        self._reason = reason

    def initialOffset(self) -> dict[str, Any]:
        raise self._reason

    def getDefaultReadLimit(self) -> ReadLimit:
        raise self._reason

    def prepareForTriggerAvailableNow(self) -> None:
        raise self._reason

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        raise self._reason

    def read(self, partition: InputPartition) -> Iterator[Any]:
        raise self._reason


class StrandlineStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches in a process beside the driver; tasks, which get its StreamTasks, read them."""

    def __init__(self, storage: Storage, options: ReadOptions, schema: Any, parallelism: int) -> None:
        # Until the stream has begun, its user is there to read why it cannot.
        self._storage = PatientStorage(storage, 0)
        self._options = options
        self._tasks = StreamTasks(PatientStorage(storage), schema)
        self._parallelism = parallelism
        self._checkpoints = NewestCheckpoints(self._storage, options.cluster)
        self._looked: float | None = None
        """Time of the last look, None if the next one shall be of everything."""
        self._looked_at_all = self._changed = 0.0
        self._views: Views = {}
        self._state: ControllerState | None = None
        self._target: Offsets | None = None
        """The offsets at which Trigger.AvailableNow ends."""
        self._awaited: set[str] = set()
        """Messages on partitions whose newest state is not the one that was read before."""
        self._planned: tuple[Mapping[str, Any], Mapping[str, Any], list[InputPartition]] | None = None
        """The last batch, since Spark may ask for its tasks again: equal ends have equal tasks."""

    def initialOffset(self) -> dict[str, Any]:
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_offsets or NO_LIMIT)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the ends up to which the query reads before it stops. Raises SourceError."""
        self._looked = None
        self._look()
        self._target = self._ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch. Raises SourceError, also for records that are gone (failOnDataLoss)."""
        max_offsets, max_bytes = NO_LIMIT, None
        if not isinstance(limit, ReadAllAvailable):  # which Trigger.Once asks for, whatever the options say
            assert isinstance(limit, ReadMaxRows), "Spark hands back the kind of limit that it was given"
            max_offsets, max_bytes = limit.max_rows, self._options.max_bytes
        self._look()
        before = from_json(start)
        try:
            after = self._next(before, {} if start else self._first(), max_offsets, max_bytes)
        except (StorageError, BadObject) as error:
            raise SourceError(str(error)) from error
        # Spark takes another text for something new.
        return start if start and same(before, after) else to_json(after)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        told = self._ends()
        return to_json(told) if told else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the tasks of a batch. Raises SourceError."""
        if self._planned is not None and self._planned[:2] == (start, end):
            return self._planned[2]
        for attempt in range(LISTINGS):
            self._look()
            wanted, lost = ranges(from_json(start), from_json(end), self._views)
            try:
                views = with_blocks(self._storage, wanted)
                break
            except (StorageError, BadObject) as error:
                if attempt == LISTINGS - 1 or isinstance(error, BadObject):
                    raise SourceError(str(error)) from error
                self._looked = None  # the checkpoint may have ended; a newer one names other objects
        self._report(lost, _FROM_ANEW)
        window = self._storage.window_bytes
        tasks = pack(views, self._parallelism, self._options.min_partitions, window, SHARED_BYTES)
        splits: list[InputPartition] = [StreamSplit(windows) for windows in tasks if windows]
        self._planned = start, end, splits
        return splits

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one task's records, as Arrow batches. Raises StorageError, BadObject."""
        return self._tasks.read(partition)

    def __reduce__(self) -> tuple[Any, ...]:
        """Spark sends this to tasks; see stream_tasks.py."""
        return StreamTasks, (self._tasks.storage, self._tasks.schema)

    def _look(self) -> None:
        """See the newest checkpoints, unless that was done just now; raises SourceError."""
        now = time.monotonic()
        if self._looked is not None and now < self._looked + LOOK_SECONDS:
            return
        try:
            # What tails tell of is read as it comes; documents of checkpoints have to be looked for.
            whole = self._looked is None or now >= self._looked_at_all + WHOLE_SECONDS
            told = self._checkpoints.look(whole=whole)
            state = self._checkpoints.controller()
            if self._looked is None or state is not self._state:
                self._state, self._changed = state, now
                whole = True
            places = wanted_places(self._state, self._options)
            if not whole and now > self._changed + SETTLING_SECONDS:
                if told:
                    news = [place for place in places if place[0].partitions[place[1]].group in told]
                    self._views = {
                        **self._views,
                        **newest_views(self._checkpoints, news, self._options.committed),
                    }
                self._looked = now
                return
            self._views = newest_views(self._checkpoints, places, self._options.committed)
        except (StorageError, BadObject) as error:
            raise SourceError(str(error)) from error
        self._looked = self._looked_at_all = time.monotonic()
        self._storage.patience = PATIENCE_SECONDS

    def _seen(self) -> list[PartitionView]:
        """The wanted partitions that have a checkpoint; with a target, those that the target has."""
        views = [view for view in self._views.values() if view is not None]
        if self._target is None:
            return views
        return [view for view in views if known(self._target, view) is not None]

    def _ends(self) -> Offsets:
        offsets: Offsets = {}
        for view in self._seen():
            put(offsets, view, view.end)
        return offsets

    def _first(self) -> Offsets:
        """Return the offsets at which the query begins; raises SourceError, StorageError, BadObject."""
        assert self._state is not None, "set by the first look"
        check_wanted(self._state, self._options)
        views = self._seen()
        self._report(deleted(self._options, views), FROM_WHAT_IS_THERE)
        with ThreadPoolExecutor(PARALLEL_GETS) as pool:
            bounded = list(pool.map(lambda view: bounded_view(self._storage, self._options, view), views))
        offsets: Offsets = {}
        for view, wanted in zip(views, bounded, strict=True):
            put(offsets, view, wanted.first)
        return offsets

    def _report(self, lost: list[str], cure: str) -> None:
        report_loss(lost, self._options.fail_on_data_loss, _log.warning, cure)

    def _next(self, start: Offsets, first: Offsets, max_offsets: int, max_bytes: int | None) -> Offsets:
        """Return the end of the batch that begins at `start`; raises SourceError, StorageError, BadObject.

        A partition that `start` does not have is read from its offset in `first`, or from its beginning.
        """
        assert self._state is not None, "set by the first look"
        offsets, lost = still_there(start, self._state.by_name)
        behind, entering = [], []
        for view in self._seen():
            begin, end = known(offsets, view), self._end(view)
            if begin is None:
                asked = known(first, view)
                begin = min(view.first if asked is None else asked, end)
                put(offsets, view, begin)
                entering.append(view.within(begin, end))
            topic = offsets[view.topic]
            if (others := replaced_from(topic, view, begin)) is not None:
                lost.append(f"{view.topic}-{view.number}: {RESTORED.format(others)}, {begin} was next")
                put(offsets, view, others)
            elif view.end < begin:
                ends_at = f"{view.topic}-{view.number} ends at offset {view.end}, {begin} was next"
                if self._options.fail_on_data_loss or not is_older(topic, view):
                    lost.append(ends_at)
                    put(offsets, view, view.end)
                elif ends_at not in self._awaited:  # its records would come again
                    self._awaited.add(ends_at)
                    _log.warning("%s: a newer state was read, and is waited for", ends_at)
            elif begin < end:
                behind.append(view.within(begin, end))
        self._report(lost, _FROM_ANEW)
        until = ends(self._storage, behind, max_offsets, max_bytes)
        for view, end in zip(behind, until, strict=True):
            put(offsets, view, end)
        for view in entering:
            if view.first < view.end:
                enter(offsets, view)
        return offsets

    def _end(self, view: PartitionView) -> int:
        """The last offset to read of a partition that is seen, not included."""
        target = None if self._target is None else known(self._target, view)
        return view.end if target is None else min(target, view.end)
