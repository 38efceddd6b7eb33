"""The records of a Fetch answer as Arrow batches, none of them aborted or undecided.

An answer is decoded at once, with no Python object for a record. Its list of aborted transactions has where
each begins; it ends with its marker, which is among the batches (KIP-98).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from confluent_kafka import KafkaError, KafkaException
from kio.schema.errors import ErrorCode

from strandline.snapshot.connection import RETRIABLE
from strandline.snapshot.decode import BatchSlice, Decoder
from strandline.snapshot.level_zero_format import BATCH, BATCH_HEADER_BYTES, BadObject, verify_batch
from strandline.snapshot.record_fields import UnreadableRecords, read_fields, record_ends
from strandline.snapshot.views.json_records import RECORDS

Place = tuple[str, int]
"""A topic's name and the number of a partition."""
Cut = dict[Place, int]

READ_COMMITTED: Final = 1
ISOLATION: Final = READ_COMMITTED
"""Inputs are read so: what is not decided yet may still be aborted."""
_PASSING: Final = RETRIABLE | {
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_leader_epoch,
    ErrorCode.offset_not_available,
}
"""A leader moves, or begins."""
_REST: Final = struct.Struct(">hi16xqhii")
"""After the checksum: attributes, last offset delta, times, producer id, epoch, sequence, count."""
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_KEY: Final = struct.Struct(">hh")
"""Of a marker: version and type (https://kafka.apache.org/documentation/#controlbatch)."""
_ABORT: Final = 0
_LENGTH_END: Final = 12
"""A batch's length counts from here."""


class InputGone(Exception):
    """Records that a state needs are not there any more; `str()` says where."""


class Fetched(NamedTuple):
    """Records of one partition below `upto`: all that there are from where the last ones ended."""

    place: Place
    records: Any
    """An Arrow batch (RECORDS)."""
    upto: int
    end: bool
    """Whether nothing is decided beyond `upto`."""


class Fetcher(Protocol):
    """Reads partitions on, and knows where it is."""

    def begin(self, cut: Mapping[Place, int]) -> None:
        """Read these partitions, from these offsets on."""

    def fetch(self, but: Collection[Place], seconds: float) -> Sequence[Fetched]:
        """Give what has come; where nothing has, what comes within `seconds`.

        No more is asked of places in `but`.

        Raises KafkaException, and InputGone for records that retention has deleted.
        """

    def close(self) -> None:
        """End its connections."""


class Part(NamedTuple):
    """The answer for one partition: its batches from an offset on, and what of them is aborted."""

    place: Place
    offset: int
    data: bytes
    aborted: Sequence[tuple[int, int]]
    """First offset and producer id of each transaction."""
    stable: int
    """The last stable offset: all below it is decided."""


def check(place: Place, code: ErrorCode) -> None:
    """Go on after what passes; raises InputGone, and KafkaException for what does not."""
    name = f"{place[0]}-{place[1]}"
    if code is ErrorCode.offset_out_of_range:
        raise InputGone(
            f"HISTORY_GONE: {name} does not have the records any more that the state needs: "
            "apply the program again, which fills it from those that are there"
        )
    if code not in _PASSING:
        raise KafkaException(KafkaError(code.value, name))


def decoded(parts: Sequence[Part], most: int) -> tuple[list[Fetched], list[Part]]:
    """Read the records of an answer up to little more than `most` bytes of them, and what is left to be read.

    What is compressed may have a thousand times the bytes of its batch. Raises BadObject for bytes that are
    not what their batch says.
    """
    slices: list[BatchSlice] = []
    upto = [_wanted(part, number, slices) for number, part in enumerate(parts)]
    found: list[list[Any]] = [[] for _ in parts]
    given = _Given(slices)
    for batch in Decoder(RECORDS).decode(given):
        numbers = batch.column(0).to_numpy()
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for first, after in pairwise(edges):
            number = int(numbers[first])
            found[number].append(_of_place(batch.slice(first, after - first), parts[number].place))
        most -= batch.nbytes
        if most <= 0 and given.last is not None:
            break
    left: list[Part] = []
    if given.last is not None:
        number = given.last.partition
        upto[number] = max(parts[number].offset, given.last.base_offset)
        left = [parts[number]._replace(offset=upto[number]), *parts[number + 1 :]]
        parts, found = parts[: number + 1], found[: number + 1]
    return [
        Fetched(part.place, joined(batches), last, last >= part.stable)
        for part, batches, last in zip(parts, found, upto, strict=False)
    ], left


