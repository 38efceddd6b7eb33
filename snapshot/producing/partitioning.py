"""The partition of a record is a hash of its key, murmur2, as in Kafka's clients in Java."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

_SEED: Final = np.uint32(0x9747B28C)
_M: Final = np.uint32(0x5BD1E995)
_AT_ONCE_BYTES: Final = 1 << 20
"""Of keys that are hashed at once: the place of each byte takes eight more."""


def partitions_of(keys: Sequence[bytes], count: int) -> Any:
    """The partition of each key, an array; `count`: partitions of the topic."""
    return places_of(pa.array(keys, pa.large_binary()), count)


def places_of(keys: Any, count: int) -> Any:
    """The partition of each key of an Arrow array of large binaries without nulls, an array."""
    found = np.empty(len(keys), np.int64)
    _, edges, content = keys.buffers()
    starts = np.frombuffer(edges, np.int64)[keys.offset : keys.offset + len(keys) + 1]
    letters = np.empty(0, np.uint8) if content is None else np.frombuffer(content, np.uint8)
    lengths = np.diff(starts)
    for length in np.unique(lengths).tolist():
        chosen = np.flatnonzero(lengths == length)
        most = max(1, _AT_ONCE_BYTES // max(1, length))
        for first in range(0, len(chosen), most):
            some = chosen[first : first + most]
            found[some] = _hashes(letters[starts[some, None] + np.arange(length)])
    return (found & 0x7FFFFFFF) % count


def _hashes(keys: Any) -> Any:
    """murmur2 of keys of one length, all at once: a row of bytes each."""
    count, length = keys.shape
    state = np.full(count, _SEED ^ np.uint32(length), np.uint32)
    whole = length // 4
    words = np.ascontiguousarray(keys[:, : 4 * whole]).view("<u4") if whole else None
    for number in range(whole):
        assert words is not None
        word = words[:, number] * _M
        word ^= word >> np.uint32(24)
        word *= _M
        state *= _M
        state ^= word
    rest = keys[:, 4 * whole :]
    if rest.shape[1]:
        for number in range(rest.shape[1] - 1, -1, -1):
            state ^= rest[:, number].astype(np.uint32) << np.uint32(8 * number)
        state *= _M
    state ^= state >> np.uint32(13)
    state *= _M
    state ^= state >> np.uint32(15)
    return state
