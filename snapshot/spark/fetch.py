"""A task's side of a read: bytes from storage, next window ahead, and from them Arrow batches.

Ranges of one object that lie close together are one get, gets run in parallel, and the next window is on its
way while this one is decoded: storage answers in milliseconds, decoding takes about as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]

from snapshot.spark.decode import COLUMNS, Decoder, StoredBatch
from snapshot.storage import ObjectMissing, Storage, StorageError
from statemachine.extents import INLINE_ROW, ROW
from statemachine.object_names import object_name

PARALLEL_GETS: Final = 8
JOIN_GAP_BYTES: Final = 128 * 1024
"""Bytes nobody wants that are read along rather than asking twice: a request costs about as much."""


@dataclass(frozen=True)
class Slice:
    """Extents of one partition, as the rows of statemachine.extents; wanted are offsets in `[first, end)`."""

    topic: str
    partition: int
    document: str
    first: int
    end: int
    rows: bytes
    inline: dict[int, bytes]


@dataclass(slots=True)
class _Range:
    """Bytes of an object that are one get; `document` is the checkpoint that refers to them."""

    key: str
    start: int
    end: int
    document: str


class _Window:
    """The batches of some slices, in their order, whose bytes are on the way."""

    def __init__(self, storage: Storage, pool: ThreadPoolExecutor, slices: Sequence[Slice]) -> None:
        self._batches: list[StoredBatch] = []
        self._range_of: dict[int, int] = {}
        """Which range a batch is in, by number; inline batches are in none."""
        wanted: list[tuple[str, int, int, str, int]] = []
        for piece in slices:
            for row in ROW.iter_unpack(piece.rows):
                batch = _batch(piece, row)
                if row[0] != INLINE_ROW:
                    end = batch.position + batch.length
                    wanted.append((batch.name, batch.position, end, piece.document, len(self._batches)))
                self._batches.append(batch)
        self._ranges: list[_Range] = []
        for key, start, end, document, number in sorted(wanted):
            last = self._ranges[-1] if self._ranges else None
            if last is not None and last.key == key and start - last.end <= JOIN_GAP_BYTES:
                last.end = max(end, last.end)
            else:
                self._ranges.append(_Range(key, start, end, document))
            self._range_of[number] = len(self._ranges) - 1
        self._gets = [pool.submit(_get, storage, one) for one in self._ranges]

    def batches(self) -> Iterator[StoredBatch]:
        """The batches with their bytes; waits for them. Raises StorageError."""
        for number, batch in enumerate(self._batches):
            source = self._range_of.get(number)
            if source is None:
                yield batch
            else:
                start = batch.position - self._ranges[source].start
                yield batch._replace(data=self._gets[source].result(), start=start)


def _batch(piece: Slice, row: Sequence[Any]) -> StoredBatch:
    """An extent's batch: with its bytes if it is inline, otherwise without."""
    kind, base, records, term, _, length, epoch, position, identity = row
    if kind == INLINE_ROW:
        data, name = piece.inline[base], f"{piece.document} (inline batch at offset {base})"
    else:
        data, name = b"", object_name(epoch, identity)
    return StoredBatch(
        data=data,
        start=0,
        length=length,
        name=name,
        position=position,
        topic=piece.topic,
        partition=piece.partition,
        base_offset=base,
        record_count=records,
        leader_epoch=term,
        first=piece.first,
        end=piece.end,
    )


def read_windows(storage: Storage, windows: Sequence[Sequence[Slice]], schema: Any) -> Iterator[Any]:
    """Arrow batches of all records in the windows; raises StorageError, BadObject."""
    decoder = Decoder(schema)
    with ThreadPoolExecutor(PARALLEL_GETS) as pool:
        following = _Window(storage, pool, windows[0]) if windows else None
        for number in range(len(windows)):
            window = following
            assert window is not None, "a window is on its way for every number"
            following = _Window(storage, pool, windows[number + 1]) if number + 1 < len(windows) else None
            yield from decoder.decode(window.batches())


def first_offset_since(storage: Storage, piece: Slice, timestamp: int) -> int | None:
    """Offset of the slice's first record of a time (Unix ms) or later."""
    schema = pa.schema([(name, COLUMNS[name]) for name in ("offset", "timestamp")])
    for decoded in read_windows(storage, [[piece]], schema):
        times = decoded.column("timestamp").cast(pa.int64()).to_numpy()
        for number in (times >= timestamp * 1000).nonzero()[0][:1]:
            return int(decoded.column("offset")[int(number)].as_py())
    return None


def _get(storage: Storage, wanted: _Range) -> bytes:
    try:
        return storage.get_range(wanted.key, wanted.start, wanted.end - wanted.start)
    except ObjectMissing as error:
        reason = f"{wanted.document} refers to it: deleted since its lease has ended, or lost"
        raise StorageError(f"{error}; {reason}. Take a new checkpoint and read again") from error