class _Given:
    """Gives batches to a decoder. It has `last` when it gives what was decoded before that one."""

    def __init__(self, batches: Sequence[BatchSlice]) -> None:
        self._batches = batches
        self.last: BatchSlice | None = None
        """None once all are given, and what comes has the last ones too."""

    def __iter__(self) -> Iterator[BatchSlice]:
        for batch in self._batches:
            self.last = batch
            yield batch
        self.last = None


def joined(batches: Sequence[Any]) -> Any:
    """One batch of several; none is the empty one."""
    if len(batches) == 1:
        return batches[0]
    return pa.concat_batches(batches) if batches else NOTHING


NOTHING: Final = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in RECORDS], schema=RECORDS)


def _of_place(batch: Any, place: Place) -> Any:
    numbers = pa.array(np.full(batch.num_rows, place[1], np.int32))
    return pa.RecordBatch.from_arrays([numbers, *batch.columns[1:]], schema=RECORDS)


def _wanted(part: Part, number: int, slices: list[BatchSlice]) -> int:
    """Add the batches of a part that have records to take, under its number; the offset behind all."""
    data, at, upto = part.data, 0, part.offset
    begins, aborted = sorted(part.aborted, reverse=True), set[int]()
    name = f"{part.place[0]}-{part.place[1]}"
    while at + BATCH_HEADER_BYTES <= len(data):
        base, length = BATCH.unpack_from(data, at)[:2]
        length += _LENGTH_END
        if length < BATCH_HEADER_BYTES:
            raise BadObject(name, at, at + length, "no batch begins here")
        if at + length > len(data):
            break  # Kafka cuts an answer off where it has as many bytes as were asked for
        attributes, last, producer, _, _, _ = _REST.unpack_from(data, at + BATCH.size)
        end = base + last + 1
        while begins and begins[-1][0] < end:
            aborted.add(begins.pop()[1])
        if attributes & _CONTROL:
            if producer in aborted and _is_abort(name, data, at, length):
                aborted.discard(producer)
        elif end > part.offset and not (attributes & _TRANSACTIONAL and producer in aborted):
            place = part.place[0], number
            slices.append(
                BatchSlice(
                    data, at, length, name, at, *place, base, end, -1, part.offset, end, holes=True
                )
            )  # fmt: skip
        upto = max(upto, end)
        at += length
    return upto


def _is_abort(name: str, data: bytes, at: int, length: int) -> bool:
    """Whether a control batch is the marker of an abort."""
    verify_batch(name, at, length, memoryview(data)[at : at + length])
    ends = array("q")
    try:
        record_ends(data, at + BATCH_HEADER_BYTES, at + length, 1, ends)
        starts = np.array([at + BATCH_HEADER_BYTES], np.int64)
        fields = read_fields(
            np.frombuffer(data, np.uint8), starts, np.array(ends, np.int64), bodies=True, headers=False
        )
        assert fields.key is not None
        if int(fields.key.end[0] - fields.key.start[0]) < _KEY.size:
            raise UnreadableRecords("a marker has no type")
    except UnreadableRecords as error:
        raise BadObject(name, at, at + length, str(error)) from None
    _, kind = _KEY.unpack_from(data, int(fields.key.start[0]))
    return bool(kind == _ABORT)
