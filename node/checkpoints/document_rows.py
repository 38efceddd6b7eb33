"""The rows of a local document in the making: of a share of all keys, which is halved until they fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from strandline.snapshot.local_document import KEY_BYTES, MAX_SHARE_BITS, ROW_BYTES, bound

MAX_ROWS: Final = 160_000
"""Most rows of a document, 4 MB. A share that has more is halved until it fits."""


class DocumentRows:
    """The rows that were found so far, those of later records behind those of earlier ones."""

    def __init__(self, share_bits: int, most: int = MAX_ROWS) -> None:
        self.share_bits = share_bits
        """Of the share as it is now; see `local_document.bound`."""
        self._most = most
        self._rows = bytearray()

    def add(self, rows: bytes) -> None:
        """Take in more rows, of this share. Where that halves it, it takes some 50 ms."""
        self._rows += rows
        while len(self._rows) > self._most * ROW_BYTES and self.share_bits < MAX_SHARE_BITS:
            self.share_bits += 1
            limit = bound(self.share_bits)
            self._rows = bytearray().join(row for row in self._each() if row[:KEY_BYTES] < limit)

    def packed(self) -> bytes:
        """All rows, as a document has them."""
        return bytes(self._rows)

    def _each(self) -> Iterator[bytearray]:
        return (self._rows[at : at + ROW_BYTES] for at in range(0, len(self._rows), ROW_BYTES))
