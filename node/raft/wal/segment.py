"""The disk operations on a log's segments, each in the order that makes a crash between any two harmless.

Used by opening (wal_recovery) and by the running log (wal); docs/wal.md argues why each order is right.
"""

from __future__ import annotations

import errno
import re
from typing import Final

from strandline.node.raft.disk import Disk, DiskFile
from strandline.node.raft.wal.format import RecordKind, SegmentHeader, WalError, encode_number

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NAME: Final = re.compile(r"wal-(\d{16})\.log")
_STARTED: Final = "wal.started"
_TEMPORARY: Final = re.compile(r"wal-\d{16}\.tmp")


class WalFailed(WalError):
    """The disk failed, or the log is closed: nothing more is written; records not synced may be lost."""


def segment_path(folder: str, sequence: int) -> str:
    """Path of segment `sequence`."""
    return f"{folder}/wal-{sequence:016d}.log"


def list_segments(disk: Disk, folder: str) -> tuple[list[int], list[str]]:
    """The numbers of the segments in a folder, ascending, and the paths of segments never finished."""
    names = disk.listdir(folder)
    numbers = sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))
    return numbers, [f"{folder}/{name}" for name in names if _TEMPORARY.fullmatch(name)]


def was_started(disk: Disk, folder: str) -> bool:
    """Whether the folder ever held a log, and so must hold one now."""
    return disk.exists(f"{folder}/{_STARTED}")


def note_started(disk: Disk, folder: str) -> None:
    """Remember durably that the folder holds a log: losing all of its files is not the same as being new."""
    if not was_started(disk, folder):
        disk.open(f"{folder}/{_STARTED}", create=True).close()
        disk.sync_dir(folder)


def sync(file: DiskFile) -> None:
    """Call `datasync`; raises WalFailed, which no caller may answer by a retry: the pages may be gone."""
    try:
        file.datasync()
    except OSError as error:
        raise _sync_failed(error) from error


def _sync_failed(error: OSError) -> WalFailed:
    return WalFailed(f"fdatasync failed ({error}): what it should have kept may be lost")


def write_synced(file: DiskFile, data: bytes, offset: int) -> None:
    """Write at an offset, durably; raises WalFailed if the sync fails.

    One call where there is one: between two of them the thread gives the interpreter away, and has to wait
    for the event loop to get it back.
    """
    try:
        if file.overwrite_durably(data, offset):
            return
    except OSError as error:
        raise _sync_failed(error) from error
    file.pwrite(data, offset)
    sync(file)


def create_segment(disk: Disk, folder: str, header: SegmentHeader) -> DiskFile:
    """Make a segment: under its name there is, at every moment, nothing or a whole, durable, empty segment.

    Raises OSError with one of NO_SPACE, after removing its file, when the disk is full.
    """
    path = segment_path(folder, header.sequence)
    temporary = path.removesuffix(".log") + ".tmp"
    file = disk.open(temporary, create=True)
    try:
        file.preallocate(header.size)
        file.pwrite(header.encode(), 0)
        sync(file)
        disk.rename(temporary, path)
    except OSError as error:
        file.close()
        if error.errno in NO_SPACE:
            disk.unlink(temporary)
        raise
    disk.sync_dir(folder)
    return file


def seal_segment(file: DiskFile, seed: int, offset: int) -> None:
    """Say durably that a later segment exists; that segment must be durable already."""
    file.pwrite(encode_number(seed, offset, RecordKind.SEAL, offset), offset)
    sync(file)


def mark_synced(file: DiskFile, seed: int, offset: int) -> None:
    """Say, not yet durably, that all bytes before `offset` are synced; they must be."""
    file.pwrite(encode_number(seed, offset, RecordKind.MARK, offset), offset)


def drop_segments(disk: Disk, folder: str, upto: int) -> None:
    """Remove every segment numbered below `upto`; a TRIM saying so must be durable."""
    doomed = [number for number in list_segments(disk, folder)[0] if number < upto]
    for number in doomed:
        disk.unlink(segment_path(folder, number))
    if doomed:
        disk.sync_dir(folder)
