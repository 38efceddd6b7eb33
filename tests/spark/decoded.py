"""Stored batches of a test's own, and their rows."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from strandline.snapshot.decode import COLUMNS, BatchSlice, Decoder

ALL = pa.schema(list(COLUMNS.items()))


def stored(data: bytes, base: int = 0, count: int | None = None, **other: Any) -> BatchSlice:
    number = struct.unpack_from(">i", data, 57)[0] if count is None else count
    fields: dict[str, Any] = {
        "data": data,
        "start": 0,
        "length": len(data),
        "name": "l0/some",
        "position": 16,
        "topic": "orders",
        "partition": 3,
        "base_offset": base,
        "end_offset": base + number,
        "leader_epoch": 7,
        "first": 0,
        "end": 1 << 60,
    }
    return BatchSlice(**{**fields, **other})


def rows(*batches: BatchSlice, schema: Any = ALL) -> list[dict[str, Any]]:
    return [row for found in Decoder(schema).decode(batches) for row in found.to_pylist()]
