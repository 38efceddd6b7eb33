"""A Spark stream killed for minutes: is each record in its sink once?

    scripts/spark-kills --minutes 10
    scripts/spark-kills --minutes 10 --sink topic
    scripts/spark-kills --minutes 10 --sink kafka
    scripts/spark-kills --minutes 10 --sink topic --cluster
    scripts/spark-kills --minutes 10 --sink topic --twin

One node on the loopback; flights are written to a topic at a steady pace, each with its number, and a
checkpoint is taken every few seconds. A stream in a process of its own reads the topic from storage into
Parquet files. Seconds after its query has started, one of these is killed with SIGKILL: the whole driver with
its workers; Java alone; or one Python process below it, which is a worker of a task or the one that plans.
When the stream has ended, it is started again.

With `--cluster` the tasks run on a Spark cluster of a master and two workers, all processes of their own.
Then an executor is killed now and then, or one of its Python processes, and Spark tries its tasks again.

Most kills come while a batch is under way. At the end a last run with Trigger.AvailableNow reads what is
left. Then the sink must have each acknowledged value once, and nothing else. Files that lie in its folder
and are not in the sink's log are of batches whose run died before they were committed: read without the log
they are doubled.

With `--sink topic` the stream writes to another topic, of three nodes; a node is killed now and then too, and
started again. Every other kill comes after the first records of a batch have come to that topic. A consumer
that reads what was committed must find each value once; one that reads all finds the aborted ones too. With
`--sink kafka` the same stream is written by Spark's own Kafka sink to the same topic: it is at least once, so
no value may be missing, and the run tells how many are there twice.

With `--twin` a second program of the same query, with the same checkpoint, runs beside the first all the
time.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from strandline import TemporaryCluster, local_cluster
from strandline.cluster.failure import CommandFailed
from tests import ROOT
from tests.clients.programs import SPARK
from tests.programs.spark_kills.copies import counted_copies
from tests.programs.spark_kills.load import TOPIC, Load, Written, checkpoint
from tests.programs.spark_kills.moments import TopicEnds, await_batch, await_writing, under_way
from tests.programs.spark_kills.stream import END_SECONDS, Stream, Twin
from tests.spark.standalone_cluster import StandaloneCluster, standalone_cluster

COPIES = "copies"
KINDS = ("driver", "java", "python")
CLUSTER_KINDS = ("executor", "task")
NODE = "node"
SINKS = ("parquet", "topic", "kafka")
NODES = 3
DOWN_SECONDS = 3.0
START_SECONDS = 180.0
"""A session's start takes 10 s, on a busy machine far more."""
CHECKPOINT_SECONDS = 3.0
AMID_SECONDS = 0.3
"""Longest wait after a batch's first records have come, until it is killed amid its writing."""


