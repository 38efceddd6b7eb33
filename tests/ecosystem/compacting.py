"""Settings under which topics are compacted within seconds, and the node that a topic's test kills."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from confluent_kafka.admin import AdminClient

from tests.cluster.real_cluster import RealCluster

NODE_SETTINGS: Final = ("level_one.reconcile_seconds=1", "compaction.ingest_seconds=1")
TOPIC_SETTINGS: Final[Mapping[str, str]] = {
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "1000",
    "delete.retention.ms": "1000",
}


def leader_of(cluster: RealCluster, topic: str, partition: int = 0) -> int:
    """The node that leads a partition now."""
    told = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(topic, timeout=20)
    return int(told.topics[topic].partitions[partition].leader)
