"""Records of tables with a column of each type, and values for them."""

from __future__ import annotations

import json
from datetime import UTC
from typing import Any

from hypothesis import strategies as st

from strandline.snapshot.views import json_rows
from strandline.snapshot.views.json_records import Record
from strandline.snapshot.views.sink import Changes
from strandline.statemachine.views.plan import Sink, Source
from strandline.statemachine.views.types import Type

COLUMNS = tuple((kind.value.lower(), kind) for kind in Type)
OPTIONS = (("format", "json"), ("from", "earliest"), ("on_error", "stop"))
VALUES = {
    Type.BOOLEAN: st.booleans(),
    Type.INT: st.integers(-(2**31), 2**31 - 1),
    Type.BIGINT: st.integers(-(2**63), 2**63 - 1),
    Type.DOUBLE: st.floats(),
    Type.STRING: st.text(),
    Type.DATE: st.dates(),
    Type.TIMESTAMP: st.datetimes(timezones=st.just(UTC)),
}


def source(*columns: tuple[str, Type], mode: str = "append", skip: bool = False) -> Source:
    options = tuple((name, "skip" if name == "on_error" and skip else value) for name, value in OPTIONS)
    return Source("t", mode, options, columns)


def records(sink: Sink, changes: Changes) -> list[tuple[bytes, bytes | None]]:
    """Key and value of each record that a view writes."""
    keys, values = json_rows.columns(sink, changes)
    return [*zip(keys.to_pylist(), values.to_pylist(), strict=True)]


def record(value: Any, key: Any = None, offset: int = 7) -> Record:
    def encoded(one: Any) -> bytes | None:
        return one if one is None or isinstance(one, bytes) else json.dumps(one).encode()

    return Record(1, offset, 1_700_000_000_123, encoded(key), encoded(value))
