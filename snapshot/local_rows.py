"""The rows of a local document as numpy sees them; apart from it, so that a node starts without numpy."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from strandline.snapshot.local_document import KEY_BYTES, ROW_BYTES, LocalDocument

LOCAL_ROWS: Final = np.dtype([("key", f"V{KEY_BYTES}"), ("offset", "<i8"), ("tombstone", "?")])
"""A record: the hash of its key, its offset, and whether it deletes its key."""
assert LOCAL_ROWS.itemsize == ROW_BYTES


def rows_of(document: LocalDocument) -> NDArray[np.void]:
    """Its rows, as LOCAL_ROWS."""
    rows: NDArray[np.void] = np.frombuffer(document.rows, LOCAL_ROWS)
    return rows
