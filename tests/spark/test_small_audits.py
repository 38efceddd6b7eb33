"""What Spark is told where there is little to audit, and that the session has its own settings after it."""

from __future__ import annotations

from contextlib import suppress

import pytest
from pyspark.sql import SparkSession

from strandline.snapshot.spark.audits.small import _SETTINGS, SMALL_OFFSETS, is_small, narrow, settings


def row(root: int, group: int, end: int | None) -> dict[str, int | None]:
    return {"root": root, "group": group, "next_offset": end}


def test_it_is_small_by_the_newest_ends_of_all_partitions() -> None:
    half = SMALL_OFFSETS // 2
    assert is_small([])
    assert is_small([row(0, 0, None), row(0, 1, half), row(0, 1, half), row(0, 1, 5), row(0, 2, half)])
    assert not is_small([row(0, 1, half), row(0, 2, half + 1)])
    assert not is_small([row(0, 1, half), row(1, 1, half + 1)])


@pytest.mark.parametrize("small", [True, False])
def test_a_session_has_its_own_settings_after_it(spark: SparkSession, small: bool) -> None:
    own = spark.newSession()  # the settings of the one that tests share stay as they are

    def now() -> dict[str, str | None]:
        return {name: own.conf.get(name, None) for name in _SETTINGS}

    own.conf.set("spark.sql.shuffle.partitions", "7")
    before = now()
    with suppress(KeyError), settings(own, small):
        assert (now() == _SETTINGS) is small
        raise KeyError
    assert now() == before
    frame = narrow(own.range(0, 6, 1, 3), small)
    assert frame.rdd.getNumPartitions() == (1 if small else 3)
