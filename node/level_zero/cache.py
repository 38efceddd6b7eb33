"""Batches in memory, bounded by bytes; the least recently used go first.

A node keeps two: one for the batches it wrote, which serves consumers at the live tail without touching
storage, and one for those it fetched, so that a consumer reading old data does not empty the first.
"""

from __future__ import annotations

from collections import OrderedDict

from strandline.node.objectstore.store import Buffer

ENTRY_BYTES = 400
"""Bytes of an entry besides its batch, so that many small batches are bounded too."""
MAX_GONE = 4096
"""Objects of which a cache remembers that it would hold them if it were as large as at first: about 1 MB."""


class BatchCache:
    """Batches by (object id, position). Both are immutable, so an entry is never stale, only unused."""

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 0:
            raise ValueError(f"a cache cannot have {max_bytes} bytes; 0 keeps nothing")
        self.max_bytes = max_bytes
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self.missed_for_size = 0
        """Misses of batches that the cache would have if it had not been made smaller."""
        self.evicted = 0
        self._most_bytes = max_bytes
        self._batches: OrderedDict[tuple[bytes, int], bytes] = OrderedDict()
        self._gone: OrderedDict[bytes, int] = OrderedDict()
        """By object: the bytes of its batches that were not kept, or were evicted. The oldest come first."""
        self._gone_bytes = 0

    def __len__(self) -> int:
        return len(self._batches)

    def __contains__(self, key: tuple[bytes, int]) -> bool:
        """Whether a batch is here; neither counts as a use nor as a miss."""
        return key in self._batches

    def get(self, object_id: bytes, position: int) -> bytes | None:
        data = self._batches.get((object_id, position))
        if data is None:
            self.misses += 1
            self.missed_for_size += object_id in self._gone
            return None
        self.hits += 1
        self._batches.move_to_end((object_id, position))
        return data

    def put(self, object_id: bytes, position: int, data: Buffer) -> None:
        """Keep a batch. A view is copied, or it would keep alive all of the buffer it looks into."""
        cost = len(data) + ENTRY_BYTES
        key = (object_id, position)
        if key in self._batches:
            return
        if cost > self.max_bytes:
            self._remember(object_id, cost)
            return
        self._batches[key] = bytes(data)
        self.bytes += cost
        self._evict()

    def resize(self, max_bytes: int) -> None:
        """Hold so much at most from now on; what is above is evicted."""
        self.max_bytes = max_bytes
        self._evict()

    def _evict(self) -> None:
        while self.bytes > self.max_bytes:
            (object_id, _), oldest = self._batches.popitem(last=False)
            cost = len(oldest) + ENTRY_BYTES
            self.bytes -= cost
            self.evicted += 1
            self._remember(object_id, cost)
        self._forget()

    def _remember(self, object_id: bytes, cost: int) -> None:
        if cost > self._most_bytes:
            return
        self._gone[object_id] = self._gone.pop(object_id, 0) + cost
        self._gone_bytes += cost
        self._forget()

    def _forget(self) -> None:
        """Drop what even a cache of its first size would not hold. One of that size remembers nothing."""
        while self._gone and (len(self._gone) > MAX_GONE or self.bytes + self._gone_bytes > self._most_bytes):
            _, cost = self._gone.popitem(last=False)
            self._gone_bytes -= cost
