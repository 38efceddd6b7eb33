"""A task's side of a read: bytes from storage, next window ahead, and from them Arrow batches.

Ranges of one object that lie close together are one get, gets run in parallel, and the next window is on its
way while this one is decoded: storage answers in milliseconds, decoding takes about as long. A block of level
one is held against its own checksum, which covers what Kafka's leaves out, and is then batches like others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]

from strandline.snapshot.aborted import Aborted
from strandline.snapshot.decode import COLUMNS, BatchSlice, Decoder
from strandline.snapshot.level_one_format import Block, batches_of, verify_block
from strandline.snapshot.record_fields import Stored
from strandline.snapshot.spark.pieces import PIECE, PieceKind, Slice
from strandline.snapshot.storage import ObjectMissing, Storage, StorageError
from strandline.statemachine.object_names import object_name
from strandline.statemachine.partition.level_one import UNIQUE_BYTES, level_one_name

PARALLEL_GETS: Final = 8
AHEAD: Final = 2
"""Windows of a task that are in memory: one is decoded, the next is on its way."""
JOIN_GAP_BYTES: Final = 128 * 1024
"""Maximum gap between two ranges that are read with one request: a request costs about as much."""
MOST_ROOM: Final = 1 << 30
"""Bytes of a window's ranges up to which they share memory: Arrow's positions in it have 31 bits."""
WAITS_SECONDS: Final = (0.0, 1.0, 2.0, 4.0)
"""Pauses before each look for records that are not where a state said: newer states are published within
seconds, and an object may go before that of its successor is there."""


class ObjectGone(StorageError):
    """An object that a published state refers to is not there any more."""


Moved = Callable[[Slice, int, int, ObjectGone], Sequence[Slice]]
"""`moved(piece, base, end, error)` says where the records in `[base, end)` of a slice are now, in offset
order; it raises `error` if they are gone, and StorageError, BadObject."""


class _StoredBlock(NamedTuple):
    """A block of a level-one object, and what is wanted of it."""

    name: str
    block: Block
    piece: Slice
    aborted: Aborted
    holes: bool

    @property
    def base_offset(self) -> int:
        return self.block.base_offset

    @property
    def end_offset(self) -> int:
        return self.block.end_offset

    def batches(self, data: Stored, start: int) -> Iterator[BatchSlice]:
        """Its wanted batches; the block's bytes are those of `data` from `start` on. Raises BadObject."""
        name, block, piece, aborted, holes = self
        content = memoryview(data)[start : start + block.length]
        verify_block(name, block, content)
        for span in batches_of(name, block, content, holes):
            if span.end_offset > piece.first and span.base_offset < piece.end:
                yield BatchSlice(
                    data=data,
                    start=start + span.position - block.position,
                    length=span.length,
                    name=name,
                    position=span.position,
                    topic=piece.topic,
                    partition=piece.partition,
                    base_offset=span.base_offset,
                    end_offset=span.end_offset,
                    leader_epoch=span.leader_epoch,
                    first=piece.first,
                    end=piece.end,
                    aborted=aborted,
                    holes=holes,
                )


@dataclass(slots=True)
class _Range:
    """Bytes of an object that are one get; `document` is the state that refers to them."""

    key: str
    start: int
    end: int
    document: str
    place: int = 0
    """Its beginning in the memory that it is read into."""


class _Memory:
    """Memory of a task's windows, used again: fresh pages cost the kernel as much as filling them."""

    def __init__(self) -> None:
        self._free: bytearray | None = None

    def take(self, size: int) -> bytearray:
        """At least so many bytes."""
        free, self._free = self._free, None
        return free if free is not None and len(free) >= size else bytearray(size)

    def give(self, memory: bytearray) -> None:
        """Have it for a later window; nothing may refer to it any more."""
        self._free = memory


