"""A stored cluster that went on for hours: reconciled, retained, collected, a topic deleted.

It begins as `stored_cluster` does. Then all leases end, everything is reconciled and collected, as nodes
would: level zero by M, level one by what `removable()` gives. One more round is written after that. So most
objects that logs and old checkpoints name are gone, and rightly so.
"""

from __future__ import annotations

from pathlib import Path

from strandline.statemachine.controller.controller_commands import DeleteTopic
from strandline.statemachine.object_names import parse_object_name
from strandline.statemachine.partition.level_one import level_one_name
from strandline.statemachine.partition.partition_commands import AdvanceEpoch, ForgetRemoved, SetStartOffset
from tests.spark.stored_cluster import LEASE_MS, ROUND_MS, StoredCluster, StoredPartition, build_cluster


def maximum(cluster: StoredCluster) -> int:
    """M, as a node counts it that knows everything."""
    collectable = [partition.machine.max_collectable_epoch for partition in cluster.partitions.values()]
    return min([cluster.epoch - 1, *collectable])


def collect(cluster: StoredCluster) -> list[str]:
    """Delete all that may be deleted; returns the names."""
    gone = []
    for path in sorted((cluster.root / "l0").rglob("*")):
        name = path.relative_to(cluster.root).as_posix()
        if path.is_file() and parse_object_name(name).epoch <= maximum(cluster):
            gone.append(name)
    for partition in cluster.partitions.values():
        removable = partition.machine.removable()
        gone += [
            level_one_name(partition.topic_id, partition.number, one.term, one.unique) for one in removable
        ]
        if removable:
            partition.execute(ForgetRemoved([one.unique for one in removable]))
    for name in gone:
        (cluster.root / name).unlink()
    return gone


def advance(cluster: StoredCluster, epoch: int) -> None:
    """The cluster epoch, and every partition's windows up to it: none holds M back by being idle."""
    for step in (epoch - 1, epoch):
        cluster.advance(step)
        for partition in cluster.partitions.values():
            partition.execute(AdvanceEpoch(partition.fence(step)))


def reconcile_all(cluster: StoredCluster) -> None:
    for partition in cluster.partitions.values():
        partition.reconcile(len(partition.machine.extents))


def write(cluster: StoredCluster, *partitions: StoredPartition, count: int = 3) -> str:
    """One object with a batch of each partition."""
    return cluster.upload(
        *(
            partition.batch([f"{cluster.epoch}-{n}".encode() for n in range(count)])
            for partition in partitions
        )
    )


def build_collected(root: Path) -> StoredCluster:
    """Write such a cluster's storage below `root`, which may not exist yet."""
    cluster = build_cluster(root)
    cluster.create_topic("brief", 1)
    partitions = list(cluster.partitions.values())
    write(cluster, *partitions)
    reconcile_all(cluster)
    advance(cluster, 20)
    cluster.now += LEASE_MS
    whole = cluster.partitions["visits", 1]
    whole.execute(SetStartOffset(list(whole.machine.level_one)[1].base_offset + 2))
    collect(cluster)
    cluster.checkpoint()

    cluster.advance(22)
    held, both = cluster.partitions["orders", 0], cluster.partitions["visits", 0]
    write(cluster, held)
    cluster.advance(24)
    write(cluster, both)
    both.reconcile(1)
    both.merge(0, 2)
    cluster.control(DeleteTopic(cluster.topics.pop("brief").topic_id))
    del cluster.partitions["brief", 0]
    cluster.now += ROUND_MS
    collect(cluster)
    cluster.checkpoint()
    return cluster
