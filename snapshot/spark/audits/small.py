"""Settings of Spark for audits of little and of much.

Some thousand rows go through hundreds of stages. Compiling each stage to Java takes longer than its rows take
without, and each task costs more than its rows: on a small cluster both were most of an audit's processor
time. Where there is more, compiled stages and parallel tasks win, and no side of a join is sent to all tasks
but by a hint: Spark takes what Python makes of a few numbers for as small as the numbers, so the driver
collected the rows of all batches, until a task had no room for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

SMALL_OFFSETS: Final = 200_000
"""Offsets of all partitions of all storages together, so at most as many batches. Without compilation an
audit takes some microseconds for each row, which is a few seconds for these."""
FEW_ROWS: Final = 2_000
"""Most rows of a frame that the driver takes: they are sent with each task that asks for them."""
_LITTLE: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
}
_MUCH: Final = {"spark.sql.autoBroadcastJoinThreshold": "-1"}


def is_small(states: Iterable[Any]) -> bool:
    """Whether these rows of documents tell of little; `next_offset` is null where there is none."""
    ends: dict[tuple[int, int], int] = {}
    for state in states:
        group = state["root"], state["group"]
        ends[group] = max(ends.get(group, 0), state["next_offset"] or 0)
    return sum(ends.values()) <= SMALL_OFFSETS


def held(frame: DataFrame, small: bool) -> DataFrame:
    """The same rows, worked out once: on the driver if they are few, else kept by Spark.

    A query of rows that the driver has is planned with them. What asks for rows where there are none costs
    no job, and no plan of it is left: that is most of an audit of little.
    """
    if frame.isLocal():
        return frame
    kept = frame.cache()
    if not small:
        return kept
    first = kept.limit(FEW_ROWS + 1).toArrow()
    if first.num_rows > FEW_ROWS:
        return kept.coalesce(1)
    kept.unpersist()
    return frame.sparkSession.createDataFrame(first, frame.schema)


@contextmanager
def settings(spark: SparkSession, small: bool) -> Iterator[None]:
    """Plan what is asked meanwhile for few rows, or for many; the session's own settings come back."""
    ours = _LITTLE if small else _MUCH
    before = {name: spark.conf.get(name, None) for name in ours}
    try:
        for name, value in ours.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, kept in before.items():
            if kept is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, kept)
