"""Settings under which topics are compacted within seconds, and the node that a topic's test kills."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from confluent_kafka.admin import AdminClient

from tests.cluster.real_cluster import RealCluster
from tests.ecosystem.reading import read_until

NODE_SETTINGS: Final = ("level_one.reconcile_seconds=1", "compaction.ingest_seconds=1")
TOPIC_SETTINGS: Final[Mapping[str, str]] = {
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "1000",
    "delete.retention.ms": "1000",
}
_COMPACTED_SECONDS: Final = 60.0


def wait_compacted(cluster: RealCluster, topic: str, partitions: int, written: int) -> None:
    """Wait until a topic has fewer records than were written to it; fails when that takes too long."""
    deadline = time.monotonic() + _COMPACTED_SECONDS
    while len(read_until(cluster.bootstrap, topic, partitions, lambda _: True)) >= written:
        assert time.monotonic() < deadline, f"nothing of {topic} was compacted in {_COMPACTED_SECONDS:.0f} s"
        time.sleep(0.5)


def leader_of(cluster: RealCluster, topic: str, partition: int = 0) -> int:
    """The node that leads a partition now."""
    told = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(topic, timeout=20)
    return int(told.topics[topic].partitions[partition].leader)
