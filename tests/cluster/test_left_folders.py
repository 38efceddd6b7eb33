"""Folders for unfinished files of processes of views: those of processes that are gone go, and no others."""

from __future__ import annotations

import os
import random
from pathlib import Path

from strandline.cluster.view_worker.store_thread import StoreThread
from strandline.node.objectstore.opening import StorePlace
from strandline.node.objectstore.unfinished_files import PARTIAL
from strandline.node.raft.disk import RealDisk


def opened(root: Path, owner: str) -> StoreThread:
    store = StoreThread(StorePlace(str(root), {}, owner))
    store.put(f"some/{random.getrandbits(32)}", [b"x"])
    return store


def left(root: Path, owner: str, hours: float = 2) -> None:
    """What a process leaves that began some time ago."""
    for path in (root / PARTIAL / owner, root / PARTIAL / f"{owner}.apart" / "07"):
        path.mkdir(parents=True)
    (root / PARTIAL / f"{owner}.apart" / "07" / "12").write_bytes(b"unfinished")
    lock = root / PARTIAL / f"{owner}.lock"
    lock.touch()
    began = lock.stat().st_mtime - hours * 3600
    os.utime(lock, (began, began))


def test_folders_of_processes_that_are_gone_go_with_the_start_of_another_of_the_node(tmp_path: Path) -> None:
    (tmp_path / PARTIAL).mkdir()
    kept = ["node-1", "node-2-17-live", "node-1-19-live", "node-1-20-next", "node-1-worker"]
    for owner in (*kept, "node-1-17-live", "node-1-18-next"):
        left(tmp_path, owner, hours=0.9 if owner == "node-1-19-live" else 2)
    release = RealDisk().lock(str(tmp_path / PARTIAL / "node-1-20-next.lock"))
    old = os.stat(tmp_path / PARTIAL / "node-1-20-next.lock").st_mtime
    assert old < (tmp_path / PARTIAL).stat().st_mtime - 3600, "to lock it makes it no younger"
    store = opened(tmp_path, "node-1-21-live")
    there = {name.partition(".")[0] for name in os.listdir(tmp_path / PARTIAL)}
    assert there == {*kept, "node-1-21-live"}
    store.put("some/more", [b"y"])
    assert bytes(store.get("some/more")) == b"y"
    release()
    store.close()
