"""Records of a topic as rows of a table: JSON objects, read strictly.

Whether a record can be read is a function of its bytes alone, so every process that reads it agrees. A field
that is missing is null, one that the table does not have is not looked at.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]

from strandline.snapshot.views import json_columns
from strandline.snapshot.views.errors import ViewError
from strandline.snapshot.views.evaluate import DTYPES, has_dates
from strandline.snapshot.views.zset import ZSet, canonical, frame, zset
from strandline.statemachine.views.plan import Positions, Source
from strandline.statemachine.views.types import Type

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""DOUBLE values that JSON has no numbers for, as views write them."""
MOST_NESTED: Final = 200
"""Arrays and objects in each other. Where Python's reader gives up depends on what has called it, and another
process could read what the first one has skipped; so few it always reads."""
_BRACKET: Final = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)
"""A string that does not end is one to the end of the text: looked for from each of its quotes, 16 kB took
longer than seconds."""
RECORDS: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
"""Of an Arrow batch of records. The offsets of a partition grow."""
META: Final = ("_partition", "_offset", "_timestamp")
_NO_ROW: Final = (ValueError, OverflowError, RecursionError)


class Record(NamedTuple):
    """A record; its time is in ms since 1970."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


class BadRecord(ViewError):
    """A record cannot be read as a row of its table; `str()` says which, and why."""


class RecordReader:
    """Reads the records of one table. Counts those that it skips, where the table says so."""

    def __init__(self, source: Source, key: Positions | None) -> None:
        """`key` has the positions of the primary key of a table whose mode is `upsert`."""
        self._source = source
        self._key = key
        self._schema = tuple(DTYPES[kind] for _, kind in source.columns)
        self._read = [(name, kind) for name, kind in source.columns if key is not None or name not in META]
        """The columns that a record's value has."""
        self._skip = source.skips
        self.skipped = 0

    def rows(self, records: Any) -> ZSet:
        """Rows in the order of the records (RECORDS), a deletion with weight -1; raises BadRecord."""
        plain = self._plain(records)
        return self._one_by_one(records_of(records)) if plain is None else plain

    def are_rows(self, records: Any) -> list[bool]:
        """Tell of each record (RECORDS) whether it is a row, or the deletion of one."""
        return [self._is_row(record) for record in records_of(records)]

    def _is_row(self, record: Record) -> bool:
        try:
            self._row(record)
        except _NO_ROW:
            return False
        return True

    def _plain(self, records: Any) -> ZSet | None:
        """The rows by the short way (`json_columns.py`); None where that does not do."""
        names = [name for name, _ in self._read]
        kinds = [kind for _, kind in self._read]
        values = records.column("value")
        if not json_columns.readable(kinds):
            return None
        gone = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
        if self._key is not None and gone is not None:
            values = values.fill_null(b"{}")
        read = json_columns.columns(names, kinds, values, MOST_NESTED)
        if read is None:
            return None
        found = dict(zip(names, read, strict=True))
        weights = np.ones(len(values), np.int64)
        if self._key is not None:
            try:
                keys = [self._key_values(key) for key in records.column("key").to_pylist()]
            except (ValueError, OverflowError, RecursionError):
                return None
            for number, position in enumerate(self._key):
                name, kind = self._source.columns[position]
                found[name] = pl.Series([key[number] for key in keys], dtype=DTYPES[kind])
            if gone is not None:
                weights[gone] = -1
        for name, kind in self._source.columns:
            if name not in found:
                column = records.column(name[1:])
                if name == "_timestamp" and not has_dates(pl.Series(column.cast(pa.int64()))):
                    return None
                found[name] = pl.Series(column).cast(DTYPES[kind])
        rows = frame([found[name] for name, _ in self._source.columns])
        return canonical(ZSet(rows, weights))

    def _one_by_one(self, records: Sequence[Record]) -> ZSet:
        rows: list[Sequence[Any]] = []
        weights: list[int] = []
        for record in records:
            try:
                row, weight = self._row(record)
            except _NO_ROW as error:
                if self._skip:
                    self.skipped += 1
                    continue
                place = f"record {record.offset} of {self._source.topic}-{record.partition}"
                raise BadRecord(
                    f"{place} cannot be read: {error}: give the table on_error 'skip', or the types that its "
                    "records have, and apply the program again"
                ) from None
            rows.append(row)
            weights.append(weight)
        return zset(self._schema, rows, weights)

    def _row(self, record: Record) -> tuple[list[Any], int]:
        if self._key is None:
            if record.value is None:
                raise ValueError("it has no value")
            return self._columns(_object(record.value), record), 1
        row: list[Any] = [None] * len(self._source.columns)
        if record.value is not None:
            row = self._columns(_object(record.value), record)
        for position, value in zip(self._key, self._key_values(record.key), strict=True):
            row[position] = value
        return row, -1 if record.value is None else 1

    def _columns(self, value: dict[str, Any], record: Record) -> list[Any]:
        row = []
        for name, kind in self._source.columns:
            if self._key is None and name in META:
                row.append(_meta(name, record))
                continue
            found = value.get(name)
            try:
                row.append(None if found is None else _READERS[kind](found))
            except (ValueError, OverflowError) as error:
                raise ValueError(f"column {name}: {error}") from None
        return row

    def _key_values(self, key: bytes | None) -> list[Any]:
        assert self._key is not None
        if key is None:
            raise ValueError("it has no key, which is the table's primary key")
        kinds = [self._source.columns[position][1] for position in self._key]
        text = key.decode()
        # A view writes its keys as arrays. A producer's key of one column is most often the value itself.
        if text.startswith("["):
            values = _json(text)
        elif kinds == [Type.STRING]:
            values = [text]
        else:
            values = [_json(text)]
        if not isinstance(values, list) or len(values) != len(kinds):
            raise ValueError(f"its key does not have the {len(kinds)} columns of the primary key")
        if any(value is None for value in values):
            raise ValueError("its key has a null")
        return [_READERS[kind](value) for kind, value in zip(kinds, values, strict=True)]


