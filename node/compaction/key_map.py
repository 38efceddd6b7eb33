"""The last offset of each key, in as much memory as it was given and no more.

A key counts by 128 bits of it: four multilinear hashes over 32-bit words, whose 64-bit coefficients are drawn
in each process and never leave it (Lemire and Kaser, "Strongly universal string hashing is fast", 2014). Two
given keys share them with a probability of 2^-128, and no producer can make two that do. Of two keys that
did, the earlier one's record would be taken for superseded. Longer keys are hashed by BLAKE2b with a random
key.
"""

from __future__ import annotations

import math
import os
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from strandline.snapshot.record_fields import Longs, Spans

Words = NDArray[np.uint64]
LONGEST_MULTILINEAR: Final = 256
"""Bytes of a key."""
SLOT_BYTES: Final = 24
"""Two words of the hash and the offset."""
_LOAD: Final = 0.75
_HALF: Final = np.uint64(32)
_COEFFICIENTS: Final = LONGEST_MULTILINEAR // 4 + 2
"""One for each word, one for the length, and one that is added."""


def map_bytes(keys: int) -> int:
    """Bytes of a map that this number of keys half fills, and of one slot or more."""
    return SLOT_BYTES * (2 * keys + 2)


def least_map_bytes(keys: int) -> int:
    """Bytes of the smallest map that this number of keys fits into."""
    return SLOT_BYTES * math.ceil(keys / _LOAD)


class KeyHash:
    """Maps keys to 128 bits, or to `bits` of them in tests; with coefficients of its own."""

    def __init__(self, bits: int = 128) -> None:
        self._coefficients = np.frombuffer(os.urandom(4 * 8 * _COEFFICIENTS), np.uint64).reshape(4, -1)
        self._secret = os.urandom(32)
        low = (1 << bits) - 1
        self._high, self._low = np.uint64(low >> 64), np.uint64(low & (1 << 64) - 1)

    def of(self, data: bytes, keys: Spans) -> tuple[Words, Words]:
        """Two words for each key; `keys` are spans of `data`. A null key is as an empty one."""
        length = keys.end - keys.start
        high, low = np.empty(length.size, np.uint64), np.empty(length.size, np.uint64)
        raw = np.frombuffer(data, np.uint8)
        short = length <= LONGEST_MULTILINEAR
        for size in np.flatnonzero(np.bincount(length[short])).tolist():
            rows = np.flatnonzero(length == size)
            high[rows], low[rows] = self._multilinear(raw, keys.start[rows], size)
        for row in np.flatnonzero(~short).tolist():
            digest = blake2b(data[keys.start[row] : keys.end[row]], digest_size=16, key=self._secret).digest()
            high[row], low[row] = np.frombuffer(digest, np.uint64)
        return high & self._high, low & self._low

    def _multilinear(self, raw: NDArray[np.uint8], starts: Longs, size: int) -> tuple[Words, Words]:
        padded = np.zeros((starts.size, -(-size // 4) * 4), np.uint8)
        padded[:, :size] = raw[starts[:, None] + np.arange(size)]
        words = np.ascontiguousarray(padded.view("<u4").T).astype(np.uint64)
        hashed = []
        for added, of_length, *factors in self._coefficients:
            # All of it is modulo 2^64: arrays wrap by themselves.
            total = np.full(starts.size, (int(added) + int(of_length) * size) % (1 << 64), np.uint64)
            for word, factor in zip(words, factors, strict=False):
                total += word * factor
            hashed.append(total >> _HALF)
        return hashed[0] << _HALF | hashed[1], hashed[2] << _HALF | hashed[3]


class KeyMap:
    """Open addressing with linear probing: 24 bytes a slot, of which three in four may be taken."""

    def __init__(self, memory_bytes: int, key_hash: KeyHash) -> None:
        slots = memory_bytes // SLOT_BYTES
        self.capacity = int(slots * _LOAD)
        if not 0 < slots < 1 << 32 or self.capacity < 1:
            raise ValueError(f"a map of keys cannot have {memory_bytes} bytes")
        self.hash = key_hash
        self.size = 0
        """Keys that it has."""
        self._slots = slots
        self._high, self._low = np.zeros(slots, np.uint64), np.zeros(slots, np.uint64)
        self._offset = np.full(slots, -1, np.int64)

    @property
    def room(self) -> int:
        """So many keys more fit for certain."""
        return self.capacity - self.size

    def put(self, high: Words, low: Words, offsets: Longs) -> None:
        """Note keys by their hashes; offsets rise, here and from one call to the next.

        ValueError if there might be no room.
        """
        if offsets.size > self.room:
            raise ValueError(f"{offsets.size} keys may not fit into the room for {self.room}")
        todo = np.arange(offsets.size)
        at = self._home(high)
        while todo.size:
            slots = self._probed(at, high, low, todo)
            new = self._offset[slots] < 0
            known = ~new
            # Of repeated indexes numpy keeps the last, which has the highest offset: nothing need be sorted.
            self._offset[slots[known]] = offsets[todo[known]]
            slots, rows = slots[new], todo[new]
            # Of different keys that want one slot the last has it, and the others look further.
            self._high[slots], self._low[slots] = high[rows], low[rows]
            has = (self._high[slots] == high[rows]) & (self._low[slots] == low[rows])
            slots, taken = slots[has], rows[has]
            self._offset[slots] = taken
            self.size += int(np.count_nonzero(self._offset[slots] == taken))
            self._offset[slots] = offsets[taken]
            todo = rows[~has]

    def get(self, high: Words, low: Words) -> Longs:
        """The last offset of each key; -1 for one that is not there."""
        found: Longs = self._offset[self._probed(self._home(high), high, low, np.arange(high.size))]
        return found

    def _home(self, high: Words) -> Longs:
        """Slot at which the search for each key begins: the hash, scaled to the number of slots."""
        folded = (high ^ high >> _HALF) & np.uint64(0xFFFFFFFF)
        home: Longs = (folded * np.uint64(self._slots) >> _HALF).astype(np.int64)
        return home

    def _probed(self, at: Longs, high: Words, low: Words, rows: Longs) -> Longs:
        """For each of these rows its key's slot, or the free one where it would be; moves `at` there."""
        left = rows
        while left.size:
            slots = at[left]
            others = (self._offset[slots] >= 0) & (
                (self._high[slots] != high[left]) | (self._low[slots] != low[left])
            )
            left = left[others]
            following = at[left] + 1
            following[following == self._slots] = 0
            at[left] = following
        return at[rows]
