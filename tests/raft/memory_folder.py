"""Data folders for tests that need one and have no node."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from strandline.node.raft.data_folder import Folder
from tests.simulation.disk import SimDisk


def memory_folder(node: int, cluster: str = "blue", seed: int = 0) -> Folder:
    """A new folder of a node, on a disk of its own; another seed gives another folder."""
    disk = SimDisk(random.Random(0))
    disk.mkdir("/data")
    return Folder.open(
        disk, "/data", node, cluster, random.Random(f"{node} {seed}"), run_at_once, logged=False
    )


def run_at_once(job: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None:
    """Run a disk job where it is asked for."""
    try:
        result = job()
    except OSError as error:
        done(None, error)
    else:
        done(result, None)


def store(folder: Folder) -> None:
    """Write what the folder is to hold. Raises the disk's error."""
    errors: list[Exception | None] = []
    folder.store(errors.append)
    [error] = errors
    if error is not None:
        raise error
