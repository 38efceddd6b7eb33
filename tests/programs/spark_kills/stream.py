"""The killed program's processes, and those of its executors where it runs on a Spark cluster."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from tests.spark.standalone_cluster import StandaloneCluster

END_SECONDS = 20.0
"""Longest wait for the rest of a run whose query has ended."""


class Stream:
    """A run of the program, on a Spark cluster if there is one."""

    def __init__(self, settings: dict[str, Any], log: Path, spark: StandaloneCluster | None) -> None:
        command = [sys.executable, "-m", "tests.programs.spark_kills.driver", json.dumps(settings)]
        env = dict(os.environ)
        if spark is not None:
            env["PYSPARK_PYTHON"] = str(spark.python)
        self._spark = spark
        with log.open("ab") as file:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True, env=env)

    def told(self) -> dict[str, Any] | None:
        """The next line that it prints; None if it has ended."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                told: dict[str, Any] = json.loads(line)
                return told
        return None

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self, kind: str, chance: random.Random) -> bool:
        """Kill a part of it; False if there is no such part."""
        try:
            chosen = self._parts(kind)
            if kind != "driver" and chosen:
                chosen = [chance.choice(chosen)]
            for one in chosen:
                one.kill()
        except psutil.NoSuchProcess:  # it ended by itself meanwhile
            return False
        return bool(chosen)

    def _parts(self, kind: str) -> list[psutil.Process]:
        if kind in ("executor", "task"):
            executors = self._spark.executors() if self._spark is not None else []
            if kind == "executor":
                return executors
            below = [one for executor in executors for one in executor.children(recursive=True)]
        else:
            driver = psutil.Process(self._process.pid)
            below = driver.children(recursive=True)
            if kind == "driver":
                return [driver, *below]
        named = "java" if kind == "java" else "python"
        return [one for one in below if one.name().startswith(named)]

    def end(self, within: float) -> None:
        """Wait until it has ended, and kill what is left of it after so many seconds.

        Executors whose driver is gone end by themselves.
        """
        try:
            below = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            below = []
        deadline = time.monotonic() + within
        while not self.ended and time.monotonic() < deadline:
            time.sleep(0.2)
        self._process.kill()
        self._process.wait()
        for one in below:
            if one.is_running():
                one.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Twin:
    """A second program of the same query, which runs beside the first all the time."""

    def __init__(self, settings: dict[str, Any], log: Path, spark: StandaloneCluster | None) -> None:
        self._given = (settings, log, spark)
        self._stopped = threading.Event()
        self.starts = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """Return when it is gone; may be called again."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            stream = Stream(*self._given)
            self.starts += 1
            try:
                while not stream.ended and not self._stopped.wait(0.2):
                    pass
            finally:
                stream.end(0.0 if self._stopped.is_set() else END_SECONDS)
