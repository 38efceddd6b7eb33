"""The session's choices that Spark would make otherwise."""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strandline.snapshot.spark import session as session_module


def test_python_workers_are_reached_by_sockets_of_the_user_alone(spark: SparkSession) -> None:
    folder = Path(spark.sparkContext.getConf().get("spark.python.unix.domain.socket.dir") or "")
    assert folder.is_absolute()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    spark.range(1).mapInArrow(lambda batches: batches, "id bigint").collect()
    assert any(stat.S_ISSOCK(entry.stat().st_mode) for entry in folder.iterdir())


def test_a_path_too_long_for_sockets_leaves_tcp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("deep" * 20)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    assert session_module._unix_sockets() == {}
    assert list(deep.iterdir()) == []
