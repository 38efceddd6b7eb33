"""Record batches from columns of keys and values, with no Python object for a record.

The numbers of each record become bytes by numpy, and Arrow puts them and the columns together: its array of
the results lies in one buffer, as a batch has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from strandline.snapshot.producing.record_batch import HEADER_BYTES

Longs = NDArray[np.int64]

RECORD_BYTES: Final = 26
"""Of a record besides key and value, at most: five numbers of up to five bytes, and its attributes."""
_MOST: Final = np.uint8(0x7F)
"""Of a byte that has none behind it."""
_NO_HEADERS: Final = pa.scalar(b"\0", pa.large_binary())
_NOTHING: Final = pa.scalar(b"", pa.large_binary())


class Packed(NamedTuple):
    """The records of a batch, one behind the other, and how many there are."""

    data: memoryview[int]
    records: int


def packed(keys: Any, values: Any, most: int) -> Iterator[Packed]:
    """Give the records of batches of `most` bytes at most, or of a single larger record.

    `keys` and `values` are Arrow arrays of large binaries; a null value is a tombstone, and no key is null.
    """
    key_sizes, value_sizes = _sizes(keys), _sizes(values)
    ends = np.cumsum(key_sizes + np.maximum(value_sizes, 0) + RECORD_BYTES)
    first, room = 0, most - HEADER_BYTES
    while first < len(ends):
        taken = int(ends[first - 1]) if first else 0
        after = max(first + 1, int(np.searchsorted(ends, taken + room, "right")))
        part = slice(first, after)
        yield Packed(_records(keys[part], values[part], key_sizes[part], value_sizes[part]), after - first)
        first = after


def _sizes(column: Any) -> Longs:
    """Bytes of each value; -1 for null."""
    sizes: Longs = pc.binary_length(column).fill_null(-1).to_numpy(zero_copy_only=False)
    return sizes


def _records(keys: Any, values: Any, key_sizes: Longs, value_sizes: Longs) -> memoryview[int]:
    number, key, value = map(_varint, (np.arange(len(key_sizes)), key_sizes, value_sizes))
    # Attributes, the time behind the batch's first one and the number of headers are 0, a byte each.
    size = 3 + number.widths + key.widths + key_sizes + value.widths + np.maximum(value_sizes, 0)
    front = _column([_varint(size), _ZEROS, number, key])
    values = values.fill_null(b"") if values.null_count else values
    records = pc.binary_join_element_wise(front, keys, _column([value]), values, _NO_HEADERS, _NOTHING)
    _, edges, content = records.buffers()
    edge = np.frombuffer(edges, np.int64)
    begin = int(edge[records.offset])
    return memoryview(content)[begin : int(edge[records.offset + len(records)])]


class _Bytes(NamedTuple):
    """The bytes of some numbers: the first, the second … of each, and whether it has that one."""

    letters: Sequence[NDArray[np.uint8] | int]
    there: Sequence[NDArray[np.bool_] | bool]

    @property
    def widths(self) -> Longs:
        """The number of bytes of each number."""
        return sum(self.there, np.int64(0))  # type: ignore[arg-type]


_ZEROS: Final = _Bytes((0, 0), (True, True))


def _varint(numbers: Longs) -> _Bytes:
    """Zigzag. The numbers are below 2³¹."""
    rest = ((numbers << 1) ^ (numbers >> 63)).astype(np.uint32)
    letters: list[NDArray[np.uint8]] = []
    there: list[NDArray[np.bool_] | bool] = [True]
    while True:
        more = rest > _MOST
        letters.append(rest.astype(np.uint8) & _MOST | (more.view(np.uint8) << np.uint8(7)))
        if not more.any():
            return _Bytes(letters, there)
        there.append(more)
        rest = rest >> np.uint32(7)


def _column(numbers: Sequence[_Bytes]) -> Any:
    """An Arrow array with the bytes of the numbers of each row, one behind the other."""
    count = next(len(one) for each in numbers for one in each.letters if not isinstance(one, int))
    width = sum(len(each.letters) for each in numbers)
    letters, there = np.empty((count, width), np.uint8), np.empty((count, width), np.bool_)
    every = ((one, has) for each in numbers for one, has in zip(each.letters, each.there, strict=True))
    for at, (one, has) in enumerate(every):
        letters[:, at], there[:, at] = one, has
    edges = np.zeros(count + 1, np.int64)
    np.cumsum(there.sum(1), out=edges[1:])
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(letters[there])]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, buffers)
