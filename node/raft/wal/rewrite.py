"""Rewriting the end of a log in place, with a second copy of it on the disk meanwhile.

Opening must write records again that may be durable and acknowledged already (wal_recovery says why). A power
cut can leave garbage in the very sector that is being written, so such records are first copied to a file of
their own, and a rewrite that was cut short is finished from that copy.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from strandline.node.raft.disk import Disk, DiskFile
from strandline.node.raft.wal.format import decode_header
from strandline.node.raft.wal.segment import segment_path, sync

_COPY: Final = "wal.copy"
_HEAD: Final = struct.Struct("<8sIIQQ")  # magic, checksum of what follows it, seed, segment, offset
_MAGIC: Final = b"STRCOPY\x01"
_CHECKED_FROM: Final = 12


def rewrite(
    disk: Disk, folder: str, file: DiskFile, data: bytes, *, seed: int, sequence: int, offset: int
) -> None:
    """Write `data` again at `offset` of segment `sequence`, and sync it, so that no crash can harm it."""
    path = f"{folder}/{_COPY}"
    if disk.exists(path):
        disk.unlink(path)
    copy = disk.open(path, create=True)
    try:
        body = _HEAD.pack(_MAGIC, 0, seed, sequence, offset)[_CHECKED_FROM:] + data
        copy.pwrite(_MAGIC + struct.pack("<I", crc32c(body)) + body, 0)
        sync(copy)
    finally:
        copy.close()
    disk.sync_dir(folder)
    file.pwrite(data, offset)
    sync(file)
    disk.unlink(path)


def finish_rewrite(disk: Disk, folder: str) -> None:
    """Do again a rewrite that a crash may have cut short. One that is over is done twice without harm: the
    log never changes the bytes it was about."""
    path = f"{folder}/{_COPY}"
    if not disk.exists(path):
        return
    raw = disk.read(path)
    # A copy that is not whole was never synced, and the rewrite not begun.
    if len(raw) > _HEAD.size:
        magic, checksum, seed, sequence, offset = _HEAD.unpack_from(raw)
        segment = segment_path(folder, sequence)
        if (
            magic == _MAGIC
            and checksum == crc32c(raw[_CHECKED_FROM:])
            and disk.exists(segment)
            and decode_header(segment, disk.read(segment)).seed() == seed
        ):
            file = disk.open(segment)
            file.pwrite(raw[_HEAD.size :], offset)
            sync(file)
            file.close()
    disk.unlink(path)
