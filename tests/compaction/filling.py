"""A partition that fills its local log, and a look at that log's manifest and ends."""

from __future__ import annotations

from strandline.node.compaction.manifest import Manifest
from strandline.node.compaction.removal_minimum import Ends
from strandline.node.compaction.replica_log import ReplicaLog
from tests.compaction.logs import Plan
from tests.compaction.upkeep_harness import Replica


def fill(replica: Replica, count: int, keys: int = 5, start: int = 0) -> None:
    """Batches of one record each, in objects of ten."""
    for each in range(start, start + count):
        replica.put(Plan(((b"key %d" % (each % keys), b"value %d" % each, each),)))
        if each % 10 == 9:
            replica.lift()
    replica.lift()


def manifest_of(log: ReplicaLog) -> Manifest:
    assert log.log is not None, "it is open"
    return log.log.manifest


def ends_of(log: ReplicaLog) -> Ends | None:
    return log.ends(log.replica.machine)
