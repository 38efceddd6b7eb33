"""Spark's own Kafka source and sink on real Kafka, and Strandline's, at the same work on the same cores.

Both clusters run all the time. Each has three nodes and a topic of as many records, written by the same
producer just before, so that both are in the kernel's page cache. The ways take turns (`spark_turns.py`).

Kafka's source and sink run in a plain session of Spark, with its defaults, as their user would have it;
Strandline's in a plain one, and in `strandline.spark.session`, which brings flags and an archive of classes
for Java, and Python processes that are forks. What Kafka's tuned source gains from those is told, too.
Kafka's source and sink are also run on Strandline, which speaks its protocol.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from strandline.cluster.failure import CommandFailed
from tests.clients.programs import SPARK, Missing
from tests.peers.kafka_cluster import KafkaCluster
from tests.peers.kafka_jars import NoKafka
from tests.programs.bench.kafka_measure import Amount, Servers, client, fill, new_topic
from tests.programs.bench.spark_driver import READS, STAGES, STREAMS, Given
from tests.programs.bench.spark_turns import Broken, Driver, Measured, Pair
from tests.programs.bench.strandline_cluster import StrandlineCluster

MEGABYTES: Final = {"full": 2_000.0, "quick": 128.0, "tiny": 2.0}
"""Of values, in the topic that is read; half of it is written."""
TURNS: Final = {"full": 3, "quick": 3, "tiny": 1}
PARTITIONS: Final = 6
TUNED: Final = {
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(16 << 20),
    "kafka.fetch.max.bytes": str(96 << 20),
    "kafka.receive.buffer.bytes": str(1 << 20),
}
"""What makes Kafka's source faster here: fewer, larger fetches, and fewer turns of its poll."""
_CHECKPOINT_SECONDS: Final = 120.0
_DELETE_SECONDS: Final = 30.0
_SETTLE_SECONDS: Final = 60.0
"""Longest wait for servers that still put away what was written."""
_LOOK_SECONDS: Final = 2.0
_IDLE_CORES: Final = 0.3
"""What the six servers take together when they have nothing to do, at most."""
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
    plain: bool = True
    """Whether the session has Spark's defaults, or is `strandline.spark.session`."""


KAFKA_DEFAULT: Final = Way("Kafka's source", "kafka", "kafka")
KAFKA_TUNED: Final = Way("Kafka's source, tuned", "kafka", "kafka", TUNED)
KAFKA_IN_OURS: Final = Way("Kafka's source, tuned, in Strandline's session", "kafka", "kafka", TUNED, False)
OURS: Final = Way("Strandline's source", "strandline", "strandline", plain=False)
OURS_PLAIN: Final = Way("Strandline's source in a plain session", "strandline", "strandline")
SOURCES: Final = (
    OURS, KAFKA_DEFAULT, KAFKA_TUNED, OURS_PLAIN, KAFKA_IN_OURS,
    Way("Kafka's source on Strandline, tuned", "strandline", "kafka", TUNED),
)  # fmt: skip
KAFKA_SINK: Final = Way("Kafka's sink, at least once", "kafka", "kafka")
OUR_SINK: Final = Way("Strandline's sink, exactly once", "strandline", "strandline", plain=False)
OUR_SINK_PLAIN: Final = Way("Strandline's sink, exactly once, in a plain session", "strandline", "strandline")
SINKS: Final = (
    OUR_SINK, KAFKA_SINK, OUR_SINK_PLAIN,
    Way("Kafka's sink on Strandline, at least once", "strandline", "kafka"),
)  # fmt: skip
STARTED: Final = ("kafka", "strandline")
"""The clusters, as they are started."""
WAYS: Final = {"read": SOURCES, "stream": SOURCES, "sink": SINKS}
FIRST_READ, NEXT_READ = (f"read, {stage}" for stage in READS)
BEFORE: Final = ("first ever", "leaving an archive")
"""First stages of a program's first two runs. The second leaves the archive of classes for later ones."""
OF_SESSIONS: Final = {"read": OURS, "stream": OURS, "sink": OUR_SINK}
"""The way of each job whose session leaves one."""
PAIRS: Final = (
    *(
        Pair(NEXT_READ, ours.name, theirs.name, wanted)
        for ours in (OURS, OURS_PLAIN)
        for theirs, wanted in ((KAFKA_DEFAULT, 3.0), (KAFKA_TUNED, 2.5))
    ),
    Pair(NEXT_READ, OURS.name, KAFKA_IN_OURS.name),
    Pair(NEXT_READ, KAFKA_IN_OURS.name, KAFKA_TUNED.name),
    *(Pair(FIRST_READ, ours.name, KAFKA_DEFAULT.name) for ours in (OURS, OURS_PLAIN)),
    *(
        Pair(f"stream, {stage}", ours.name, KAFKA_DEFAULT.name, 1.5)
        for stage in STREAMS
        for ours in (OURS, OURS_PLAIN)
    ),
    *(Pair("sink, first", ours.name, KAFKA_SINK.name, 1.0) for ours in (OUR_SINK, OUR_SINK_PLAIN)),
)
SLOWEST_FIRST: Final = 3.0
"""How many times as long as a session's second read its first one may take."""


class NotHere(Exception):
    """A cluster, or Spark's jars for Kafka, cannot be had, or ends amid the work: one line."""


@dataclass(frozen=True)
class Filled:
    """A cluster with the topic that is read."""

    peer: KafkaCluster | StrandlineCluster
    topic: str
    records: int
    url: str = ""
    """Of the storage, where it can be read without the cluster."""


