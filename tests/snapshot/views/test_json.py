"""Records as rows, and rows as records: what is written is read back, and what is no row is refused."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.snapshot.views.evaluate import DTYPES
from strandline.snapshot.views.json_records import BadRecord, Record, RecordReader, batch_of
from strandline.snapshot.views.sink import Changes
from strandline.snapshot.views.zset import chosen, zset
from strandline.statemachine.views.plan import Sink
from strandline.statemachine.views.types import Type
from tests.snapshot.views.json_values import COLUMNS, VALUES, record, records, source

ROWS = st.tuples(*(VALUES[kind] for kind in Type))


def same(left: Any, right: Any) -> bool:
    return left == right or (isinstance(left, float) and math.isnan(left) and math.isnan(right))


@settings(deadline=None)  # the first call imports much
@given(st.lists(ROWS, min_size=1, max_size=4))
def test_what_a_view_writes_a_table_of_the_same_columns_reads(rows: list[tuple[Any, ...]]) -> None:
    table = source(*COLUMNS, mode="upsert")
    everything = tuple(range(len(COLUMNS)))
    sink = Sink(table, tuple(name for name, _ in COLUMNS), everything, 1)
    frame = zset(tuple(DTYPES[kind] for kind in Type), rows).rows
    written = records(sink, Changes(frame, frame.clear()))
    read = RecordReader(table, everything).rows(batch_of([Record(0, 0, 0, *one) for one in written]))
    assert list(read.weights) == [1] * len(rows)
    for found, row in zip(read.rows.iter_rows(), frame.iter_rows(), strict=True):
        assert all(map(same, found, row))
    gone = records(sink, Changes(frame.clear(), chosen(frame, everything)))
    assert [value for _, value in gone] == [None] * len(rows)
    assert [key for key, _ in gone] == [key for key, _ in written]


def test_missing_is_null_surplus_is_ignored_and_the_place_is_known() -> None:
    table = source(
        ("a", Type.INT), ("_partition", Type.INT), ("_offset", Type.BIGINT), ("_timestamp", Type.TIMESTAMP)
    )
    read = RecordReader(table, None).rows(batch_of([record({"b": 1}), record({"a": 5, "b": []}, offset=8)]))
    moment = datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)
    assert read.rows.rows() == [(None, 1, 7, moment), (5, 1, 8, moment)]


def test_a_key_decides_and_a_tombstone_deletes() -> None:
    table = source(("id", Type.STRING), ("n", Type.INT), mode="upsert")
    log = [
        record({"id": "other", "n": 1}, b"plain"),
        record({"n": 2}, ["in an array"]),
        record(None, b"plain"),
    ]
    read = RecordReader(table, (0,)).rows(batch_of(log))
    assert read.rows.rows() == [("plain", 1), ("in an array", 2), ("plain", None)]
    assert read.weights.tolist() == [1, 1, -1]
    pair = source(("a", Type.INT), ("b", Type.DATE), mode="upsert")
    [row] = RecordReader(pair, (0, 1)).rows(batch_of([record(None, [3, "2024-02-29"])])).rows.rows()
    assert row == (3, date(2024, 2, 29))


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        (Type.INT, 2**31, "not a whole number of 32 bits"),
        (Type.INT, 1.0, "not a whole number"),
        (Type.INT, True, "not a whole number"),
        (Type.INT, "1", "not a whole number"),
        (Type.BIGINT, 2**63, "not a whole number of 64 bits"),
        (Type.DOUBLE, "1.5", "is not a DOUBLE"),
        (Type.DOUBLE, True, "is not a DOUBLE"),
        (Type.DOUBLE, 10**400, "too large"),
        (Type.BOOLEAN, 1, "neither true nor false"),
        (Type.STRING, 1, "is not text"),
        (Type.STRING, "\ud800", "half a character"),
        (Type.DATE, "2023-02-30", "day is out of range"),
        (Type.TIMESTAMP, "yesterday", "Invalid isoformat"),
    ],
)
def test_a_value_outside_its_type_is_a_bad_record(kind: Type, value: Any, why: str) -> None:
    with pytest.raises(BadRecord, match=f"record 7 of t-1 cannot be read: column a: .*{why}"):
        RecordReader(source(("a", kind)), None).rows(batch_of([record({"a": value})]))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "it has no value"),
        (b"", "it is not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": 1e999}', "is not a DOUBLE"),
        (b"\xff", "can't decode byte"),
        (b"[" * 100_000, "more than 200 arrays and objects in each other"),
        pytest.param(
            b"[" * 201 + b'"' + b'\\"' * 500_000,
            "more than 200 arrays and objects in each other",
            id="a long string without an end",
        ),
    ],
)
def test_bytes_that_are_no_row_are_a_bad_record_or_skipped(value: bytes | None, why: str) -> None:
    with pytest.raises(BadRecord, match=why):
        RecordReader(source(("a", Type.DOUBLE)), None).rows(batch_of([record(value)]))
    reader = RecordReader(source(("a", Type.DOUBLE), skip=True), None)
    assert reader.rows(batch_of([record(value), record({"a": 2})])).rows.rows() == [(2.0,)]
    assert reader.skipped == 1


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (None, "it has no key"),
        (["a", "b"], "does not have the 1 columns"),
        ([None], "its key has a null"),
        ([1], "is not text"),
        (b"[", "it is not JSON"),
        (b"\xff", "can't decode byte"),
    ],
)
def test_a_key_that_is_no_primary_key_is_a_bad_record(key: Any, why: str) -> None:
    table = source(("id", Type.STRING), mode="upsert")
    with pytest.raises(BadRecord, match=why):
        RecordReader(table, (0,)).rows(batch_of([record({}, key)]))


def test_nothing_is_no_rows() -> None:
    assert np.array_equal(
        RecordReader(source(("a", Type.INT)), None).rows(batch_of([])).weights, np.empty(0, np.int64)
    )


def test_what_is_read_of_a_deep_value_does_not_depend_on_what_calls_the_reader() -> None:
    def of(levels: int, calls: int) -> int:
        if calls:
            return of(levels, calls - 1)
        reader = RecordReader(source(("a", Type.STRING), skip=True), None)
        value = b'{"a":"x","deep":' + b"[" * levels + b"]" * levels + b"}"
        return len(reader.rows(batch_of([Record(0, 7, 1000, None, value)])).weights)

    for levels, taken in (
        (150, 1),
        (199, 1),
        (200, 0),
        (700, 0),
        (900, 0),
        (960, 0),
        (1000, 0),
        (100_000, 0),
    ):
        assert {of(levels, calls) for calls in (0, 30, 60)} == {taken}, levels
    wide = json.dumps({"a": "[{" * 500 + '"\\', "many": [[], {}] * 500}).encode()
    reader = RecordReader(source(("a", Type.STRING)), None)
    assert len(reader.rows(batch_of([Record(0, 7, 1000, None, wide)])).weights) == 1, (
        "no more than three are open"
    )
