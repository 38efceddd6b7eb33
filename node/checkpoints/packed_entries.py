"""Packed entries of a log, one after the other, as they come.

Not in one buffer: the memory that it grows out of is kept by this process (`runtime/allocator.py`), so it is
copied as a whole each time, again and again, on the event loop.
"""

from __future__ import annotations

from typing import Final

PIECE_BYTES: Final = 64 * 1024
"""Up to this size small entries share a buffer."""


class PackedEntries:
    """Entries as `pack_entry` gives them; `len` is their size in bytes."""

    __slots__ = ("_pieces", "_size")

    def __init__(self) -> None:
        self._pieces: list[bytearray] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, packed: bytes) -> None:
        pieces = self._pieces
        if pieces and len(pieces[-1]) + len(packed) <= PIECE_BYTES:
            pieces[-1] += packed
        else:
            pieces.append(bytearray(packed))
        self._size += len(packed)

    def joined(self) -> bytes:
        """All of them, a copy."""
        return b"".join(self._pieces)