class _Window:
    """The batches of some slices, in their order, whose bytes are on the way."""

    def __init__(
        self,
        storage: Storage,
        pool: ThreadPoolExecutor,
        slices: Sequence[Slice],
        moved: Moved | None,
        moves: int = len(WAITS_SECONDS),
        memory: _Memory | None = None,
    ) -> None:
        """`moved` is asked for records whose objects are gone, up to `moves` times for one place.

        Bytes are read into `memory`, if there is one, and are another window's after `release`.
        """
        self._storage = storage
        self._pool = pool
        self._moved = moved
        self._moves = moves
        self._stored: list[BatchSlice | _StoredBlock] = []
        self._pieces: list[Slice] = []
        """The slice that each is of."""
        self._range_of: dict[int, int] = {}
        """Range of each stored piece, by number; inline batches have none."""
        wanted: list[tuple[str, int, int, str, int]] = []
        for piece in slices:
            aborted = Aborted(piece.aborted)
            for row in PIECE.iter_unpack(piece.pieces):
                stored = _stored(piece, row, aborted)
                if row[0] != PieceKind.INLINE:
                    position, length = row[5:7]
                    wanted.append(
                        (stored.name, position, position + length, piece.document, len(self._stored))
                    )
                self._stored.append(stored)
                self._pieces.append(piece)
        self._ranges: list[_Range] = []
        first: list[int] = []
        """Number of the first piece of each range: as they are decoded, so they lie in memory."""
        for key, start, end, document, number in sorted(wanted):
            last = self._ranges[-1] if self._ranges else None
            if last is not None and last.key == key and start - last.end <= JOIN_GAP_BYTES:
                last.end = max(end, last.end)
                first[-1] = min(first[-1], number)
            else:
                self._ranges.append(_Range(key, start, end, document))
                first.append(number)
            self._range_of[number] = len(self._ranges) - 1
        size = sum(one.end - one.start for one in self._ranges)
        self._memory = memory if size <= MOST_ROOM else None
        self._room: bytearray | None = None
        if self._memory is not None:
            self._room, place = self._memory.take(size), 0
            for range_number in sorted(range(len(first)), key=first.__getitem__):
                one = self._ranges[range_number]
                one.place, place = place, place + one.end - one.start
        self._gets = [pool.submit(self._get, one) for one in self._ranges]

    def _get(self, one: _Range) -> Stored:
        if self._room is None:
            return get_referred(self._storage, one.key, one.start, one.end - one.start, one.document)
        room = memoryview(self._room)[one.place : one.place + one.end - one.start]
        with _referred(one.document):
            self._storage.read_into(one.key, one.start, room)
        return self._room

    def release(self) -> None:
        """Leave the memory to another window, once no get of this one writes to it any more."""
        if self._memory is not None and self._room is not None:
            wait(self._gets)
            self._memory.give(self._room)

    def batches(self) -> Iterator[BatchSlice]:
        """The batches with their bytes; waits for them. Raises StorageError, BadObject."""
        number = 0
        while number < len(self._stored):
            stored, source = self._stored[number], self._range_of.get(number)
            if source is None:
                assert isinstance(stored, BatchSlice), "only inline batches come with their bytes"
                yield stored
                number += 1
                continue
            try:
                data = self._gets[source].result()
                begin = self._ranges[source].start - self._ranges[source].place
            except ObjectGone as error:
                if self._moved is None or not self._moves:
                    raise
                behind, end = self._run(number)
                slices = self._moved(self._pieces[number], stored.base_offset, end, error)
                again = _Window(self._storage, self._pool, slices, self._moved, self._moves - 1)
                yield from again.batches()
                number = behind
                continue
            if isinstance(stored, BatchSlice):
                yield stored._replace(data=data, start=stored.position - begin)
            else:
                yield from stored.batches(data, stored.block.position - begin)
            number += 1

    def _run(self, number: int) -> tuple[int, int]:
        """The number and offset at which a run without a gap ends: what lies in one may be another task's."""
        piece, end = self._pieces[number], self._stored[number].end_offset
        number += 1
        while (
            number < len(self._stored)
            and self._pieces[number] is piece
            and self._stored[number].base_offset == end
        ):
            end = self._stored[number].end_offset
            number += 1
        return number, end


def _stored(piece: Slice, row: Sequence[Any], aborted: Aborted) -> BatchSlice | _StoredBlock:
    """The piece of a row of PIECE; with its bytes if it is inline, otherwise without."""
    kind, base, end, term, timestamp, position, length, epoch, crc, batches, identity = row
    if kind in (PieceKind.BLOCK, PieceKind.BLOCK_WITH_HOLES):
        name = level_one_name(piece.topic_id, piece.partition, term, identity[:UNIQUE_BYTES])
        block = Block(base, end, position, length, crc, timestamp, batches)
        return _StoredBlock(name, block, piece, aborted, kind == PieceKind.BLOCK_WITH_HOLES)
    if kind == PieceKind.INLINE:
        data, name = piece.inline[base], f"{piece.document} (inline batch at offset {base})"
    else:
        data, name = b"", object_name(epoch, identity)
    return BatchSlice(
        data=data,
        start=0,
        length=length,
        name=name,
        position=position,
        topic=piece.topic,
        partition=piece.partition,
        base_offset=base,
        end_offset=end,
        leader_epoch=term,
        first=piece.first,
        end=piece.end,
        aborted=aborted,
    )


def read_windows(
    storage: Storage, windows: Sequence[Sequence[Slice]], schema: Any, moved: Moved | None = None
) -> Iterator[Any]:
    """Arrow batches of all records in the windows; raises StorageError, BadObject.

    With `moved`, what lies elsewhere by now is read there.
    """
    decoder = Decoder(schema)
    memory = _Memory() if len(windows) > AHEAD else None
    with ThreadPoolExecutor(PARALLEL_GETS) as pool:
        following = _Window(storage, pool, windows[0], moved, memory=memory) if windows else None
        for number in range(len(windows)):
            window = following
            assert window is not None, "a window is on its way for every number"
            more = number + 1 < len(windows)
            following = _Window(storage, pool, windows[number + 1], moved, memory=memory) if more else None
            yield from decoder.decode(window.batches())
            window.release()  # what was decoded of it is copies


def first_offset_since(storage: Storage, piece: Slice, timestamp: int) -> int | None:
    """Offset of the slice's first record of a time (Unix ms) or later."""
    schema = pa.schema([(name, COLUMNS[name]) for name in ("offset", "timestamp")])
    for decoded in read_windows(storage, [[piece]], schema):
        times = decoded.column("timestamp").cast(pa.int64()).to_numpy()
        for number in (times >= timestamp * 1000).nonzero()[0][:1]:
            return int(decoded.column("offset")[int(number)].as_py())
    return None


def get_referred(storage: Storage, key: str, start: int, length: int, document: str) -> bytes:
    """Bytes of an object that a published state refers to; raises ObjectGone, StorageError."""
    with _referred(document):
        return storage.get_range(key, start, length)


@contextmanager
def _referred(document: str) -> Iterator[None]:
    """Turns ObjectMissing, of what a document refers to, into ObjectGone."""
    try:
        yield
    except ObjectMissing as error:
        reason = f"{document} refers to it: deleted since its lease has ended, or lost"
        raise ObjectGone(f"{error}; {reason}. Take a new checkpoint and read again") from error
