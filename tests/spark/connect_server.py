"""A server of Spark Connect, of PySpark's jars, in a process of its own; and what a client of it needs.

PySpark's `spark-submit` starts it, since Java has to be told what Arrow may look into.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.spark.standalone_cluster import LOGGING, SPARK_HOME, said

_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.configurationFile="
_CONFIGS = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


@contextlib.contextmanager
def connect_server(folder: Path, python: str, libraries: Path) -> Iterator[str]:
    """The URL of a server while the block lasts; `python` is that of its sources and tasks.

    What `foreachBatch` calls there is a client itself, and needs the `libraries` of one.
    """
    logging = folder / "log4j2.properties"
    logging.write_text(LOGGING)
    configs = {**_CONFIGS, "spark.sql.warehouse.dir": str(folder / "warehouse")}
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--class", _CLASS, "--master", "local[2]"]
    command += ["--driver-java-options", f"{_JAVA}{logging.as_uri()}"]
    for name, value in configs.items():
        command += ["--conf", f"{name}={value}"]
    env = {
        **os.environ,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CONNECT_MODE": "0",
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "PYTHONPATH": str(libraries),
    }
    log = folder / "server.log"
    with log.open("wb") as told:
        process = subprocess.Popen(command, stdout=told, stderr=told, cwd=folder, env=env)
    try:
        port = said(log, re.escape("Spark Connect server started at: ") + r"\S+:(\d+)")
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)
