"""The session's choices that Spark would make otherwise."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from strandline.snapshot.spark import session as session_module
from strandline.snapshot.spark.class_archive import java_command
from strandline.snapshot.spark.no_spark import NoFolder, NoJava
from strandline.snapshot.spark.python_command import python_of_this_program


def test_a_path_too_long_for_sockets_leaves_tcp(tmp_path: Path) -> None:
    assert session_module._unix_sockets(str(tmp_path / ("deep" * 20))) == {}


def test_the_command_is_python_itself_where_a_script_does_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = (tmp_path / str(number) for number in itertools.count())

    def taken() -> str:
        folder = next(folders)
        folder.mkdir()
        monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        monkeypatch.setenv("PYSPARK_PYTHON", "chosen")
        with python_of_this_program(folder):
            started = os.environ["PYSPARK_DRIVER_PYTHON"]
            assert os.environ["PYSPARK_PYTHON"] == "chosen", "by the user"
        assert os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
        return started

    monkeypatch.delenv("SPARK_HOME", raising=False)
    command = taken()
    told = "import pyspark, sys; print(pyspark.__path__[0]); print(*sys.path[1:3]); print(*sys.argv[1:])"
    done = subprocess.run(
        [command, "-c", told, "with a space"], env={**os.environ, "PYTHONPATH": "/some"}, capture_output=True,
        text=True, timeout=60, check=True,
    )  # fmt: skip
    packages = tmp_path / "0" / "packages"
    assert done.stdout.splitlines() == [str(packages / "pyspark"), f"{packages} /some", "with a space"]

    folders = (tmp_path / f"with:{number}" for number in itertools.count())
    assert taken() == sys.executable
    folders = (tmp_path / f"other {number}" for number in itertools.count())
    assert taken() == str(tmp_path / "other 0" / "python")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # as where nothing may be executed
    assert taken() == sys.executable
    monkeypatch.undo()
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert taken() == sys.executable


@pytest.mark.parametrize(
    ("short_jobs", "ours", "compiler", "other"),
    [
        (False, "UseParallelGC", "Tier4InvocationThreshold += 50000 ", "UseSerialGC"),
        (True, "UseSerialGC", "TieredStopAtLevel += 1 ", "UseParallelGC"),
    ],
)
def test_javas_flags_are_ones_that_it_takes_with_the_users(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, short_jobs: bool, ours: str, compiler: str, other: str
) -> None:
    def started(theirs: str = "", configs: Mapping[str, str] | None = None) -> str:
        java = java_command()
        assert java is not None
        flags = [*session_module._flags(short_jobs, configs or {}).split(), *theirs.split()]
        told = [java, *flags, "-XX:+PrintFlagsFinal", "-version"]
        return subprocess.run(told, check=True, capture_output=True, text=True, timeout=60).stdout

    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert re.search(f"{ours} += true .*command line", started())
    assert re.search(compiler, started())
    taken, flag = f"{other} += true ", f"-XX:+{other}"
    assert re.search(taken, started(flag, {"spark.driver.defaultJavaOptions": flag}))
    settings = tmp_path / "spark-defaults.conf"
    settings.write_text(f"# spark.driver.defaultJavaOptions {flag}\n")
    assert re.search(f"{ours} += true ", started())
    settings.write_text(f"spark.driver.defaultJavaOptions {flag}\n")
    assert re.search(taken, started(flag))
    settings.unlink()
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", flag)
    assert re.search(taken, started())


def test_java_has_its_temporary_files_where_tmpdir_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> str:
        java = java_command()
        assert java is not None
        command = [java, *session_module._temporary({}).split(), "-XshowSettings:properties", "-version"]
        said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stderr
        (folder,) = re.findall(r"java\.io\.tmpdir = (.*)", said)
        return str(folder)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert told() == str(tmp_path)
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Djava.io.tmpdir=/var/tmp")
    assert told() == "/var/tmp"
    monkeypatch.delenv("JAVA_TOOL_OPTIONS")
    for folder in ("/tmp", f"{tmp_path} 2"):
        monkeypatch.setattr(tempfile, "tempdir", folder)
        assert session_module._temporary({}) == ""


def test_a_session_without_a_place_for_temporary_files_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A container whose disk is only read, and that has no other."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/none"])
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    with pytest.raises(NoFolder, match="no folder can be made among the temporary files"):
        session_module.session("nowhere", archives=False)


def test_an_archive_of_classes_is_of_the_sessions_own_class_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Path, str, str]] = []

    def options(folder: Path, java: str, flags: str, class_path: str) -> str:
        asked.append((folder, flags, class_path))
        return "-Dsome"

    monkeypatch.setattr(session_module, "options", options)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(SparkContext, "_gateway", None)
    serial = {
        "spark.driver.defaultJavaOptions": "-XX:+UseSerialGC",
        "spark.driver.extraClassPath": "/some.jar",
    }
    assert session_module._archive("17", "-XX:Some", serial) == "-Dsome"
    (folder, flags, class_path), *_ = asked
    assert tmp_path in folder.parents
    assert (flags.split(), class_path) == (["-XX:Some", "-XX:+UseSerialGC"], "/some.jar")
    assert session_module._archive("17", "", {"spark.driver.extraJavaOptions": "-Dmine"}) == ""
    monkeypatch.setattr(SparkContext, "_gateway", object())
    assert session_module._archive("17", "", {}) == "", "Java runs already"
    assert len(asked) == 1


@pytest.mark.parametrize("archives", [True, False])
def test_a_session_starts_by_an_archive_of_classes_unless_told_otherwise(
    tmp_path: Path, archives: bool
) -> None:
    script = f"from strandline.spark import session; session('x', short_jobs=True, archives={archives})"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], env=environment, timeout=120, check=True)
    assert any(tmp_path.rglob("*.starts")) is archives, "it was the first one, which leaves a mark"


def test_a_java_that_does_not_start_is_told_by_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+Nonsense")
    with pytest.raises(NoJava, match=r"does not start \(Unrecognized VM option 'Nonsense'\)"):
        session_module.check_java()


def test_a_java_that_ends_as_spark_starts_is_no_stack_trace(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f'#!/bin/sh\n[ "$1" = -version ] && exec {java_command()} -version\nexit 3\n')
    java.chmod(0o755)
    script = (
        "from strandline.spark import NoJava, session\n"
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


def test_a_worker_whose_rows_nobody_takes_any_more_says_nothing() -> None:
    """Spark has its three rows, and closes the connection amid the next ones."""
    script = (
        "import time\n"
        "import pyarrow as pa\n"
        "from strandline.spark import session\n"
        "spark = session('x', 'local[1]', short_jobs=True, archives=False)\n"
        "def many(batches):\n"
        "    for _ in batches:\n"
        "        for _ in range(5000):\n"
        "            yield pa.RecordBatch.from_pydict({'id': list(range(10000))})\n"
        "frame = spark.range(0, 10, 1, 1).mapInArrow(many, 'id bigint')\n"
        "print(len(frame.limit(3).collect()))\n"
        "time.sleep(3)\n"
        "spark.stop()\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=110, check=True
    )
    # Java says one line itself, about an option that Spark starts it with.
    said = [line for line in done.stderr.splitlines() if not line.endswith("jdk.incubator.vector")]
    assert (done.stdout, said) == ("3\n", [])
