"""Changes of a view as records: keys are JSON arrays, values JSON objects, rows that are gone tombstones.

The text of each column is made at once, and put together by polars: a row at a time takes much longer. It is
what `json.dumps` makes, to the byte: a key that is written in another way is another key.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any, Final

import polars as pl

from strandline.snapshot.views.sink import Changes
from strandline.statemachine.views.plan import Sink

_ESCAPED: Final = r'["\\\x00-\x1f]'
"""Characters that do not stand for themselves in JSON."""


def columns(sink: Sink, changes: Changes) -> tuple[Any, Any]:
    """Give keys and values of the records, as Arrow arrays of large binaries.

    The value is null for a key that has no row any more.
    """
    rows, removed = changes.rows.height, changes.removed.height
    texts = [_texts(column) for column in changes.rows.get_columns()]
    named = [f"{_json(name)}:" for name in sink.names]
    keys = _joined("[", [""] * len(sink.key), [texts[at] for at in sink.key], "]", rows)
    values = _joined("{", named, texts, "}", rows)
    if removed:
        # Without a key there is no more than one row; `removed` has a column that stands for it.
        gone = [_texts(column) for column in changes.removed.get_columns()[: len(sink.key)]]
        keys = pl.concat([keys, _joined("[", [""] * len(gone), gone, "]", removed)])
        values = pl.concat([values, pl.repeat(None, removed, dtype=pl.Binary, eager=True)])
    return _arrow(keys), _arrow(values)


def _arrow(column: pl.Series) -> Any:
    return column.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())


def _joined(
    first: str, before: Sequence[str], texts: Sequence[pl.Series], last: str, count: int
) -> pl.Series:
    """Put the columns' texts together, row by row, with commas between."""
    if not texts:
        return pl.repeat(f"{first}{last}".encode(), count, dtype=pl.Binary, eager=True)
    parts: list[pl.Expr] = []
    for number, (name, text) in enumerate(zip(before, texts, strict=True)):
        parts += [pl.lit(f"{',' if number else first}{name}"), pl.lit(text)]
    return pl.select(pl.concat_str([*parts, pl.lit(last)]).cast(pl.Binary)).to_series()


def _texts(column: pl.Series) -> pl.Series:
    """Each value of a column as JSON."""
    if column.dtype in (pl.Int32, pl.Int64):
        texts = column.cast(pl.String)
    elif column.dtype == pl.Boolean:
        texts = pl.select(pl.when(column).then(pl.lit("true")).otherwise(pl.lit("false"))).to_series()
        texts = texts.set(column.is_null(), None) if column.null_count() else texts
    elif column.dtype == pl.String and not column.str.contains(_ESCAPED).any():
        texts = pl.select(pl.concat_str([pl.lit('"'), pl.lit(column), pl.lit('"')])).to_series()
    else:
        texts = pl.Series([None if one is None else _json(_plain(one)) for one in column], dtype=pl.String)
    return texts.fill_null("null")


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    """A value as JSON has it; numbers that JSON lacks as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    return value
