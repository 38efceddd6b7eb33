"""Changes of a view as records: keys are JSON arrays, values JSON objects, rows that are gone tombstones."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import date, datetime
from typing import Any

from strandline.snapshot.views.sink import Changes
from strandline.statemachine.views.plan import Sink


def records(sink: Sink, changes: Changes) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield key and value of each record; the value None for a key that has no row any more."""
    for row in changes.rows.iter_rows():
        values = [_plain(value) for value in row]
        value = dict(zip(sink.names, values, strict=True))
        yield _json([values[position] for position in sink.key]), _json(value)
    for row in changes.removed.iter_rows():
        yield _json([_plain(value) for value in row]), None


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _plain(value: Any) -> Any:
    """A value as JSON has it; numbers that JSON lacks as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    return value
