"""The aborted transactions of a partition: what a read-committed reader has to leave out.

A batch does not say how its transaction ended; its marker does, later in the log. So Fetch hands a reader
the aborted transactions of what it reads (KIP-98), and a partition remembers them as long as it has one of
their records. Kafka keeps an index file for each segment (AbortedTxn, TransactionIndex); here they are rows
of the snapshot, in the order of their markers, so that a lookup is a bisection and keeping costs 32 bytes.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

ABORTED_ROW = struct.Struct("<qqqq")
"""A row, little-endian and unpadded: producer id, first offset, last offset, first offset that was still
open when it was aborted, or the next offset."""
ABORTED_ROW_BYTES = ABORTED_ROW.size
_last_offset = struct.Struct("<q").unpack_from


class AbortedTransaction(NamedTuple):
    """A producer's batches from `first_offset` up to its marker, at `last_offset`, are to be left out."""

    producer_id: int
    first_offset: int
    last_offset: int


class AbortedTransactions:
    """The aborted transactions that have a marker at or above the start offset, in the order of the markers.

    Costs: append O(1), trim a copy of what stays, lookup O(log n) and what lies up to the first transaction
    behind which all that follow begin above the range.
    """

    def __init__(self) -> None:
        self._rows = bytearray()

    def __len__(self) -> int:
        return len(self._rows) // ABORTED_ROW_BYTES

    def __iter__(self) -> Iterator[AbortedTransaction]:
        for producer_id, first, last, _ in ABORTED_ROW.iter_unpack(bytes(self._rows)):
            yield AbortedTransaction(producer_id, first, last)

    def append(self, producer_id: int, first_offset: int, last_offset: int, stable_offset: int) -> None:
        """Add one that was aborted just now; `stable_offset` is where the earliest one that is still open
        begins, or the next offset. Transactions that are aborted after it begin there or above."""
        self._rows += ABORTED_ROW.pack(producer_id, first_offset, last_offset, stable_offset)

    def trim(self, start_offset: int) -> None:
        """Forget those whose marker lies below an offset."""
        del self._rows[: self._position(start_offset) * ABORTED_ROW_BYTES]

    def between(self, first: int, end: int) -> list[AbortedTransaction]:
        """Those with offsets in `[first, end)`, in the order of their markers."""
        found: list[AbortedTransaction] = []
        for number in range(self._position(first), len(self)):
            producer_id, begun, last, stable = ABORTED_ROW.unpack_from(self._rows, number * ABORTED_ROW_BYTES)
            if begun < end:
                found.append(AbortedTransaction(producer_id, begun, last))
            if stable >= end:
                break
        return found

    def rows(self) -> bytearray:
        """All rows, to be copied at once and not kept, for a snapshot."""
        return self._rows

    @classmethod
    def restored(cls, rows: bytes) -> AbortedTransactions:
        """What `rows` gave, checked: raises ValueError for what it cannot have given."""
        if len(rows) % ABORTED_ROW_BYTES:
            raise ValueError(f"{len(rows)} bytes of aborted transactions are not rows of {ABORTED_ROW_BYTES}")
        marker = stable = -1
        for producer_id, begun, last, behind in ABORTED_ROW.iter_unpack(rows):
            if not (producer_id >= 0 and 0 <= begun < last) or last <= marker or begun < stable:
                raise ValueError(f"no aborted transaction of producer {producer_id} from {begun} to {last}")
            if not stable <= behind <= last + 1:
                raise ValueError(f"after the marker at {last} nothing was open from {behind} on")
            marker, stable = last, behind
        restored = cls()
        restored._rows += rows
        return restored

    def _position(self, offset: int) -> int:
        """Number of the first row whose marker is at or above an offset."""
        rows = self._rows
        return bisect_left(
            range(len(self)), offset, key=lambda n: _last_offset(rows, n * ABORTED_ROW_BYTES + 16)[0]
        )
