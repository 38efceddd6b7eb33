"""Little is read by the driver, and what is not little by Spark's tasks; the rows are the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from strandline.snapshot.spark.audits import work
from strandline.snapshot.spark.audits.work import frame, mapped_here

SCHEMA = StructType([StructField("id", LongType()), StructField("length", LongType())])


def rows_of(item: int) -> Iterator[tuple[Any, ...]]:
    yield from ((item, 10), (item, 20))


@pytest.mark.parametrize(("here", "few", "local"), [(True, 6, True), (True, 5, False), (False, 6, False)])
def test_the_driver_works_where_the_rows_are_few(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, here: bool, few: int, local: bool
) -> None:
    monkeypatch.setattr(work, "FEW_ROWS", few)
    made = frame(spark, [1, 2, 3], rows_of, SCHEMA, here=here)
    assert made.isLocal() is local
    assert sorted(map(tuple, made.collect())) == [(n, length) for n in (1, 2, 3) for length in (10, 20)]


@pytest.mark.parametrize(
    ("few", "size", "reads", "local"),
    [(6, 90, True, True), (5, 90, True, False), (6, 89, True, False), (6, 89, False, True)],
)
def test_the_driver_maps_what_is_few_and_little_to_read(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, few: int, size: int, reads: bool, local: bool
) -> None:
    monkeypatch.setattr(work, "FEW_ROWS", few)
    monkeypatch.setattr(work, "HERE_BYTES", size)
    given = frame(spark, [3, 1, 2], rows_of, SCHEMA, here=True)

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    made = mapped_here(given, ["id", "length"], same, SCHEMA, reads=reads)
    assert (made is not None) is local
    if made is not None:
        assert [row["id"] for row in made.collect()] == [1, 1, 2, 2, 3, 3]


def test_the_driver_leaves_to_tasks_what_takes_it_long(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "HERE_SECONDS", -1.0)
    asked = []

    def counted(item: int) -> Iterator[tuple[Any, ...]]:
        asked.append(item)  # the driver's; tasks have their own list
        yield from rows_of(item)

    made = frame(spark, [1, 2, 3], counted, SCHEMA, here=True)
    assert asked == [1], "it ends at once"
    assert not made.isLocal()
    assert sorted(map(tuple, made.collect())) == [(n, length) for n in (1, 2, 3) for length in (10, 20)]
    assert mapped_here(made, ["id"], lambda batches: batches, SCHEMA, reads=False) is None


@pytest.mark.parametrize(("most", "local"), [(6, True), (5, False)])
def test_the_driver_makes_few_rows_of_an_object_of_many(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, most: int, local: bool
) -> None:
    monkeypatch.setattr(work, "HERE_ROWS", most)
    given = frame(spark, [1], rows_of, SCHEMA, here=True)

    def more(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from [batch] * 3

    assert (mapped_here(given, ["id"], more, SCHEMA, reads=False) is not None) is local
    rows = work.mapped(given, ["id"], ["id"], more, SCHEMA, small=True)
    assert (rows.isLocal(), rows.count()) == (local, 6)
