"""A partition's extents as numpy reads them out of a snapshot: one dtype for all who read in bulk."""

from __future__ import annotations

from typing import Final

import numpy as np

from statemachine.extents import ROW_BYTES
from statemachine.object_names import OBJECT_ID_BYTES

EXTENT_ROWS: Final = np.dtype(
    [
        ("kind", "u1"),
        ("base_offset", "<i8"),
        ("record_count", "<u4"),
        ("term", "<i8"),
        ("max_timestamp", "<i8"),
        ("length", "<u4"),
        ("epoch", "<i8"),
        ("position", "<i8"),
        ("object_id", f"V{OBJECT_ID_BYTES}"),
    ]
)
"""A row of `statemachine.extents.ROW`."""
assert EXTENT_ROWS.itemsize == ROW_BYTES
