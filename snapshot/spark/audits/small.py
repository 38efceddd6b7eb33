"""Settings of Spark for an audit of little, where they are better than those for much.

Some thousand rows go through hundreds of stages. Compiling each stage to Java takes longer than its rows take
without, and each task costs more than its rows: on a small cluster both were most of an audit's processor
time. Where there is more, compiled stages and parallel tasks win.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

SMALL_OFFSETS: Final = 200_000
"""Offsets of all partitions of all storages together, so at most as many batches. Without compilation an
audit takes some microseconds for each row, which is a few seconds for these."""
_SETTINGS: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
}


def is_small(states: Iterable[Any]) -> bool:
    """Whether these rows of documents tell of little; `next_offset` is null where there is none."""
    ends: dict[tuple[int, int], int] = {}
    for state in states:
        group = state["root"], state["group"]
        ends[group] = max(ends.get(group, 0), state["next_offset"] or 0)
    return sum(ends.values()) <= SMALL_OFFSETS


def narrow(frame: DataFrame, small: bool) -> DataFrame:
    """The same rows, in one task if there are few."""
    return frame.coalesce(1) if small else frame


@contextmanager
def settings(spark: SparkSession, small: bool) -> Iterator[None]:
    """Plan what is asked meanwhile for few rows; the session's own settings come back."""
    before = {name: spark.conf.get(name, None) for name in _SETTINGS}
    try:
        for name, value in _SETTINGS.items() if small else ():
            spark.conf.set(name, value)
        yield
    finally:
        for name, kept in before.items() if small else ():
            if kept is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, kept)
