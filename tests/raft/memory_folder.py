"""Data folders for tests that need one and have no node."""

from __future__ import annotations

import random

from strandline.node.raft.data_folder import Folder
from tests.simulation.disk import SimDisk


def memory_folder(node: int, cluster: str = "blue", seed: int = 0) -> Folder:
    """A new folder of a node, on a disk of its own; another seed gives another folder."""
    disk = SimDisk(random.Random(0))
    disk.mkdir("/data")
    return Folder.open(disk, "/data", node, cluster, random.Random(f"{node} {seed}"), logged=False)
