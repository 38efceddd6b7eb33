"""Batches in memory, bounded by bytes; the least recently used go first.

A node keeps two: one for the batches it wrote, which serves consumers at the live tail without touching
storage, and one for those it fetched, so that a consumer reading old data does not empty the first.
"""

from __future__ import annotations

from collections import OrderedDict

from strandline.node.objectstore.store import Buffer

ENTRY_BYTES = 400
"""Bytes of an entry besides its batch, so that many small batches are bounded too."""


class BatchCache:
    """Batches by (object id, position). Both are immutable, so an entry is never stale, only unused."""

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 0:
            raise ValueError(f"a cache cannot have {max_bytes} bytes; 0 keeps nothing")
        self.max_bytes = max_bytes
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self.evicted = 0
        self._batches: OrderedDict[tuple[bytes, int], bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._batches)

    def __contains__(self, key: tuple[bytes, int]) -> bool:
        """Whether a batch is here; neither counts as a use nor as a miss."""
        return key in self._batches

    def get(self, object_id: bytes, position: int) -> bytes | None:
        data = self._batches.get((object_id, position))
        if data is None:
            self.misses += 1
            return None
        self.hits += 1
        self._batches.move_to_end((object_id, position))
        return data

    def put(self, object_id: bytes, position: int, data: Buffer) -> None:
        """Keep a batch. A view is copied, or it would keep alive all of the buffer it looks into."""
        cost = len(data) + ENTRY_BYTES
        key = (object_id, position)
        if cost > self.max_bytes or key in self._batches:
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
            _, oldest = self._batches.popitem(last=False)
            self.bytes -= len(oldest) + ENTRY_BYTES
            self.evicted += 1
