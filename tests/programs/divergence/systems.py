"""The two systems: three nodes each, set up to compact as soon and as much as they can."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final, Protocol

from strandline.cluster.local import LocalCluster
from strandline.cluster.ports import free_ports
from tests.peers.kafka_cluster import KafkaCluster

TOPIC_SETTINGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "1000",
    "max.compaction.lag.ms": "1000",
    "segment.ms": "200",
}
"""The same for both: hours and days in a real cluster, a second here."""
NO_CLEANING: Final[Mapping[str, str]] = {
    "min.cleanable.dirty.ratio": "1.0",
    "max.compaction.lag.ms": str(2**63 - 1),
}
"""Changed so, a topic is not cleaned any more: no part of a log is more than all of it."""


class System(Protocol):
    """Three nodes, 1 to 3."""

    name: str
    settings: ClassVar[Mapping[str, str]]
    """Settings of its nodes that differ from the defaults."""

    @property
    def bootstrap(self) -> str: ...
    def up(self) -> None: ...
    def stop(self, node: int) -> None: ...
    def start(self, node: int) -> None: ...
    def down(self) -> None: ...


class KafkaNodes(KafkaCluster):
    """Apache Kafka. Raises NoKafka."""

    settings: ClassVar[Mapping[str, str]] = {
        "log.cleaner.backoff.ms": "200",
        # A marker stays as long as its producer is known, which is a day by default.
        "producer.id.expiration.ms": "2000",
        "producer.id.expiration.check.interval.ms": "500",
    }

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, [f"{name}={value}" for name, value in self.settings.items()])


class StrandlineNodes:
    """Strandline, with its objects in a local folder."""

    name = "Strandline"
    settings: ClassVar[Mapping[str, str]] = {
        "level_one.reconcile_seconds": "1",
        "compaction.ingest_seconds": "1",
    }

    def __init__(self, folder: Path) -> None:
        self._local = LocalCluster(folder)

    @property
    def bootstrap(self) -> str:
        return self._local.description.bootstrap

    def up(self) -> None:
        settings = [f"{name}={value}" for name, value in self.settings.items()]
        self._local.up(3, choose_ports=free_ports, settings=settings)

    def stop(self, node: int) -> None:
        self._local.stop(node)

    def start(self, node: int) -> None:
        self._local.start(node)

    def down(self) -> None:
        self._local.down()
