"""The folders of local logs in a node's data folder. All of it blocks, and raises OSError."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Final

from strandline.node.raft.disk import Disk

MANIFEST: Final = "manifest"
"""Name of the file that makes a folder a log."""
_TOPIC_ID: Final = re.compile("[0-9a-f]{32}")


def log_folder(data_folder: str, topic_id: bytes, partition: int) -> str:
    """`<data>/compacted/<topic id, 32 hex>/<partition>`."""
    return os.path.join(data_folder, "compacted", topic_id.hex(), str(partition))


def remove_log(disk: Disk, folder: str) -> None:
    """Remove a log with its folder; fine if there is none. Raises OSError.

    The manifest goes first, durably: a crash half-way leaves files that no log can be opened from.
    """
    if not disk.exists(folder):
        return
    names = disk.listdir(folder)
    if MANIFEST in names:
        disk.unlink(os.path.join(folder, MANIFEST))
        disk.sync_dir(folder)
    for name in names:
        if name != MANIFEST:
            disk.unlink(os.path.join(folder, name))
    disk.rmdir(folder)
    # Of the topic's folder its last partition's removal takes the rest.
    with contextlib.suppress(OSError):
        disk.rmdir(os.path.dirname(folder))


def stored_logs(disk: Disk, data_folder: str) -> dict[tuple[bytes, int], str]:
    """All logs' folders, by topic id and partition. Raises OSError."""
    found: dict[tuple[bytes, int], str] = {}
    for folder, names in _topic_folders(disk, data_folder):
        for number in filter(str.isdecimal, names):
            found[bytes.fromhex(os.path.basename(folder)), int(number)] = os.path.join(folder, number)
    return found


def remove_empty_folders(disk: Disk, data_folder: str) -> None:
    """Remove the folders of topics that a crash left without a log. Raises OSError."""
    for folder, names in _topic_folders(disk, data_folder):
        if not names:
            disk.rmdir(folder)


def _topic_folders(disk: Disk, data_folder: str) -> Iterator[tuple[str, list[str]]]:
    """The folder of each topic, and the names in it."""
    root = os.path.join(data_folder, "compacted")
    # What else is there is not ours, such as the lost+found of a disk that is mounted there.
    for topic in filter(_TOPIC_ID.fullmatch, disk.listdir(root) if disk.exists(root) else ()):
        folder = os.path.join(root, topic)
        yield folder, disk.listdir(folder)
