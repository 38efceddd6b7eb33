"""A Spark stream killed for minutes: is each record in its sink once?

    scripts/spark-kills --minutes 10
    scripts/spark-kills --minutes 10 --sink topic
    scripts/spark-kills --minutes 10 --sink kafka

One node on the loopback; numbers are written to a topic at a steady pace, and a checkpoint is taken every
few seconds. A stream in a process of its own reads the topic from storage into Parquet files. Seconds after
its query has started, one of these is killed with SIGKILL: the whole driver with its workers; Java alone; or
one Python process below it, which is a worker of a task or the one that plans. When the stream has ended, it
is started again.

Most kills come while a batch is under way. At the end a last run with Trigger.AvailableNow reads what is
left. Then the sink must have each acknowledged number once, and nothing else. Files that lie in its folder
and are not in the sink's log are of batches whose run died before they were committed: read without the log
they are doubled.

With `--sink topic` the stream writes to another topic, of three nodes; a node is killed now and then too, and
started again. A consumer that reads what was committed must find each number once; one that reads all finds
the aborted ones too. With `--sink kafka` the same stream is written by Spark's own Kafka sink to the same
topic: it is at least once, so no number may be missing, and the run tells how many are there twice.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import psutil
from confluent_kafka import KafkaError, Message, Producer

from strandline import TemporaryCluster, local_cluster
from strandline.cluster.admin_client import first_answer
from strandline.cluster.failure import CommandFailed
from tests.clients.programs import SPARK
from tests.programs.spark_kills.copies import counted_copies

TOPIC = "numbers"
COPIES = "copies"
KINDS = ("driver", "java", "python", "node")
SINKS = ("parquet", "topic", "kafka")
NODES = 3
DOWN_SECONDS = 3.0
START_SECONDS = 180.0
"""A session's start takes 10 s, on a busy machine far more."""
CHECKPOINT_SECONDS = 3.0


class Written(Protocol):
    """What was written: so many acknowledged records, and others that may be there or not."""

    acknowledged: int
    failed: int


class Load:
    """Numbers from 0 on, written until `stop`; `acknowledged` of them are in the topic, the first ones."""

    def __init__(self, bootstrap: str, rate: int) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self._rate = rate
        self._stopped = threading.Event()
        self.acknowledged = self.failed = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        written, began = 0, time.monotonic()
        while not self._stopped.wait(0.05):
            wanted = int((time.monotonic() - began) * self._rate)
            for number in range(written, wanted):
                self._producer.produce(TOPIC, str(number), on_delivery=self._delivered)
            written = wanted
            self._producer.poll(0)
        self._producer.flush(60)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failed += 1


class Stream:
    """The killed program's process."""

    def __init__(self, settings: dict[str, Any], log: Path) -> None:
        command = [sys.executable, "-m", "tests.programs.spark_kills.driver", json.dumps(settings)]
        with log.open("ab") as file:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True)

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
            driver = psutil.Process(self._process.pid)
            below = driver.children(recursive=True)
            chosen = {
                "driver": [driver, *below],
                "java": [one for one in below if one.name() == "java"],
                "python": [one for one in below if one.name().startswith("python")],
            }[kind]
            if kind == "python" and chosen:
                chosen = [chance.choice(chosen)]
            for one in chosen:
                one.kill()
        except psutil.NoSuchProcess:  # it ended by itself meanwhile
            return False
        return bool(chosen)

    def end(self, within: float) -> None:
        """Wait until it has ended, and kill what is left of it after so many seconds."""
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


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/spark-kills", description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=int, default=500, help="records a second")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sink", choices=SINKS, default=SINKS[0])
    given = parser.parse_args(arguments)
    nodes = 1 if given.sink == "parquet" else NODES
    with tempfile.TemporaryDirectory(prefix="spark-kills-") as folder, local_cluster(nodes) as cluster:
        return run(cluster, Path(folder), given)


