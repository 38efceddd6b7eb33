"""What the source's plan reads of a stored cluster, and what there is to read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC

from strandline.snapshot.spark.fetch import read_windows
from strandline.snapshot.spark.options import parse
from strandline.snapshot.spark.pieces import Window
from strandline.snapshot.spark.plan import plan
from strandline.snapshot.spark.source import SCHEMA, arrow_schema
from strandline.snapshot.storage import Storage
from tests.spark.stored_cluster import StoredCluster, StoredRecord

Place = tuple[str, int]
TOPICS = "orders,clicks,visits"


def read(storage: Storage, options: dict[str, str], cores: int = 2) -> dict[Place, list[StoredRecord]]:
    return records_of(storage, plan(storage, parse({"url": storage.url, **options}), cores))


def readable(cluster: StoredCluster, *topics: str) -> dict[Place, list[StoredRecord]]:
    """What there is to read of some topics, or of all."""
    return {
        place: partition.readable
        for place, partition in cluster.partitions.items()
        if place[0] in (topics or cluster.topics) and partition.readable
    }


def records_of(storage: Storage, tasks: Sequence[Sequence[Window]]) -> dict[Place, list[StoredRecord]]:
    found: dict[Place, list[StoredRecord]] = {}
    for windows in tasks:
        for batch in read_windows(storage, windows, arrow_schema(SCHEMA)):
            for row in batch.to_pylist():
                found.setdefault((row["topic"], row["partition"]), []).append(
                    StoredRecord(
                        row["offset"],
                        round(row["timestamp"].astimezone(UTC).timestamp() * 1000),
                        row["key"],
                        row["value"],
                        row["leader_epoch"],
                    )
                )
    return {place: sorted(records) for place, records in found.items()}
