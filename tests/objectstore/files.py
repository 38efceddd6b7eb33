"""A local store on real files whose objects can be sent, for tests of what is done with them."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strandline.node.objectstore.local_store import LocalStore
from strandline.node.objectstore.object_file import FileRange, ObjectFile
from strandline.node.raft.disk import RealDisk


def opened_store(folder: Path) -> LocalStore:
    """A store in a folder, on the running loop."""
    return LocalStore.open(
        RealDisk(),
        str(folder),
        owner="node-1",
        loop=asyncio.get_running_loop(),
        executor=ThreadPoolExecutor(4),
    )


async def stored_file(store: LocalStore, key: str, data: bytes) -> ObjectFile:
    """An object of these bytes, held open; skips the test where the system cannot send files."""
    await store.put(key, [data])
    file = await store.open_file(key)
    if file is None:
        pytest.skip("the system cannot say what of a file is in memory")
    return file


def content(data: FileRange) -> bytes:
    """The bytes of a range, read now."""
    return os.pread(data.file.fileno(), data.length, data.start)
