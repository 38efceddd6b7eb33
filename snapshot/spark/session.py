"""A Spark session that works at the first try on one machine or a cluster, or says in one line why it cannot.

Spark's own defaults pick another Python for its workers, open a web page's port, look up the machine's name
and write screens of warnings; without Java it dies in a stack trace. A session's start costs seconds: take
one for all jobs of a run.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from strandline.snapshot.spark.class_archive import (
    JAVA_SETTINGS,
    cache_folder,
    java_command,
    options,
    settings_folder,
)
from strandline.snapshot.spark.no_spark import CONNECT_CURE, NoJava, NoMaster
from strandline.snapshot.spark.program_folder import program_folder
from strandline.snapshot.spark.python_command import python_of_this_program
from strandline.snapshot.spark.shipping import ship

OLDEST_JAVA = 17
_VERSION = re.compile(r'version "(\d+)')
_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # A shuffle's default of 200 tasks is meant for a cluster; adaptive execution only joins them later.
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
_SOCKETS = "spark.python.unix.domain.socket"
_LONGEST_SOCKET_DIR = 60
"""Of the 107 bytes that a socket's path may have, Spark's own names take 42."""
MASTER_SECONDS = 5.0
"""Longest wait for a standalone master to take a connection; Spark itself asks for a minute."""
EXECUTOR_SECONDS = 60.0
"""Longest wait for a standalone cluster's first executor; Spark itself waits for ever."""
_STANDALONE = "spark://"
_CONNECT = "sc://"
_CHECK_MASTER = "check its address, and that its workers have cores and memory left"
_JAVA_ENDED = "JAVA_GATEWAY_EXITED"
_NONE_YET = 1
"""Entries in Spark's list of executors while there are none: the driver's own."""

_LOGGING = Path(__file__).with_name("log4j2.properties").as_uri()
# Java's second compiler takes a third of the processor of a session's start and first read, most of it for
# what has run often by then and will not again. Later, it compiles what records go through and little else.
_LONG_JOBS = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
_LONG_COLLECTOR = "-XX:+UseParallelGC"
"""Of long jobs. It needs no threads beside those that work, and leaves less to compile."""
_OTHER_COLLECTOR = re.compile(r"-XX:\+Use\w*GC\b")
_JAVA_CONFIG = "spark.driver.defaultJavaOptions"
"""Java takes its options besides ours, as those of JAVA_SETTINGS."""
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_TEMPORARY = "java.io.tmpdir"
_PLAIN = re.compile(r"[\w/.+=@-]+")
"""Text that Spark's splitting of options leaves as it is."""
_JAVA_FILES = ("spark-defaults.conf", "java-opts")
"""Files of Spark's configuration that have such options, too."""
# Java's own 21 MB of room for classes is a collection of everything at four sizes on the way to Spark's 150.
_SHORT_JOBS = "-XX:TieredStopAtLevel=1 -XX:MetaspaceSize=256m"
_SHORT_COLLECTOR = "-XX:+UseSerialGC"


def session(
    app_name: str,
    master: str = "local[*]",
    configs: Mapping[str, str] | None = None,
    *,
    short_jobs: bool = False,
    archives: bool = True,
) -> SparkSession:
    """Start a session, or return the one that runs, with `configs`, which are Spark's own and win over ours.

    A `master` other than `local` gets this package for its executors (`ship`), and Spark's own choice of
    their Python: `PYSPARK_PYTHON`, else the `python3` of each. The driver of a standalone cluster
    (`spark://host:port`) listens at the address by which it reaches its master.

    `short_jobs`: Java compiles quickly rather than well, and a query is planned once, not again after each of
    its stages, of which the audits have hundreds. Each of the two halves the processor that jobs of seconds
    take, as those do; scans of gigabytes in Spark's own operators would take more.

    `archives`: the driver's Java takes the classes that Spark loads from an archive in the user's cache, and
    starts sooner by it. The second session of a kind leaves it there when its Java ends (`class_archive`).

    Raises NoJava before Spark is started, or when its Java ends at once, NoFolder, and NoMaster, also for a
    server of Spark Connect (`sc://`): its sessions have no context, which the audits need, and begin by
    `SparkSession.builder.remote`.
    """
    if master.startswith(_CONNECT):
        raise NoMaster(f"{master} is a server of Spark Connect, and no master", CONNECT_CURE)
    local = master.startswith("local")
    driver = "127.0.0.1" if local else _address_towards(master)
    java_said = check_java()
    if driver is not None:
        os.environ.setdefault("SPARK_LOCAL_IP", driver)
    builder = SparkSession.builder.appName(app_name).master(master)
    flags = _flags(short_jobs, configs or {})
    archive = _archive(java_said, flags, configs or {}) if archives else ""
    java = f"-Dlog4j2.configurationFile={_LOGGING} {_temporary(configs or {})} {flags} {archive}".strip()
    ours = {**_DEFAULTS, _JAVA_OPTIONS: java}
    if driver is not None:
        ours["spark.driver.bindAddress"] = ours["spark.driver.host"] = driver
    if short_jobs:
        ours["spark.sql.adaptive.enabled"] = "false"
        ours["spark.executor.extraJavaOptions"] = f"{_SHORT_COLLECTOR} {_SHORT_JOBS}"
    python: AbstractContextManager[None] = nullcontext()
    if SparkSession.getActiveSession() is not None:
        ours = {}  # what it was started with is its owner's
    elif local:
        folder = program_folder()
        ours.update(_unix_sockets(folder))
        python = python_of_this_program(Path(folder))
    else:
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    for name, value in {**ours, **(configs or {})}.items():
        builder = builder.config(name, value)
    try:
        with python:
            spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        if not local:
            _await_executor(spark, master)
            ship(spark)
    except PySparkRuntimeError as error:
        if error.getCondition() != _JAVA_ENDED:
            raise
        raise NoJava(
            "Java ended before Spark had a session",
            "see what it printed above; settings of spark.driver and SPARK_SUBMIT_OPTS reach it",
        ) from error
    except Py4JError as error:
        if local:
            raise
        reason = str(getattr(error, "java_exception", error)).partition("\n")[0]
        raise NoMaster(f"{master} gave no session ({reason})", _CHECK_MASTER) from error
    return spark


