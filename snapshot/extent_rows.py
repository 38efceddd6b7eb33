"""A partition's references as numpy reads them out of a snapshot: one dtype each for all who read in bulk."""

from __future__ import annotations

from typing import Final

import numpy as np

from statemachine.aborted_transactions import ABORTED_ROW
from statemachine.extents import ROW_BYTES
from statemachine.level_one import LEVEL_ONE_ROW, UNIQUE_BYTES
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
"""A row of `statemachine.extents.ROW`: a batch in level zero, or inline."""
assert EXTENT_ROWS.itemsize == ROW_BYTES

LEVEL_ONE_ROWS: Final = np.dtype(
    [
        ("base_offset", "<i8"),
        ("end_offset", "<i8"),
        ("max_timestamp", "<i8"),
        ("size", "<i8"),
        ("index_bytes", "<u4"),
        ("term", "<i8"),
        ("unique", f"V{UNIQUE_BYTES}"),
    ]
)
"""A row of `statemachine.level_one.LEVEL_ONE_ROW`: an object in level one."""
assert LEVEL_ONE_ROWS.itemsize == LEVEL_ONE_ROW.size

ABORTED_ROWS: Final = np.dtype(
    [
        ("producer_id", "<i8"),
        ("first_offset", "<i8"),
        ("last_offset", "<i8"),
        ("stable_offset", "<i8"),
    ]
)
"""A row of `statemachine.aborted_transactions.ABORTED_ROW`: a transaction that was aborted."""
assert ABORTED_ROWS.itemsize == ABORTED_ROW.size
