"""What lies in the object storage, counted by asking it and nobody else."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import obstore
from obstore.store import from_url

from tests.programs.failover.cluster.stores import Storage

LEVEL_ZERO, LEVEL_ONE, CHECKPOINTS = "l0", "l1", "snapshots"


class Held(NamedTuple):
    """Objects below one prefix, and their bytes together."""

    objects: int
    bytes: int


class Stored(NamedTuple):
    """Everything there is."""

    level_zero: Held
    level_one: Held
    checkpoints: Held
    others: Held
    checkpoint_groups: Counter[int]
    """Documents by the group they are of."""

    @property
    def bytes(self) -> int:
        return self.level_zero.bytes + self.level_one.bytes + self.checkpoints.bytes + self.others.bytes


def stored(storage: Storage) -> Stored:
    """One listing of it all; blocking."""
    sizes = _bucket(storage) if "://" in storage.url else _folder(Path(storage.url))
    counts: Counter[str] = Counter()
    amounts: Counter[str] = Counter()
    groups: Counter[int] = Counter()
    for name, size in sizes:
        level = name.partition("/")[0]
        level = level if level in (LEVEL_ZERO, LEVEL_ONE, CHECKPOINTS) else ""
        counts[level] += 1
        amounts[level] += size
        if level == CHECKPOINTS:
            groups[int(name.split("/")[2])] += 1
    held = [Held(counts[level], amounts[level]) for level in (LEVEL_ZERO, LEVEL_ONE, CHECKPOINTS, "")]
    zero, one, checkpoints, others = held
    return Stored(zero, one, checkpoints, others, groups)


def disk_bytes(folder: Path) -> int:
    """What a folder takes on its disk; blocking."""
    return sum(size for _, size in _folder(folder, hidden=True))


def _folder(folder: Path, *, hidden: bool = False) -> list[tuple[str, int]]:
    """Files by their path below the folder, come and go as they may; names with a dot are the store's."""
    found = []
    for path, folders, files in os.walk(folder):
        if not hidden:
            folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if not hidden and name.startswith("."):
                continue
            try:
                status = os.stat(os.path.join(path, name))
            except FileNotFoundError:
                continue
            size = status.st_blocks * 512 if hidden else status.st_size
            found.append((os.path.relpath(os.path.join(path, name), folder), size))
    return found


def _bucket(storage: Storage) -> list[tuple[str, int]]:
    store = from_url(  # type: ignore[call-overload]
        storage.url, config=storage.options, client_options={"allow_http": True}
    )
    return [(meta["path"], meta["size"]) for chunk in obstore.list(store) for meta in chunk]