def _flags(short_jobs: bool, configs: Mapping[str, str]) -> str:
    """Java's flags of a session, without a collector where the user has one: it does not start with two."""
    collector, others = (_SHORT_COLLECTOR, _SHORT_JOBS) if short_jobs else (_LONG_COLLECTOR, _LONG_JOBS)
    return others if any(map(_OTHER_COLLECTOR.search, _theirs(configs))) else f"{collector} {others}"


def _theirs(configs: Mapping[str, str]) -> list[str]:
    """The texts in which users give Java options."""
    theirs = [configs.get(_JAVA_CONFIG, ""), *(os.environ.get(name, "") for name in JAVA_SETTINGS)]
    for name in _JAVA_FILES:
        with suppress(OSError):
            theirs += (settings_folder() / name).read_text(errors="replace").splitlines()
    return [one for one in theirs if not one.lstrip().startswith("#")]


def _temporary(configs: Mapping[str, str]) -> str:
    """Java's option for the folder of temporary files that TMPDIR names, of which Java takes no notice.

    Empty where Java's own is the same, there is none, the user has named one, or the name is none that
    Spark hands on.
    """
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError:  # where nothing can be written, which is said where a folder is made
        return ""
    if folder == "/tmp" or not _PLAIN.fullmatch(folder) or any(_TEMPORARY in one for one in _theirs(configs)):
        return ""
    return f"-D{_TEMPORARY}={folder}"


def _archive(java_said: str, flags: str, configs: Mapping[str, str]) -> str:
    """Java's options for an archive of classes; empty if there is none for it."""
    folder = cache_folder()
    # A Java that runs goes on, and one with the user's options has none of ours.
    if folder is None or SparkContext._gateway is not None or _JAVA_OPTIONS in configs:
        return ""
    flags = f"{flags} {configs.get(_JAVA_CONFIG, '')}"
    return options(folder, java_said, flags, configs.get("spark.driver.extraClassPath", ""))


def _unix_sockets(folder: str) -> dict[str, str]:
    """Configs by which Java and its Python workers talk over sockets in a folder that is the user's alone.

    By TCP a task waits for some 40 ms, an acknowledgement's delay: Java writes to it in small pieces. These
    sockets have no secret, so the folder is what keeps others out. Where its path is too long for sockets,
    Spark takes TCP.
    """
    if len(os.fsencode(folder)) > _LONGEST_SOCKET_DIR:
        return {}
    return {f"{_SOCKETS}.enabled": "true", f"{_SOCKETS}.dir": folder}


def _address_towards(master: str) -> str | None:
    """This machine's address on the way to a standalone master; None for masters whose drivers Spark places.

    Raises NoMaster when none of its addresses (`spark://host:port,host:port`) takes a connection.
    """
    if not master.startswith(_STANDALONE):
        return None
    failed = ""
    for address in master.removeprefix(_STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=MASTER_SECONDS) as reached:
                return str(reached.getsockname()[0])
        except (OSError, ValueError) as error:
            failed = str(error)
    raise NoMaster(f"{master} cannot be reached ({failed})", _CHECK_MASTER)


def _await_executor(spark: SparkSession, master: str) -> None:
    """Return when a standalone cluster has started an executor; raises NoMaster."""
    asked = spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true"
    if asked or not master.startswith(_STANDALONE):
        return
    deadline = time.monotonic() + EXECUTOR_SECONDS
    while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() <= _NONE_YET:
        if time.monotonic() > deadline:
            spark.stop()
            raise NoMaster(f"{master} started no executor in {EXECUTOR_SECONDS:g} s", _CHECK_MASTER)
        time.sleep(0.1)


def _complaint(said: str) -> str:
    """The first line that a Java which does not start says of itself."""
    lines = [line.strip() for line in said.splitlines()]
    return next((line for line in lines if line and not line.startswith("Picked up ")), "")


def check_java() -> str:
    """The version of the Java that Spark would run, in its own words; raises NoJava unless it is there,
    starts, and is new enough."""
    java = java_command()
    cure = f"install a JRE of version {OLDEST_JAVA} or later (Debian: openjdk-17-jre-headless)"
    if java is None:
        raise NoJava("Spark needs Java and there is none on the PATH", cure)
    cure += ", or set JAVA_HOME"
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoJava(f"Spark needs Java, and {java} cannot be run ({error})", cure) from error
    said = told.stderr + told.stdout
    if told.returncode:
        raise NoJava(
            f"Spark needs Java, and {java} does not start ({_complaint(said) or told.returncode})",
            "correct what it complains of, mostly JAVA_TOOL_OPTIONS or JAVA_HOME",
        )
    version = _VERSION.search(said)
    if version is None or int(version[1]) < OLDEST_JAVA:
        found = f"version {version[1]}" if version else "of an unknown version"
        raise NoJava(f"Spark needs Java {OLDEST_JAVA}, {java} is {found}", cure)
    return said
