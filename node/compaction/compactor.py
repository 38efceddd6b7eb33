"""Work on local logs that blocks or takes processor time, as jobs: plain values that go to another process.

The node plans each job from one version of a partition's state, and swaps the result in. A compactor reads
level one and the log's files, and makes files of segments: it names nothing, so it may die, be late, and be
asked again, without harm. docs/compaction.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, Protocol

from strandline.node.compaction.manifest import LogIdentity, Segment
from strandline.statemachine.partition.level_one import LevelOneExtent

WORKS: Final = ("ingest", "clean", "publish", "tell")
"""Kinds of work, as metrics name them; mapping keys and filtering is cleaning."""


BEGAN_ANEW: Final = "the compaction worker was restarted amid the round, without the keys that it had mapped"
"""Reason of a failed job; the next round maps them again."""
BEHIND_STORE: Final = "the keys of the round are in the process that waits for the object store"
"""Reason of a job that is not done; the next round has another process."""


class LogPlace(NamedTuple):
    """A local log on this machine."""

    identity: LogIdentity
    folder: str
    maker: str
    """Part of the names of the files that are made; see `segment_files.made_name`."""


class IngestJob(NamedTuple):
    """Make one segment of what level one has from an offset on, settled."""

    place: LogPlace
    number: int
    """The new segment's."""
    before: Segment | None
    """The log's last segment, if it is so small that it is written again in front of what is new."""
    first_offset: int
    """The end of the log."""
    is_first: bool
    """Whether the log is empty. Then `first_offset` may lie within a batch, as a start offset may, and the
    segment begins with the block that the batch is in."""
    end_offset: int
    """At a batch: at most the last stable offset, and the end of level one."""
    sources: Sequence[LevelOneExtent]
    """The objects that hold these offsets."""
    aborted: bytes
    """Rows of `ABORTED_ROWS`: the aborted transactions with offsets in this range, of the same state."""
    now_ms: int
    """Unix milliseconds."""
    segment_bytes: int
    """The segment ends with the block that reaches this."""
    block_bytes: int


class MapJob(NamedTuple):
    """Note the keys of one segment that is not clean; the segments of a round come in offset order."""

    place: LogPlace
    round: int
    """A number of this round."""
    segment: Segment
    is_first: bool
    """Whether the round begins with it: it forgets the keys of the round before. Any other job of a round
    whose keys are not there is LOST: with a part of them, what is superseded would pass for clean."""
    is_last: bool
    """Whether no later segment has a batch: then this one's last batch is not cleaned."""
    newest_ms: int | None
    """A batch with a later timestamp, Unix milliseconds, is not cleaned yet; None for any."""
    cleanable_end: int
    """A batch with an offset from here on is not cleaned: see `PartitionState.cleanable_end`."""
    map_bytes: int
    """At most; a map takes what the round's records may need."""
    round_records: int
    """Of all segments of the round that are not clean."""
    rests: float
    """Seconds of rest for each second of the processor, within the job; see `breath`."""


class FilterJob(NamedTuple):
    """Make one segment of neighbours: their records below the round's bound that stay."""

    place: LogPlace
    round: int
    segments: Sequence[Segment]
    numbers: tuple[int, int]
    """Of the clean segment, and of one with what lies from the bound on, if the last of these has any."""
    bound: int
    ripe_tombstones: int
    ripe_markers: int
    block_bytes: int
    now_ms: int
    """Unix milliseconds, as the round began."""
    rests: float
    """As in MapJob."""


class PublishJob(NamedTuple):
    """Make one level-one object of the log's batches, in place of several: neighbours, in offset order."""

    place: LogPlace
    segments: Sequence[Segment]
    """All that have offsets of these objects."""
    log_end: int
    sources: Sequence[LevelOneExtent]
    """Objects to be replaced; the log has all of their offsets."""
    term: int
    unique: bytes
    """16 bytes that no other request ever has."""
    block_bytes: int
    unreadable: Sequence[bytes] = ()
    """Unique bytes of sources that another copy could not read: they do not stay, also where their index says
    that they have what the log has."""


class ShareJob(NamedTuple):
    """Find the records of a share of all keys; see `local_document.bound`."""

    data: bytes
    """Whole batches of a settled log. They come from the node, which holds files that the log has replaced by
    now and that have no name any more."""
    share_bits: int


class Why(Enum):
    """Cause of a failed job; what is done about it differs."""

    GONE = "gone"
    """A source is not there any more: level one has changed since the plan."""
    STORE = "store"
    """The object store did not answer."""
    SOURCE = "source"
    """Level one has bytes that are wrong."""
    DISK = "disk"
    """The disk is full or fails."""
    DAMAGED = "damaged"
    """A segment of the log is not what was written: the log has to be reset."""
    LOST = "lost"
    """The compactor has forgotten the round, or died."""
    BUSY = "busy"
    """The process that has the keys of the round waits for the object store. Nothing is wrong: the next round
    has another process."""


class JobFailed(NamedTuple):
    """Nothing has changed, but that a file may have been made."""

    why: Why
    reason: str
    """One line; of damage, the file or object and the bytes."""
    unreadable: str | None = None
    """Name of the level-one object that is lost, or has bytes that are wrong, if it is that."""


class Ingested(NamedTuple):
    """The new segment, made aside."""

    segment: Segment
    read_bytes: int
    """Of level one."""


class Mapped(NamedTuple):
    """The keys of a segment are in the map, at least up to `bound`."""

    keys: int
    """In the map, of all segments of the round so far."""
    bound: int | None = None
    """Base offset of the first batch that is not in: the round ends there. None if all are."""
    young_ms: int | None = None
    """If the bound is a batch that is too young: its newest timestamp."""
    problem: str | None = None
    """The cause that an operator has to remove for rounds to come past the bound."""


class Filtered(NamedTuple):
    """The segments in place of those of the job: one or two, made aside; or the same file, of which nothing
    goes."""

    segments: tuple[Segment, ...]
    read_bytes: int
    written_bytes: int
    removed_records: int


class Published(NamedTuple):
    """Numbers of objects: that have the log's bytes already and stay; that the new object takes the place of;
    and that stay behind those.

    Fewer than the job has, if the last one may not be replaced: the log has left out its last batch, and has
    nothing behind it.
    """

    same_before: int
    replaced: int
    same_behind: int
    extent: LevelOneExtent | None
    """The new object, stored; None if nothing is to be replaced."""


class Shared(NamedTuple):
    """The rows of a local document for the batches."""

    rows: bytes
    """Of `local_rows.LOCAL_ROWS`."""


@dataclass(slots=True)
class CompactorMeasures:
    """A compactor's counters since it was made."""

    cpu_seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(WORKS, 0.0))
    """Of the worker process, by the work it was for; 0 where there is no process."""
    puts: int = 0
    """Requests of the worker process to the object store; 0 where there is no process. Listings are puts."""
    gets: int = 0
    starts: int = 0
    """Of a worker process."""


class Compactor(Protocol):
    """One job at a time, and beside it, while an ingest or a publication waits for the store, one of a round;
    further ones wait their turn."""

    measures: CompactorMeasures

    async def ingest(self, job: IngestJob) -> Ingested | JobFailed: ...

    async def map(self, job: MapJob) -> Mapped | JobFailed: ...

    async def filter(self, job: FilterJob) -> Filtered | JobFailed: ...

    async def publish(self, job: PublishJob) -> Published | JobFailed:
        """As the others, but it makes an object: there may be one, now or later, also where it failed."""

    async def share(self, job: ShareJob) -> Shared | JobFailed: ...

    async def close(self) -> None:
        """End the job in progress, which fails; all later ones fail."""
