"""The node, as snapshots need it."""

from __future__ import annotations

from typing import Protocol

from strandline.node.raft.rules.group_host import GroupHost
from strandline.node.raft.snapshots.store import SnapshotStore


class SnapshotHost(GroupHost, Protocol):
    """A node with a store of snapshots."""

    snapshots: SnapshotStore
