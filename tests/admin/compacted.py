"""Compacted partitions of a small node: their local logs, and what it knows as leader."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from strandline.node.compaction.manifest import LogIdentity, Manifest, Segment
from strandline.node.compaction.removal_leader import Copies, Led
from strandline.node.compaction.removal_minimum import LEVEL_ONE, Ends
from strandline.node.raft.configuration import Configuration
from tests.admin.small_node import FakePartition, SmallNode


class PlayedLog(SimpleNamespace):
    """What the HTTP API reads of a replica's log."""

    def __str__(self) -> str:
        return f"{self.replica.topic}-{self.replica.number}"


def local_log(replica: FakePartition, *, opened: bool = True, problem: str | None = None) -> Any:
    """A replica's log of one segment."""
    identity = LogIdentity("c", b"t" * 16, replica.number)
    segment = Segment(3, 10, 60, 500, 7, -1, -1, 0)
    ends = Ends(40, 60) if opened else None
    manifest = Manifest(identity, 1, 0, 0, 10, 60, 4, (segment,))
    return PlayedLog(
        replica=replica,
        ends=lambda machine: ends,
        log=SimpleNamespace(manifest=manifest) if opened else None,
        resets=2,
        reset_for="a file has 3 bytes in place of 4",
        reset_at=None,
        problems=SimpleNamespace(first=problem, lasting=problem is not None),
    )


def lead(node: SmallNode, replica: FakePartition) -> None:
    """Let this node lead a partition with two other members, of which one has not reported."""
    now = node.loop.time()
    led = Led(
        replica.leader_epoch, tombstones_held={3: now - 60}, markers_held={LEVEL_ONE: now - 90, 3: now - 5}
    )
    node.removal.leading[replica.group.id] = led
    configuration = Configuration(5, (1, 2), (3,))
    known = {1: Ends(40, 60), 2: Ends(30, 50)}
    node.removal.known[replica.group.id] = Copies(configuration, known, Ends(20, 25))
