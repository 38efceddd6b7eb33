"""A standalone Spark cluster: a master and workers from PySpark's jars, each a process, on the loopback.

Its executors run a Python of their own, which has this installation's libraries without this package, and
refuses to open what the test says is the driver's. So what a job needs there has to be sent there.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pyspark

EXECUTOR_MB = 512
SPARK_HOME = Path(pyspark.__file__).parent
_DAEMON = (
    "java", "-cp", f"{SPARK_HOME}/jars/*", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
    "-Dspark.master.rest.enabled=false",
)  # fmt: skip
LOGGING = """rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %m%n
"""
_START_SECONDS = 60.0
_REFUSING = """import os, sys
DRIVERS = {drivers!r}
ALLOWED = {allowed!r}
def refuse(event, given):
    if event in ("open", "os.listdir", "os.scandir") and isinstance(given[0], (str, os.PathLike)):
        path = os.path.abspath(given[0]) + "/"
        if path.startswith(DRIVERS) and not path.startswith(ALLOWED):
            raise PermissionError(f"{{given[0]}} is on the driver's disk")
sys.addaudithook(refuse)
"""


class StandaloneCluster:
    """Its master's URL, and the Python of its executors."""

    def __init__(self, master: str, python: Path, workers: Sequence[int]) -> None:
        self.master = master
        self.python = python
        self._workers = workers

    def executors(self) -> list[psutil.Process]:
        """The Java processes of executors that run now; their Python processes are below them."""
        below = [psutil.Process(worker).children() for worker in self._workers]
        return [process for processes in below for process in processes if process.name() == "java"]


@contextlib.contextmanager
def standalone_cluster(
    folder: Path, drivers: Sequence[Path], workers: int = 2
) -> Iterator[StandaloneCluster]:
    """A cluster while the block lasts: each worker has one core, and memory for one executor.

    No Python of an executor opens anything below the folders `drivers`, but the libraries' folder.
    """
    python = _executors_python(folder / "python", drivers)
    (folder / "log4j2.properties").write_text(LOGGING)
    with contextlib.ExitStack() as running:
        listen = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        told, _ = _daemon(running, folder, "master", "master.Master", *listen)
        master = said(told, r"Starting Spark master at (spark://\S+)")
        pids = []
        for number in range(workers):
            given = (
                "--cores",
                "1",
                "--memory",
                f"{EXECUTOR_MB}m",
                "--work-dir",
                str(folder / f"work-{number}"),
            )
            _, pid = _daemon(running, folder, f"worker-{number}", "worker.Worker", *listen, *given, master)
            pids.append(pid)
        said(told, r"(?s)" + r"Registering worker.*" * workers)
        yield StandaloneCluster(master, python, pids)


def _daemon(
    running: contextlib.ExitStack, folder: Path, name: str, of: str, *arguments: str
) -> tuple[Path, int]:
    """Start one of Spark's processes; it is gone after the block. Returns its log and its id."""
    log = folder / f"{name}.log"
    logging = f"-Dlog4j2.configurationFile={(folder / 'log4j2.properties').as_uri()}"
    # Where a worker finds Spark for its executors; the version is told, or it looks for Spark's own build.
    env = {**os.environ, "SPARK_HOME": str(SPARK_HOME), "SPARK_SCALA_VERSION": _scala()}
    command = [*_DAEMON, logging, f"org.apache.spark.deploy.{of}", *arguments]
    with log.open("wb") as told:
        process = subprocess.Popen(command, stdout=told, stderr=told, cwd=folder, env=env)
    running.callback(process.wait, 30)
    running.callback(process.terminate)
    return log, process.pid


def _scala() -> str:
    (jar,) = (SPARK_HOME / "jars").glob("spark-core_*.jar")
    return jar.name.partition("_")[2].partition("-")[0]


def said(log: Path, wanted: str) -> str:
    """The first group of what a log says, or all of it, once it says it."""
    deadline = time.monotonic() + _START_SECONDS
    while not (found := re.search(wanted, log.read_text(errors="replace"))):
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-2000:]
        time.sleep(0.05)
    return found[1] if found.groups() else found[0]


def _executors_python(folder: Path, drivers: Sequence[Path]) -> Path:
    venv.create(folder, symlinks=True)
    libraries = sysconfig.get_path("purelib")
    (site,) = folder.glob("lib/python*/site-packages")
    # A path file in this folder is not followed, as those of the installation's own folder are.
    (site / "libraries.pth").write_text(f"{libraries}\n")
    names = {
        "drivers": tuple(f"{path}/" for path in drivers),
        "allowed": (f"{libraries}/", f"{sys.base_prefix}/"),
    }
    # No sitecustomize.py: Debian's own comes first.
    (site / "refusing.py").write_text(_REFUSING.format(**names))
    (site / "refusing.pth").write_text("import refusing\n")
    return folder / "bin" / "python"