class Kills:
    """The counts of a series."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.in_batches = self.amid = 0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/spark-kills", description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=int, default=500, help="records a second")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sink", choices=SINKS, default=SINKS[0])
    parser.add_argument("--cluster", action="store_true", help="run tasks on a Spark cluster")
    parser.add_argument("--twin", action="store_true", help="run a second program of the query beside it")
    given = parser.parse_args(arguments)
    nodes = 1 if given.sink == "parquet" else NODES
    with contextlib.ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="spark-kills-")))
        cluster = running.enter_context(local_cluster(nodes))
        spark = None
        if given.cluster:
            (folder / "spark").mkdir()
            spark = running.enter_context(standalone_cluster(folder / "spark", [ROOT]))
        return run(cluster, spark, folder, given)


def run(
    cluster: TemporaryCluster, spark: StandaloneCluster | None, folder: Path, given: argparse.Namespace
) -> int:
    cluster.create_topic(TOPIC, partitions=given.partitions)
    copied = given.sink != "parquet"
    if copied:
        cluster.create_topic(COPIES, partitions=given.partitions)
    settings = {
        "master": "local[2]" if spark is None else spark.master,
        "url": cluster.storage,
        "topic": TOPIC,
        "kept": str(folder / "kept"),
        "sink": str(folder / "sink"),
        "copies": COPIES if copied else None,
        "jars": str(SPARK.command()[-1]) if given.sink == "kafka" else None,
        "bootstrap": cluster.bootstrap,
        "finish": False,
    }
    log = folder / "log"
    load = Load(cluster.bootstrap, given.rate)
    stopped = threading.Event()
    checkpoint(cluster)
    checkpoints = threading.Thread(target=_checkpoints, args=(cluster, stopped))
    checkpoints.start()
    kills = Kills()
    chance = random.Random(given.seed)
    twin = Twin(settings, log, spark) if given.twin else None
    deadline = time.monotonic() + given.minutes * 60
    try:
        while time.monotonic() < deadline:
            stream = Stream(settings, log, spark)
            try:
                if stream.told() is None:
                    if twin is not None:
                        continue  # the other one was faster
                    print(log.read_text(errors="replace")[-3000:])
                    raise SystemExit("spark-kills: the stream ended before its query began")
                while not stream.ended and time.monotonic() < deadline:
                    if kill_one(stream, cluster, settings, chance, kills, given.partitions):
                        break
            finally:
                stream.end(END_SECONDS)
            print(f"{load.acknowledged} records, and the stream has ended", flush=True)
    finally:
        if twin is not None:
            twin.stop()
            print(f"the twin was started {twin.starts} times")
        load.stop()
        stopped.set()
        checkpoints.join()
    checkpoint(cluster)
    last = Stream({**settings, "finish": True}, log, spark)
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
    return judged(told, load, kills, once=given.sink != "kafka")


def kill_one(
    stream: Stream,
    cluster: TemporaryCluster,
    settings: dict[str, Any],
    chance: random.Random,
    kills: Kills,
    partitions: int,
) -> bool:
    """Wait for a moment, and kill something. True if the stream cannot go on then."""
    kept, copied = Path(settings["kept"]), settings["copies"] is not None
    kinds = [*KINDS]
    if not settings["master"].startswith("local"):
        kinds += CLUSTER_KINDS
    if copied:
        kinds.append(NODE)
    time.sleep(chance.uniform(0.2, 5.0))
    amid = False
    if copied and chance.random() < 0.5:
        with contextlib.closing(TopicEnds(cluster.bootstrap, COPIES, partitions)) as ends:
            amid = await_writing(kept, ends)
        time.sleep(chance.uniform(0.0, AMID_SECONDS))
    else:
        await_batch(kept)
        time.sleep(chance.uniform(0.0, 1.5))
    kind, met = chance.choice(kinds), under_way(kept)
    if kill_node(cluster, chance) if kind == NODE else stream.kill(kind, chance):
        kills.kinds[kind] += 1
        kills.in_batches += met
        kills.amid += amid and met
        where = "amid writing" if amid and met else "in a batch" if met else "between batches"
        print(f"{kind} killed {where}", flush=True)
    return kind in ("driver", "java")


def kill_node(cluster: TemporaryCluster, chance: random.Random) -> bool:
    """Kill a node, and start it again after some seconds."""
    node = chance.randrange(1, NODES + 1)
    cluster.kill(node)
    time.sleep(DOWN_SECONDS)
    cluster.start(node)
    return True


def judged(told: dict[str, Any], load: Written, kills: Kills, *, once: bool = True) -> int:
    """The exit code, 0 if each acknowledged value is there, and with `once` none twice."""
    counted, lying = told["counted"], told["lying"]
    wanted = {
        "all": load.acknowledged if once else max(load.acknowledged, counted["all"]),
        "distinct": load.acknowledged,
        "first": 0,
        "last": load.acknowledged - 1,
        "checksum": load.checksum,
    }
    killed = ", ".join(f"{kind} {number}" for kind, number in sorted(kills.kinds.items()))
    print(
        f"{kills.kinds.total()} kills ({killed}), {kills.in_batches} in a batch, {kills.amid} amid writing, "
        f"{load.acknowledged} records acknowledged, {load.failed} failed"
    )
    doubled = counted["all"] - counted["distinct"]
    print(f"in the sink: {counted['all']}, doubled {doubled}", end="")
    print(f", lost {load.acknowledged - counted['distinct']}; with what is not committed: {lying['all']}")
    if not kills.in_batches:
        print("no kill met a batch: give it more minutes")
    if not once and not doubled:
        print("no kill met what makes records come twice: give it more minutes")
    right = counted == wanted and not load.failed
    print("spark-kills ok" if right else f"spark-kills FAILED: {counted} where {wanted} should be")
    return 0 if right else 1


def _checkpoints(cluster: TemporaryCluster, stopped: threading.Event) -> None:
    while not stopped.wait(CHECKPOINT_SECONDS):
        with contextlib.suppress(CommandFailed):
            checkpoint(cluster)
