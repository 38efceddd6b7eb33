"""The records of a local log whose keys fall into a share of all keys, for its local document."""

from __future__ import annotations

from typing import Final

import numpy as np

from strandline.node.compaction.chunk import chunks
from strandline.snapshot.local_document import MAX_SHARE_BITS, bound, key_hash
from strandline.snapshot.local_rows import LOCAL_ROWS

MAX_ROWS: Final = 160_000
"""Most rows of a document, 4 MB. A share that has more is halved until it fits."""


class SharedRows:
    """The rows that were found so far. Every key is hashed, about a microsecond each."""

    def __init__(self, share_bits: int, most: int = MAX_ROWS) -> None:
        self.share_bits = share_bits
        """Of the share as it is now; see `local_document.bound`."""
        self._most = most
        self._limit = bound(share_bits)
        self._rows: list[tuple[bytes, int, bool]] = []

    def add(self, data: bytes) -> None:
        """Look at some whole batches of a settled log; raises BadBatch."""
        for chunk in chunks(data):
            wanted = np.flatnonzero(~chunk.marker & ~chunk.key.null)
            records = chunk.records
            for start, end, offset, tombstone in zip(
                chunk.key.start[wanted].tolist(),
                chunk.key.end[wanted].tolist(),
                chunk.offset[wanted].tolist(),
                chunk.tombstone[wanted].tolist(),
                strict=True,
            ):
                hashed = key_hash(records[start:end])
                if hashed < self._limit:
                    self._rows.append((hashed, offset, tombstone))
            while len(self._rows) > self._most and self.share_bits < MAX_SHARE_BITS:
                self.share_bits += 1
                self._limit = bound(self.share_bits)
                self._rows = [row for row in self._rows if row[0] < self._limit]

    def packed(self) -> bytes:
        """Rows of LOCAL_ROWS."""
        return np.array(self._rows, LOCAL_ROWS).tobytes()
