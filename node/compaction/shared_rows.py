"""The records of some keys in batches of a settled log, for a replica's local document."""

from __future__ import annotations

import numpy as np

from strandline.node.compaction.chunk import chunks
from strandline.snapshot.local_document import bound, key_hash
from strandline.snapshot.local_rows import LOCAL_ROWS


def shared_rows(data: bytes, share_bits: int) -> bytes:
    """Rows of LOCAL_ROWS, in the order of the records, of those keys that are in the share.

    Every key is hashed, about a microsecond each. Raises BadBatch.
    """
    limit = bound(share_bits)
    rows: list[tuple[bytes, int, bool]] = []
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
            if hashed < limit:
                rows.append((hashed, offset, tombstone))
    return np.array(rows, LOCAL_ROWS).tobytes()
