"""A Spark session that works at the first try on one machine, and says in one line why it cannot.

Spark's own defaults pick another Python for its workers, open a web page's port, look up the machine's name
and write screens of warnings; without Java it dies in a stack trace. A session's start costs seconds: take
one for all jobs of a run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

OLDEST_JAVA = 17
_VERSION = re.compile(r'version "(\d+)')
_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    # A shuffle's default of 200 tasks is meant for a cluster; adaptive execution only joins them later.
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}

_LOGGING = Path(__file__).with_name("log4j2.properties").as_uri()
_SHORT_JOBS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class NoJava(Exception):
    """Spark needs Java and there is none, or one that is too old; `str()` is one line: `cause`, `cure`."""

    def __init__(self, cause: str, cure: str) -> None:
        super().__init__(f"{cause}: {cure}")
        self.cause = cause
        self.cure = cure


def session(
    app_name: str,
    master: str = "local[*]",
    configs: Mapping[str, str] | None = None,
    *,
    short_jobs: bool = False,
) -> SparkSession:
    """Start a session, or return the one that runs. `configs` are Spark's own; they win over ours.

    `short_jobs`: Java compiles quickly rather than well, and a query is planned once, not again after each of
    its stages, of which the audits have hundreds. Each of the two halves the processor that jobs of seconds
    take, as those do; scans of gigabytes in Spark's own operators would take more.

    Raises NoJava before Spark is started.
    """
    check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(app_name).master(master)
    java = f"-Dlog4j2.configurationFile={_LOGGING} {_SHORT_JOBS if short_jobs else ''}".strip()
    ours = {**_DEFAULTS, "spark.driver.extraJavaOptions": java}
    if short_jobs:
        ours["spark.sql.adaptive.enabled"] = "false"
    for name, value in {**ours, **(configs or {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def check_java() -> None:
    """Raise NoJava unless the Java that Spark would run is there and new enough."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    cure = f"install a JRE of version {OLDEST_JAVA} or later (Debian: openjdk-17-jre-headless)"
    if java is None:
        raise NoJava("Spark needs Java and there is none on the PATH", cure)
    cure += ", or set JAVA_HOME"
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoJava(f"Spark needs Java, and {java} cannot be run ({error})", cure) from error
    version = _VERSION.search(told.stderr + told.stdout)
    if version is None or int(version[1]) < OLDEST_JAVA:
        found = f"version {version[1]}" if version else "of an unknown version"
        raise NoJava(f"Spark needs Java {OLDEST_JAVA}, {java} is {found}", cure)
