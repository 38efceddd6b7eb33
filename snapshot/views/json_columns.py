"""JSON objects as columns, many at once: the short way for records that are plain.

Arrow's reader is some ten times as fast as Python's, and not as strict. So records go by it only where it
cannot differ: what it takes is then what `json_records` would take, with the same values. Of all else it says
nothing, and `json_records` reads the records one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyarrow import json as arrow_json

from strandline.statemachine.views.types import Type

_KINDS: Final = {
    Type.BOOLEAN: pa.bool_(),
    Type.INT: pa.int32(),
    Type.BIGINT: pa.int64(),
    Type.DOUBLE: pa.float64(),
    Type.STRING: pa.string(),
}
"""Types that both readers read alike. Dates and times have more ways to be written."""
PLAIN_BYTES: Final = 4000
"""Python refuses numbers of more than 4,300 digits, wherever they stand."""
FLAT_BYTES: Final = 400
"""A record of no more bytes has fewer than 200 arrays and objects in each other."""

_FIRST, _LAST = b"{}"
_NO_JSON: Final = ("NaN", "Inf")
"""Arrow takes these for numbers in fields that are not looked at."""


def readable(kinds: Sequence[Type]) -> bool:
    """Whether columns of some types can be read so; there must be one."""
    return bool(kinds) and all(kind in _KINDS for kind in kinds)


def columns(
    names: Sequence[str], kinds: Sequence[Type], values: Any, most_nested: int
) -> list[pl.Series] | None:
    """Give the columns of objects, an Arrow array of bytes; None where they are to be read one by one."""
    if not len(values) or values.null_count:
        return None
    _, places, content = values.buffers()
    edges = np.frombuffer(places, np.int32)[values.offset : values.offset + len(values) + 1]
    lengths = np.diff(edges)
    if lengths.min() < 2 or lengths.max() > PLAIN_BYTES:
        return None
    letters = np.frombuffer(content, np.uint8)
    if (letters[edges[:-1]] != _FIRST).any() or (letters[edges[1:] - 1] != _LAST).any():
        return None
    if lengths.max() > FLAT_BYTES:
        long = values.filter(pa.array(lengths > FLAT_BYTES)).to_pylist()
        if any(one.count(b"[") + one.count(b"{") > most_nested for one in long):
            return None
    lists = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    text = pc.binary_join(lists, b"\n")[0].as_buffer()
    schema = pa.schema([(name, _KINDS[kind]) for name, kind in zip(names, kinds, strict=True)])
    try:
        whole = str(text, "utf-8")
        # A single letter is looked for much faster than three, and is most often nowhere.
        if any(word[0] in whole and word in whole for word in _NO_JSON):
            return None
        table = arrow_json.read_json(
            pa.BufferReader(text),
            arrow_json.ReadOptions(use_threads=False, block_size=text.size + 1),
            arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except (pa.ArrowException, UnicodeDecodeError):
        return None
    # Each value begins and ends an object, and no string goes over a line's end: so many rows are one each.
    if table.num_rows != len(values):
        return None
    found = [pl.Series(name, table.column(name)) for name in names]
    return found if all(map(_finite, found)) else None


def _finite(column: pl.Series) -> bool:
    return column.dtype != pl.Float64 or bool(np.isfinite(column.drop_nulls().to_numpy()).all())
