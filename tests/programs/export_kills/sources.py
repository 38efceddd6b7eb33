"""What is exported and compared: storage of the real state machines, or nodes that are killed."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from strandline import TemporaryCluster, local_cluster
from tests.programs.spark_kills.load import TOPIC, Load, checkpoint
from tests.spark.stored_cluster import StoredCluster, build_cluster

MOST_RECORDS = 400_000
"""Of all topics; the comparison at the end has them in memory."""
MOST_BATCHES = 12
"""Batches of a partition between two runs."""
RECORDS = 60
RATE = 500
"""Flights a second."""
PARTITIONS = 4
NODES = 3
DOWN_SECONDS = 3.0
BETWEEN_SECONDS = (3.0, 12.0)
"""From a node's start to the next kill."""


class Source(Protocol):
    """Topics, and what of them has to be in the files."""

    @property
    def url(self) -> str: ...

    @property
    def topics(self) -> Sequence[str]: ...

    @property
    def columns(self) -> Sequence[str]:
        """What the comparison looks at, as DuckDB selects it."""

    @property
    def killed(self) -> int:
        """Nodes so far."""

    def write(self, run: int, chance: random.Random) -> None:
        """There is more to export after this, or will be."""

    def finish(self) -> None:
        """From now on nothing is written, and all that was is published."""

    def compared(self, found: list[tuple[Any, ...]]) -> tuple[int, int, int]:
        """Records of the topics, those that are missing of `found`, and those that only it has."""


class StoredSource:
    """Three topics on both levels, with a new checkpoint before each run."""

    topics = ("orders", "clicks", "visits")
    columns = ('"partition"', '"offset"', 'epoch_ms("timestamp")', "key", "value")
    killed = 0

    def __init__(self, cluster: StoredCluster) -> None:
        self._cluster = cluster
        self.url = cluster.url

    def write(self, run: int, chance: random.Random) -> None:
        partitions = self._cluster.partitions
        if sum(len(partition.records) for partition in partitions.values()) >= MOST_RECORDS:
            return
        value = f"{run}:".encode().ljust(120, b"v")
        for _ in range(chance.randint(1, MOST_BATCHES)):
            self._cluster.upload(*(partition.batch([value] * RECORDS) for partition in partitions.values()))
        for place, partition in partitions.items():
            if place[0] == "visits":
                partition.reconcile(len(partition.machine.extents))
        self._cluster.checkpoint()

    def finish(self) -> None:
        """All is there."""

    def compared(self, found: list[tuple[Any, ...]]) -> tuple[int, int, int]:
        wanted = {
            (*place, one.offset, one.timestamp, one.key, one.value)
            for place, partition in self._cluster.partitions.items()
            for one in partition.readable
        }
        there = set(found)
        return len(wanted), len(wanted - there), len(there - wanted)


class LiveSource:
    """Flights that come at a steady pace, each with its number, to three nodes that are killed by turns."""

    topics = (TOPIC,)
    columns = ("value",)

    def __init__(self, cluster: TemporaryCluster, seed: int) -> None:
        self._cluster = cluster
        self._chance = random.Random(seed)
        self.url = cluster.storage
        self.killed = 0
        self._load = Load(cluster.bootstrap, RATE)
        self._stopped = threading.Event()
        self._killer = threading.Thread(target=self._kill)
        self._killer.start()

    def write(self, run: int, chance: random.Random) -> None:
        """It comes by itself."""

    def finish(self) -> None:
        self.stop()
        checkpoint(self._cluster)

    def stop(self) -> None:
        """May be called again."""
        self._stopped.set()
        self._killer.join()
        self._load.stop()

    def _kill(self) -> None:
        while not self._stopped.wait(self._chance.uniform(*BETWEEN_SECONDS)):
            node = self._chance.randrange(1, NODES + 1)
            self._cluster.kill(node)
            self.killed += 1
            time.sleep(DOWN_SECONDS)
            self._cluster.start(node)

    def compared(self, found: list[tuple[Any, ...]]) -> tuple[int, int, int]:
        assert not self._load.failed, "what was not acknowledged may be there or not"
        rows = self._load.flights
        right: set[int] = set()
        for _, value in found:
            number, _, flight = value.partition(b" ")
            if int(number) < self._load.acknowledged and flight == rows[int(number) % len(rows)]:
                right.add(int(number))
        wanted = self._load.acknowledged
        return wanted, wanted - len(right), len(found) - len(right)


@contextlib.contextmanager
def stored_source(objects: Path) -> Iterator[Source]:
    yield StoredSource(build_cluster(objects))


@contextlib.contextmanager
def live_source(seed: int) -> Iterator[Source]:
    with local_cluster(NODES) as cluster:
        cluster.create_topic(TOPIC, partitions=PARTITIONS)
        checkpoint(cluster)
        source = LiveSource(cluster, seed)
        try:
            yield source
        finally:
            source.stop()