class Beside:
    """Two clusters with a topic of records of one size, and the ways that take turns at them."""

    def __init__(self, folder: Path, megabytes: float, record_bytes: int) -> None:
        """Raises NotHere."""
        self._folder = folder
        self._amount = Amount(megabytes=megabytes, partitions=PARTITIONS)
        self._size = record_bytes
        try:
            self._jars = str(SPARK.command()[-1])
        except Missing as error:
            raise NotHere(str(error)) from error

    def go(self, jobs: Sequence[str], turns: int, each: Callable[[Measured], None]) -> None:
        """Let each way do each job in each turn, and tell what it took. Raises NotHere, Broken."""
        with ExitStack() as running:
            clusters = {on: self._filled(running.enter_context(self._running(on))) for on in STARTED}
            settle([Servers(one.peer) for one in clusters.values()])
            for job, told_as in product(jobs, BEFORE):
                with self._drivers(job, clusters) as driver_of:
                    way, stage = OF_SESSIONS[job], STAGES[job][0]
                    each(self._measured(job, stage, way, 0, driver_of(way), told_as))
            for turn in range(turns):
                for job in jobs:
                    begin = turn % len(WAYS[job])
                    ways = (*WAYS[job][begin:], *WAYS[job][:begin])
                    with self._drivers(job, clusters) as driver_of:
                        for stage in STAGES[job]:
                            for way in ways:
                                each(self._measured(job, stage, way, turn, driver_of(way)))

    def given(self, job: str, way: Way, cluster: Filled) -> Given:
        """What the driver of a way is given; to write to, a topic of its own."""
        writes = job == "sink"
        return Given(
            way.format,
            new_topic(cluster.peer, PARTITIONS) if writes else cluster.topic,
            dict(way.options) | ({"url": cluster.url} if way.format == "strandline" and not writes else {}),
            cluster.peer.bootstrap,
            self._jars,
            cluster.records // 2 if writes else cluster.records,
            self._size,
            cluster.peer.pids,
            way.plain,
        )

    @contextmanager
    def _drivers(self, job: str, clusters: Mapping[str, Filled]) -> Iterator[Callable[[Way], Driver]]:
        """A call that gives the driver of a way, started the first time. It raises Broken."""
        drivers: dict[str, Driver] = {}
        with ExitStack() as made:
            folder = made.enter_context(tempfile.TemporaryDirectory(prefix="drivers-", dir=self._folder))

            def driver_of(way: Way) -> Driver:
                if way.name not in drivers:
                    own, cluster = Path(tempfile.mkdtemp(dir=folder)), clusters[way.on]
                    given = self.given(job, way, cluster)
                    if job == "sink":  # a topic more in each turn would fill the disk
                        made.callback(_delete, cluster.peer, given.topic)
                    # Whatever archives of classes the user has, a program that does this job left its own.
                    cache = {"XDG_CACHE_HOME": str(self._folder / f"cache-{job}")}
                    drivers[way.name] = Driver(job, given, own, cache)
                    made.callback(drivers[way.name].end)
                return drivers[way.name]

            yield driver_of

    def _measured(
        self, job: str, stage: str, way: Way, turn: int, driver: Driver, told_as: str | None = None
    ) -> Measured:
        """Let a driver do a stage; raises Broken, also where not all records were there."""
        print(f"turn {turn + 1}, {job}, {stage}, {way.name} ...", file=sys.stderr, flush=True)
        taken, wanted = driver.stage(stage), driver.given.records
        if taken.records != wanted:
            raise Broken(f"{job}, {stage}, {way.name}: {taken.records:,} records of {wanted:,} were there")
        return Measured(
            f"{job}, {told_as or stage}",
            f"{self._size:,} B a record, {wanted * self._size / 1e6:,.0f} MB",
            way.name,
            turn,
            taken.seconds,
            taken.spark,
            taken.servers,
            taken.memory,
            taken.records,
            driver.start.seconds if stage == STAGES[job][0] else None,
        )

    def _filled(self, peer: KafkaCluster | StrandlineCluster) -> Filled:
        topic, records, _ = fill(peer, self._amount, size=self._size)
        if not isinstance(peer, StrandlineCluster):
            return Filled(peer, topic, records)
        _checkpoint(peer)
        return Filled(peer, topic, records, str(peer.folder / "objects"))

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


def _delete(peer: KafkaCluster | StrandlineCluster, topic: str) -> None:
    admin = AdminClient(client(peer))  # which has to live as long as it is waited for
    admin.delete_topics([topic])[topic].result(_DELETE_SECONDS)


def settle(servers: Sequence[Servers]) -> None:
    """Return when servers have put away what was written, which takes from the first ways; or in a minute."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while time.monotonic() < deadline:
        before = sum(one.processor() for one in servers)
        time.sleep(_LOOK_SECONDS)
        if sum(one.processor() for one in servers) - before < _IDLE_CORES * _LOOK_SECONDS:
            return


def _checkpoint(cluster: StrandlineCluster) -> None:
    """Publish all there is: nodes do so within seconds, and what is read is to be all of it."""
    command = [sys.executable, "-m", "strandline", "checkpoint", "--cluster", str(cluster.folder), "--json"]
    subprocess.run(
        command, check=True, capture_output=True, timeout=_CHECKPOINT_SECONDS, env=dict(os.environ)
    )
