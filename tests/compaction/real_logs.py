"""Local logs on the disks of real nodes."""

from __future__ import annotations

from pathlib import Path

from strandline.node.compaction.local_log import LocalLog
from strandline.node.compaction.log_folders import MANIFEST, stored_logs
from strandline.node.compaction.manifest import LogIdentity, Manifest, parsed
from strandline.node.raft.disk import RealDisk
from tests.cluster.real_cluster import RealCluster
from tests.compaction.logs import Written, read

SETTINGS = (
    "level_one.reconcile_seconds=1",
    "compaction.ingest_seconds=1",
    "compaction.ingest_bytes=64KiB",
)
"""Of nodes that fill and clean soon."""


def contents(log: LocalLog) -> list[Written]:
    """Everything in a log."""
    batches = []
    for one in log.view.segments:
        for block in one.footer.blocks:
            data, spans = one.batches(block)
            batches += [data[at.position - block.position :][: at.length] for at in spans]
    return read(batches)


def manifests(cluster: RealCluster) -> dict[int, Manifest]:
    """The manifest of partition 0's local log on each node, as far as there is one; it is only looked at."""
    found = {}
    for node, described in cluster.description.nodes.items():
        for (topic_id, number), folder in stored_logs(RealDisk(), str(described.data)).items():
            path = Path(folder) / MANIFEST
            if number == 0 and path.exists():
                identity = LogIdentity(cluster.description.cluster, topic_id, number)
                found[node] = parsed(path.read_bytes(), identity)
    return found
