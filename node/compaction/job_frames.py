"""Jobs of compaction and their results as messages to and from the worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from strandline.node.compaction.compactor import (
    Filtered,
    FilterJob,
    Ingested,
    IngestJob,
    JobFailed,
    LogPlace,
    MapJob,
    Mapped,
    Published,
    PublishJob,
    Shared,
    ShareJob,
    Why,
)
from strandline.node.compaction.manifest import LogIdentity, Segment
from strandline.node.worker.worker_frames import BadFrame
from strandline.statemachine.partition.level_one import LevelOneExtent

ROWS_BYTES: Final = 1024 * 1024
"""Of aborted transactions in one frame: a partition may remember a hundred of these."""
BATCHES_BYTES: Final = 1024 * 1024
"""Of batches in one frame: a block of one large batch may have many times as much."""
_RESULTS: Final = {kind.__name__: kind for kind in (Ingested, Mapped, Filtered, Published, Shared, JobFailed)}


def ingest_messages(job: IngestJob) -> Iterator[list[Any]]:
    """The messages that ask for an ingest: the rows in slices, then the rest."""
    for at in range(0, len(job.aborted), ROWS_BYTES):
        yield ["rows", job.aborted[at : at + ROWS_BYTES]]
    yield ["ingest", *job._replace(aborted=b"")]


def share_messages(job: ShareJob) -> Iterator[list[Any]]:
    """The messages that ask for a share: the batches in slices, then the rest."""
    for at in range(0, len(job.data), BATCHES_BYTES):
        yield ["batches", job.data[at : at + BATCHES_BYTES]]
    yield ["share", job.share_bits]


def ingest_of(message: list[Any], rows: bytes) -> IngestJob:
    """The job of an "ingest" message and the rows that came before it."""
    place, number, before, first, is_first, end, sources, _, *more = message[1:]
    return IngestJob(
        _place(place),
        number,
        None if before is None else Segment(*before),
        first,
        is_first,
        end,
        [LevelOneExtent(*one) for one in sources],
        rows,
        *more,
    )


def map_of(message: list[Any]) -> MapJob:
    """The job of a "map" message."""
    place, number, segment, *more = message[1:]
    return MapJob(_place(place), number, Segment(*segment), *more)


def filter_of(message: list[Any]) -> FilterJob:
    """The job of a "filter" message."""
    place, number, segments, numbers, *more = message[1:]
    return FilterJob(
        _place(place), number, [Segment(*one) for one in segments], (numbers[0], numbers[1]), *more
    )


def publish_of(message: list[Any]) -> PublishJob:
    """The job of a "publish" message."""
    place, segments, log_end, sources, *more = message[1:]
    rows = [Segment(*one) for one in segments]
    return PublishJob(_place(place), rows, log_end, [LevelOneExtent(*one) for one in sources], *more)


def plain(result: Ingested | Mapped | Filtered | Published | Shared | JobFailed) -> list[Any]:
    """A result, for a message."""
    fields = list(result)
    if isinstance(result, JobFailed):
        fields[0] = result.why.value
    return [type(result).__name__, fields]


def result_of(values: list[Any]) -> Ingested | Mapped | Filtered | Published | Shared | JobFailed:
    """A result out of a message; raises BadFrame for another."""
    try:
        name, fields = values
        kind = _RESULTS[name]
        if kind is JobFailed:
            fields[0] = Why(fields[0])
        elif kind is Ingested:
            fields[0] = Segment(*fields[0])
        elif kind is Filtered:
            fields[0] = tuple(Segment(*one) for one in fields[0])
        elif kind is Published and fields[-1] is not None:
            fields[-1] = LevelOneExtent(*fields[-1])
        return kind(*fields)
    except (TypeError, ValueError, LookupError) as error:
        raise BadFrame(f"no result is like {str(values)[:80]}: {error}") from error


def _place(fields: list[Any]) -> LogPlace:
    identity, folder, maker = fields
    return LogPlace(LogIdentity(*identity), folder, maker)
