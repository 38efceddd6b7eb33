"""The partition of a record is a hash of its key, murmur2, as in Kafka's clients in Java."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

_SEED: Final = np.uint32(0x9747B28C)
_M: Final = np.uint32(0x5BD1E995)


def partitions_of(keys: Sequence[bytes], count: int) -> Any:
    """The partition of each key, an array; `count`: partitions of the topic."""
    found = np.empty(len(keys), np.int64)
    by_length: dict[int, list[int]] = {}
    for number, key in enumerate(keys):
        by_length.setdefault(len(key), []).append(number)
    for length, numbers in by_length.items():
        joined = b"".join([keys[number] for number in numbers])
        found[numbers] = _hashes(joined, length, len(numbers))
    return (found & 0x7FFFFFFF) % count


def _hashes(joined: bytes, length: int, count: int) -> Any:
    """murmur2 of so many keys of one length, all at once."""
    bytes_ = np.frombuffer(joined, np.uint8).reshape(count, length)
    state = np.full(count, _SEED ^ np.uint32(length), np.uint32)
    whole = length // 4
    words = np.ascontiguousarray(bytes_[:, : 4 * whole]).view("<u4") if whole else None
    for number in range(whole):
        assert words is not None
        word = words[:, number] * _M
        word ^= word >> np.uint32(24)
        word *= _M
        state *= _M
        state ^= word
    rest = bytes_[:, 4 * whole :]
    if rest.shape[1]:
        for number in range(rest.shape[1] - 1, -1, -1):
            state ^= rest[:, number].astype(np.uint32) << np.uint32(8 * number)
        state *= _M
    state ^= state >> np.uint32(13)
    state *= _M
    state ^= state >> np.uint32(15)
    return state
