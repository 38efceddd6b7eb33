"""Rules that choose the records of a settled log that a round of cleaning keeps, as masks over many records.

A round maps the keys of the part that is not clean yet to their last offsets, and then reads every record
below its bound. docs/compaction.md has the rules and why they suffice.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from strandline.node.compaction.chunk import DecodedChunk
from strandline.node.compaction.key_map import KeyMap


class Ripe(NamedTuple):
    """Offsets of the state as the round began: tombstones, and markers, that lie below may go."""

    tombstones: int
    markers: int


def map_keys(chunk: DecodedChunk, keys: KeyMap, bound: int) -> int:
    """Note the last offset of each key in batches that begin below an offset; returns the round's new bound.

    It is the given one, or lower: the base offset of the first batch that might not have fitted into the map.
    """
    wanted = int(np.searchsorted(chunk.base_offset, bound))
    if not wanted:
        return bound
    high, low = keys.hash.of(chunk.records, chunk.key)
    counts = ~chunk.marker & ~chunk.key.null
    # A batch is in the map with all its keys or with none. Element i bounds the keys of the batches up to i.
    most = np.concatenate([[0], np.cumsum(counts)])[chunk.first + chunk.count]
    begin = 0
    while begin < wanted:
        before = int(most[begin - 1]) if begin else 0
        end = min(int(np.searchsorted(most, before + keys.room, "right")), wanted)
        if end <= begin:
            return int(chunk.base_offset[begin])
        records = slice(int(chunk.first[begin]), int(chunk.first[end - 1] + chunk.count[end - 1]))
        chosen = counts[records]
        keys.put(high[records][chosen], low[records][chosen], chunk.offset[records][chosen])
        begin = end
    return bound


def kept(chunk: DecodedChunk, keys: KeyMap, ripe: Ripe) -> NDArray[np.bool_]:
    """Mask of the records of a chunk that stay; every batch of the chunk begins below the round's bound.

    A marker is removed once it is ripe, and a record without a key at once. A record whose key has a later
    record in the map is superseded and removed, also if it is a tombstone. Any other tombstone is removed
    once it is ripe, and all other records stay.
    """
    high, low = keys.hash.of(chunk.records, chunk.key)
    stays: NDArray[np.bool_] = ~chunk.key.null & (keys.get(high, low) <= chunk.offset)
    stays &= ~chunk.tombstone | (chunk.offset >= ripe.tombstones)
    stays[chunk.marker] = chunk.offset[chunk.marker] >= ripe.markers
    return stays
