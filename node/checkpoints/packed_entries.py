"""Packed entries of a log, one after the other, as they come.

Not in one buffer: the memory that it grows out of is kept by this process (`runtime/allocator.py`), so it is
copied as a whole each time, again and again, on the event loop.
"""

from __future__ import annotations

from typing import Final

PIECE_BYTES: Final = 64 * 1024
"""Up to this size small entries share a buffer."""
_LARGE_BYTES: Final = 4 * 1024
"""An entry of this size is kept as it came: it would be copied into the buffer, and again as that grows."""


class PackedEntries:
    """Entries as `pack_entry` gives them; `len` is their size in bytes."""

    __slots__ = ("_pieces", "_room", "_size")

    def __init__(self) -> None:
        self._pieces: list[bytes | bytearray] = []
        self._room = 0
        """Bytes that fit into the last piece; 0 if it is no buffer."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, packed: bytes) -> None:
        size = len(packed)
        if size >= _LARGE_BYTES:
            self._pieces.append(packed)
            self._room = 0
        elif size <= self._room:
            self._pieces[-1] += packed
            self._room -= size
        else:
            self._pieces.append(bytearray(packed))
            self._room = PIECE_BYTES - size
        self._size += size

    def joined(self) -> bytes:
        """All of them, a copy."""
        return b"".join(self._pieces)
