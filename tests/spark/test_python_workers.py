"""The Python workers of a session: how they are reached, and what they are forks of."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa  # type: ignore[import-untyped]
import pyspark.worker
from pyspark.sql import SparkSession

from strandline.snapshot.spark import fork_server


def test_python_workers_are_reached_by_sockets_of_the_user_alone(spark: SparkSession) -> None:
    folder = Path(spark.sparkContext.getConf().get("spark.python.unix.domain.socket.dir") or "")
    assert folder.is_absolute()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    spark.range(1).mapInArrow(lambda batches: batches, "id bigint").collect()
    assert any(stat.S_ISSOCK(entry.stat().st_mode) for entry in folder.iterdir())


def test_python_workers_have_pyspark_from_files_that_are_compiled_once(spark: SparkSession) -> None:
    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyspark.worker

        for _ in batches:
            compiled = getattr(pyspark.worker.__spec__, "cached", None)  # none for a module of an archive
            yield pa.RecordBatch.from_pydict({"file": [compiled], "python": [sys.executable]})

    (row,) = spark.range(0, 1, 1, 1).mapInArrow(where, "file string, python string").collect()
    assert Path(row.file).samefile(getattr(pyspark.worker.__spec__, "cached", ""))
    assert row.python == sys.executable == os.environ["PYSPARK_PYTHON"]


def test_python_processes_are_forks_of_one_that_has_the_modules(spark: SparkSession) -> None:
    def daemon(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"daemon": [os.getppid()]})

    (row,) = spark.range(0, 1, 1, 1).mapInArrow(daemon, "daemon bigint").collect()
    server = psutil.Process(row.daemon).parent()
    assert server is not None
    assert fork_server.__name__ in server.cmdline()
    assert server.ppid() == os.getpid()
