"""Spark's own Kafka source and sink on real Kafka, and Strandline's, at the same work on the same cores.

Both clusters have three nodes and a topic of as many records, written by the same producer. Kafka's source
and sink are also run on Strandline, which speaks its protocol. What the servers' processes take meanwhile is
told beside what Spark's take.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException

from strandline.cluster.failure import CommandFailed
from tests.clients.programs import SPARK, Missing
from tests.peers.kafka_cluster import KafkaCluster
from tests.peers.kafka_jars import NoKafka
from tests.programs.bench.kafka_measure import Amount, Servers, fill, new_topic
from tests.programs.bench.spark_driver import STREAMS, Given
from tests.programs.bench.strandline_cluster import StrandlineCluster

MEGABYTES: Final = {"full": 2_000.0, "quick": 128.0, "tiny": 2.0}
"""Of values, in the topic that is read; half of it is written."""
PARTITIONS: Final = 6
TUNED: Final = {
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(16 << 20),
    "kafka.fetch.max.bytes": str(96 << 20),
    "kafka.receive.buffer.bytes": str(1 << 20),
}
"""What makes Kafka's source faster here: fewer, larger fetches, and fewer turns of its poll."""
_CHECKPOINT_SECONDS: Final = 120.0
_TOLD: Final = 300
"""Characters of what went wrong: the last ones say it."""


@dataclass(frozen=True)
class Way:
    """One way to do the work, told in a column."""

    name: str
    on: str
    """The cluster: `kafka` or `strandline`."""
    format: str
    options: Mapping[str, str] = field(default_factory=dict)


KAFKA_DEFAULT: Final = Way("Kafka's source", "kafka", "kafka")
KAFKA_TUNED: Final = Way("Kafka's source, tuned", "kafka", "kafka", TUNED)
OURS: Final = Way("Strandline's source", "strandline", "strandline")
SOURCES: Final = (
    KAFKA_DEFAULT, KAFKA_TUNED, OURS, Way("Kafka's source on Strandline", "strandline", "kafka", TUNED),
)  # fmt: skip
KAFKA_SINK: Final = Way("Kafka's sink, at least once", "kafka", "kafka")
OUR_SINK: Final = Way("Strandline's sink, exactly once", "strandline", "strandline")
SINKS: Final = (
    KAFKA_SINK, OUR_SINK, Way("Kafka's sink on Strandline, at least once", "strandline", "kafka"),
)  # fmt: skip
WAYS: Final = {"read": SOURCES, "stream": SOURCES, "sink": SINKS}
WANTED: Final = (
    ("read, again", OURS, KAFKA_DEFAULT, 3.0),
    ("read, again", OURS, KAFKA_TUNED, 2.5),
    *(("stream, " + which, OURS, KAFKA_DEFAULT, 1.5) for which in STREAMS),
    ("sink", OUR_SINK, KAFKA_SINK, 1.0),
)
"""How many times as fast one way is to be as the other."""
SLOWEST_FIRST: Final = 3.0
"""How many times as long as a session's second read its first one may take."""


class NotHere(Exception):
    """A cluster, or Spark's jars for Kafka, cannot be had, or ends amid the work: one line."""


class Beside:
    """Two clusters, one after the other, with a topic of records of one size."""

    def __init__(self, folder: Path, megabytes: float, record_bytes: int) -> None:
        """Raises NotHere."""
        self._folder = folder
        self._amount = Amount(megabytes=megabytes, partitions=PARTITIONS)
        self._size = record_bytes
        try:
            self._jars = str(SPARK.command()[-1])
        except Missing as error:
            raise NotHere(str(error)) from error

    def go(self, jobs: Sequence[str], each: Callable[[str, Way, Given, Servers], None]) -> None:
        """Give each job to be done in each way, while the cluster for it runs. Raises NotHere."""
        for on in ("kafka", "strandline"):
            with self._running(on) as cluster:
                topic, records, _ = fill(cluster, self._amount, size=self._size)
                urls = {}
                if isinstance(cluster, StrandlineCluster):
                    _checkpoint(cluster)
                    urls["url"] = str(cluster.folder / "objects")
                servers = Servers(cluster)
                for job in jobs:
                    for way in WAYS[job]:
                        if way.on == on:
                            reads_storage = way.format == "strandline" and job != "sink"
                            options = dict(way.options) | (urls if reads_storage else {})
                            writes = job == "sink"
                            given = Given(
                                way.format,
                                new_topic(cluster, PARTITIONS) if writes else topic,
                                options,
                                cluster.bootstrap,
                                self._jars,
                                records // 2 if writes else records,
                                self._size,
                                cluster.pids,
                            )
                            each(job, way, given, servers)

    @contextmanager
    def _running(self, on: str) -> Iterator[KafkaCluster | StrandlineCluster]:
        with tempfile.TemporaryDirectory(prefix=f"{on}-", dir=self._folder) as folder:
            cluster: KafkaCluster | StrandlineCluster
            where = Path(folder, "cluster")
            try:
                cluster = KafkaCluster(where) if on == "kafka" else StrandlineCluster(where, [])
                try:
                    cluster.up()
                    yield cluster
                finally:
                    cluster.down()
            except (NoKafka, CommandFailed, KafkaException, OSError, subprocess.SubprocessError) as error:
                told = " ".join(str(error).split())[-_TOLD:]
                raise NotHere(f"{on}: {told or type(error).__name__}") from error


def _checkpoint(cluster: StrandlineCluster) -> None:
    """Publish all there is: nodes do so within seconds, and what is read is to be all of it."""
    command = [sys.executable, "-m", "strandline", "checkpoint", "--cluster", str(cluster.folder), "--json"]
    subprocess.run(
        command, check=True, capture_output=True, timeout=_CHECKPOINT_SECONDS, env=dict(os.environ)
    )


def ratios(speeds: Mapping[tuple[str, str, str], float]) -> Iterator[str]:
    """How the ways compare that have a figure wanted, by (job, size, name of the way)."""
    for job, ours, theirs, wanted in WANTED:
        for size in dict.fromkeys(size for of, size, _ in speeds if of == job):
            pair = [speeds.get((job, size, way.name)) for way in (ours, theirs)]
            if pair[0] and pair[1]:
                times = pair[0] / pair[1]
                met = "holds" if times >= wanted else "MISSED"
                yield (
                    f"{job}, {size}: {ours.name} is {times:.1f} times {theirs.name}, wanted {wanted:g}: {met}"
                )
    for (job, size, name), first in speeds.items():
        again = speeds.get(("read, again", size, name))
        if job == "read, first" and first and again:
            times = again / first
            met = f", {SLOWEST_FIRST:g} at most: {'holds' if times <= SLOWEST_FIRST else 'MISSED'}"
            bound = met if name == OURS.name else ""
            yield f"{job}, {size}: {name} takes {times:.1f} times as long as again{bound}"