def records_of(records: Any) -> list[Record]:
    """Records of an Arrow batch (RECORDS), one by one."""
    times = records.column("timestamp").cast(pa.int64()).to_numpy() // 1000
    columns = [records.column(name).to_pylist() for name in ("partition", "offset", "key", "value")]
    partitions, offsets, keys, values = columns
    return [*map(Record._make, zip(partitions, offsets, times.tolist(), keys, values, strict=True))]


def batch_of(records: Iterable[Record]) -> Any:
    """Make the Arrow batch (RECORDS) of some records."""
    rows = [*records]
    columns = [
        [one.partition for one in rows],
        [one.offset for one in rows],
        [one.timestamp_ms * 1000 for one in rows],
        [one.key for one in rows],
        [one.value for one in rows],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, RECORDS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORDS)


def _object(value: bytes) -> dict[str, Any]:
    found = _json(value.decode())
    if not isinstance(found, dict):
        raise ValueError("its value is not a JSON object")
    return found


def _json(text: str) -> Any:
    if text.count("[") + text.count("{") > MOST_NESTED and _levels(text) > MOST_NESTED:
        raise ValueError(f"it has more than {MOST_NESTED} arrays and objects in each other")
    try:
        return json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from None


def _levels(text: str) -> int:
    """The most arrays and objects that are open at once."""
    most = level = 0
    for found in _BRACKET.finditer(text):
        if found[0] in "[{":
            level += 1
            most = max(most, level)
        elif found[0] in "]}":
            level -= 1
    return most


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _meta(name: str, record: Record) -> Any:
    if name == "_partition":
        return record.partition
    if name == "_offset":
        return record.offset
    return _EPOCH + timedelta(milliseconds=record.timestamp_ms)


def _whole(bits: int) -> Callable[[Any], int]:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def read(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"{_shown(value)} is not a whole number of {bits} bits")
        return value

    return read


def _double(value: Any) -> float:
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if type(value) not in (int, float) or not math.isfinite(float(value)):
        raise ValueError(f"{_shown(value)} is not a DOUBLE")
    return float(value)


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{_shown(value)} is neither true nor false")
    return value


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{_shown(value)} is not text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("half a character stands alone in it") from None
    return value


def _date(value: Any) -> date:
    return date.fromisoformat(_string(value))


def _timestamp(value: Any) -> datetime:
    found = datetime.fromisoformat(_string(value))
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _shown(value: Any) -> str:
    return repr(value)[:60]


_READERS: Final[dict[Type, Callable[[Any], Any]]] = {
    Type.BOOLEAN: _boolean,
    Type.INT: _whole(32),
    Type.BIGINT: _whole(64),
    Type.DOUBLE: _double,
    Type.STRING: _string,
    Type.DATE: _date,
    Type.TIMESTAMP: _timestamp,
}
