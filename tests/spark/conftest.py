"""One Spark session and one pass of the audits for the whole folder: each costs more than most tests."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strandline.snapshot.spark.audits import AuditRun, ClusterStorage, audit_storages, documents, small
from strandline.snapshot.spark.session import session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The session's start is in nobody's minute: on a busy machine it takes one by itself."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            given = item.get_closest_marker("timeout")
            item.add_marker(pytest.mark.timeout(given.args[0] if given else 240, func_only=True))


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
                # A pass of audits compiles hundreds of classes for a few rows each, a quarter of its time.
                "spark.sql.codegen.wholeStage": "false",
                "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            },
            short_jobs=True,
            archives=False,
        )
        # The first query compiles and starts Python workers, which no test should be charged with either.
        started.range(1).mapInArrow(lambda batches: batches, "id bigint").collect()
        yield started
        started.stop()


@pytest.fixture(scope="session")
def audited_storages(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, ClusterStorage]]:
    """All storages that the collected modules have, by the name of each module.

    A module that wants some audited has a function `storages`, which makes them in a folder and names them.
    """
    collected = dict.fromkeys(
        item.module for item in request.session.items if isinstance(item, pytest.Function)
    )
    return {
        module.__name__: module.storages(tmp_path_factory.mktemp("audited"))
        for module in collected
        if hasattr(module, "storages")
    }


@pytest.fixture(scope="session")
def audited(
    spark: SparkSession, audited_storages: dict[str, dict[str, ClusterStorage]]
) -> dict[str, dict[str, AuditRun]]:
    """What full audits say of all these storages, where each without a finding has a proof since."""
    every = [storage for named in audited_storages.values() for storage in named.values()]
    with pytest.MonkeyPatch.context() as patch:
        # These go through parallel tasks; smaller runs do not.
        patch.setattr(small, "SMALL_OFFSETS", 0)
        patch.setattr(documents, "LITTLE_BYTES", -1)
        runs = iter(audit_storages(spark, every, leave_proofs=True))
    return {module: {name: next(runs) for name in named} for module, named in audited_storages.items()}
