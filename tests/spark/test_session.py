"""The session's choices that Spark would make otherwise."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strandline.snapshot.spark import session as session_module
from strandline.snapshot.spark.class_archive import java_command


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


def test_a_java_that_does_not_start_is_told_by_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+Nonsense")
    with pytest.raises(session_module.NoJava, match=r"does not start \(Unrecognized VM option 'Nonsense'\)"):
        session_module.check_java()


def test_a_java_that_ends_as_spark_starts_is_no_stack_trace(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f'#!/bin/sh\n[ "$1" = -version ] && exec {java_command()} -version\nexit 3\n')
    java.chmod(0o755)
    script = (
        "from strandline.snapshot.spark.session import NoJava, session\n"
        "try:\n"
        "    session('x')\n"
        "except NoJava as error:\n"
        "    print(error.cause)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "JAVA_HOME": str(tmp_path)}, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1:] == ["Java ended before Spark had a session"], done.stderr