def run(cluster: TemporaryCluster, folder: Path, given: argparse.Namespace) -> int:
    cluster.create_topic(TOPIC, partitions=given.partitions)
    copied = given.sink != "parquet"
    if copied:
        cluster.create_topic(COPIES, partitions=given.partitions)
    chance = random.Random(given.seed)
    settings = {
        "url": cluster.storage,
        "topic": TOPIC,
        "kept": str(folder / "kept"),
        "sink": str(folder / "sink"),
        "copies": COPIES if copied else None,
        "jars": str(SPARK.command()[-1]) if given.sink == "kafka" else None,
        "bootstrap": cluster.bootstrap,
        "finish": False,
    }
    kinds = KINDS if copied else KINDS[:-1]
    log = folder / "log"
    load = Load(cluster.bootstrap, given.rate)
    stopped = threading.Event()
    checkpoint(cluster)
    checkpoints = threading.Thread(target=_checkpoints, args=(cluster, stopped))
    checkpoints.start()
    kills: Counter[str] = Counter()
    starts = batches_met = 0
    deadline = time.monotonic() + given.minutes * 60
    try:
        while time.monotonic() < deadline:
            stream = Stream(settings, log)
            starts += 1
            try:
                if stream.told() is None:
                    print(log.read_text(errors="replace")[-3000:])
                    raise SystemExit("spark-kills: the stream ended before its query began")
                while not stream.ended and time.monotonic() < deadline:
                    time.sleep(chance.uniform(0.2, 5.0))
                    within = time.monotonic() + 10.0
                    while not under_way(folder / "kept") and time.monotonic() < within:
                        time.sleep(0.02)
                    time.sleep(chance.uniform(0.0, 1.5))
                    kind, met = chance.choice(kinds), under_way(folder / "kept")
                    if kill_node(cluster, chance) if kind == "node" else stream.kill(kind, chance):
                        kills[kind] += 1
                        batches_met += met
                        where = "in a batch" if met else "between batches"
                        print(f"{starts}: {kind} killed {where}, {load.acknowledged} records", flush=True)
                    if kind in ("driver", "java"):
                        break
            finally:
                stream.end(20.0)
    finally:
        load.stop()
        stopped.set()
        checkpoints.join()
    checkpoint(cluster)
    last = Stream({**settings, "finish": True}, log)
    try:
        last.told()
        told = last.told()
    finally:
        last.end(START_SECONDS)
    if told is not None and copied:
        told = counted_copies(cluster.bootstrap, COPIES, given.partitions)
    if told is None:
        print(log.read_text(errors="replace")[-3000:])
        raise SystemExit("spark-kills: the last run did not end")
    return judged(told, load, kills, batches_met, once=given.sink != "kafka")


def kill_node(cluster: TemporaryCluster, chance: random.Random) -> bool:
    """Kill a node, and start it again after some seconds."""
    node = chance.randrange(1, NODES + 1)
    cluster.kill(node)
    time.sleep(DOWN_SECONDS)
    cluster.start(node)
    return True


def judged(
    told: dict[str, Any], load: Written, kills: Counter[str], batches_met: int, *, once: bool = True
) -> int:
    """The exit code, 0 if each acknowledged number is there, and with `once` no number twice."""
    counted, lying = told["counted"], told["lying"]
    wanted = {
        "all": load.acknowledged if once else max(load.acknowledged, counted["all"]),
        "distinct": load.acknowledged,
        "first": 0,
        "last": load.acknowledged - 1,
    }
    killed = ", ".join(f"{kind} {kills[kind]}" for kind in KINDS if kills[kind])
    print(
        f"{sum(kills.values())} kills ({killed}), {batches_met} in a batch, "
        f"{load.acknowledged} records acknowledged, {load.failed} failed"
    )
    print(f"in the sink: {counted['all']}, doubled {counted['all'] - counted['distinct']}", end="")
    print(f", lost {load.acknowledged - counted['distinct']}; with what is not committed: {lying['all']}")
    if not batches_met:
        print("no kill met a batch: give it more minutes")
    right = counted == wanted and not load.failed
    print("spark-kills ok" if right else f"spark-kills FAILED: {counted} where {wanted} should be")
    return 0 if right else 1


def under_way(kept: Path) -> bool:
    """Whether Spark has written down a batch's end, and not yet that the batch is done."""
    planned, done = (
        max((int(path.name) for path in (kept / name).glob("[0-9]*")), default=-1)
        for name in ("offsets", "commits")
    )
    return planned > done


def checkpoint(cluster: TemporaryCluster) -> None:
    """Take one; raises CommandFailed while too many nodes are away."""
    body = {"topics": [TOPIC], "lease_seconds": 600, "timeout_seconds": 60}
    first_answer(cluster.admin, "POST", "/api/checkpoints", body, timeout=70)


def _checkpoints(cluster: TemporaryCluster, stopped: threading.Event) -> None:
    while not stopped.wait(CHECKPOINT_SECONDS):
        with contextlib.suppress(CommandFailed):
            checkpoint(cluster)
