"""One Spark session for the whole folder: its start costs more than most of the tests."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strandline.snapshot.spark.session import session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The session's start is in nobody's minute: on a busy machine it takes one by itself."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            given = item.get_closest_marker("timeout")
            item.add_marker(pytest.mark.timeout(given.args[0] if given else 60, func_only=True))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder: Path = tmp_path_factory.mktemp("spark")
    with warnings.catch_warnings():
        # py4j and pyspark leave sockets to the collector, at times that are not ours.
        warnings.simplefilter("ignore", ResourceWarning)
        started = session(
            "tests",
            "local[2]",
            {
                "spark.driver.memory": "512m",
                "spark.local.dir": str(folder),
                "spark.sql.warehouse.dir": str(folder / "warehouse"),
                "spark.sql.shuffle.partitions": "2",
            },
            short_jobs=True,
        )
        # The first query compiles and starts Python workers, which no test should be charged with either.
        started.range(1).mapInArrow(lambda batches: batches, "id bigint").collect()
        yield started
        started.stop()
