"""A partition's references as numpy reads them from a snapshot: one dtype each for all bulk readers."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from strandline.statemachine.object_names import OBJECT_ID_BYTES
from strandline.statemachine.partition.aborted_transactions import chunk_places
from strandline.statemachine.partition.extent import ROW_BYTES
from strandline.statemachine.partition.level_one import LEVEL_ONE_ROW, UNIQUE_BYTES

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
"""A row of `strandline.statemachine.partition.extent.ROW`: a batch in level zero, or inline."""
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
"""A row of `strandline.statemachine.partition.level_one.LEVEL_ONE_ROW`: an object in level one."""
assert LEVEL_ONE_ROWS.itemsize == LEVEL_ONE_ROW.size

ABORTED_ROWS: Final = np.dtype(
    [
        ("producer_id", "<i8"),
        ("first_offset", "<i8"),
        ("last_offset", "<i8"),
    ]
)
"""A transaction that was aborted; see `aborted_transactions.AbortedTransaction`."""


def aborted_rows(packed: bytes) -> np.ndarray[Any, Any]:
    """The rows of a state's aborted transactions; raises ValueError for what `packed` cannot have given."""
    places = list(chunk_places(packed))
    rows = np.empty(sum(place.rows for _, place in places), ABORTED_ROWS)
    at = 0
    for _, place in places:
        markers, spans, producers = (
            np.frombuffer(packed, f"<u{width}", place.rows, begin).astype(np.int64)
            for begin, width in place.columns
        )
        part = rows[at : at + place.rows]
        part["last_offset"] = markers + place.first_marker
        part["first_offset"] = part["last_offset"] - spans
        part["producer_id"] = producers + place.lowest_producer
        at += place.rows
    return rows
