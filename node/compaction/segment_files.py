"""Files of a local log's segments: their names, writing one aside, opening one.

A segment's file is made under a name of its own, `<number>.<maker>.part`, and gets its final name from the
log that it is for. So a process that was to make one and is late (its node was killed, and the next one runs)
leaves a file that no log names, and never writes to one that a log has.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from typing import Final

from strandline.node.compaction.manifest import LogIdentity, Segment
from strandline.node.objectstore.disk_errors import cure, describe
from strandline.node.raft.disk import Disk, DiskFile
from strandline.snapshot.level_one_format import (
    Block,
    LevelOneFooter,
    StoredSpan,
    batches_of,
    footer_bytes,
    parse_footer,
    verify_block,
)
from strandline.snapshot.object_frame import TAIL, BadObject, Buffer
from strandline.statemachine.partition.level_one import UNIQUE_BYTES, level_one_name

SUFFIX: Final = ".seg"
PART: Final = ".part"
TERM: Final = 0
"""Of a segment as a level-one object: no leader's."""

RESERVE_PART: Final = 20
"""Local logs leave a twentieth of their disk free when they grow, and MOST_RESERVE at most."""
MOST_RESERVE: Final = 1 << 30
"""Bytes: the write-ahead log's 16 files of 64 MiB."""

_LOST: Final = {errno.EIO, errno.EBADMSG, errno.EUCLEAN}
"""Of a read: a bad sector, or the file system's own checksum does not fit."""

_BRING_BACK: Final = "see whether the disk of node.data is mounted; the node goes on by itself"


class LocalLogDamaged(Exception):
    """The log is missing or not what was written: it has to be reset. Says what is wrong."""


@contextlib.contextmanager
def given_back(path: str) -> Iterator[None]:
    """Raise LocalLogDamaged where a disk does not give back the bytes that it took.

    They are lost, as after damage, while the disk may be well elsewhere: the log is made again there. To wait
    for them would hold removal back for good.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _LOST:
            raise
        raise LocalLogDamaged(f"{path} cannot be read: {error.strerror}") from error


def disk_reason(error: OSError, folder: str) -> str:
    """One line: the error of the disk under a log's folder, and its cure."""
    what = describe(error) if error.filename else f"{describe(error)} ({folder})"
    known = _BRING_BACK if error.errno == errno.ENOENT else cure(error)
    return f"{what}: {known or f'if that stays, remove {folder}: the log is then made of level one again'}"


def segment_unique(number: int) -> bytes:
    """Unique part of a segment's identity as a level-one object, made from the segment's number."""
    return number.to_bytes(UNIQUE_BYTES, "big")


def file_name(number: int) -> str:
    """Name of a segment's file within its log's folder."""
    return f"{number:020d}{SUFFIX}"


def made_name(number: int, maker: str) -> str:
    """Name of the file while it is made; `maker` is letters, digits and dashes, another for each open log."""
    return f"{number:020d}.{maker}{PART}"


def number_of(name: str) -> int:
    """The number of a segment's file, also of one that is being made; -1 for another name."""
    number = name.partition(".")[0]
    return int(number) if number.isdecimal() else -1


def segment_name(identity: LogIdentity, number: int) -> str:
    """Name of a segment as a level-one object, which is part of its bytes."""
    return level_one_name(identity.topic_id, identity.partition, TERM, segment_unique(number))


def keep_reserve(disk: Disk, folder: str, size: int) -> None:
    """Raise an OSError if a segment of `size` bytes would take what the write-ahead log may need.

    Only for what makes a log larger: cleaning makes it smaller, and may use the reserve for that. Raises
    LocalLogDamaged if the folder is gone.
    """
    try:
        usage = disk.usage(folder)
    except FileNotFoundError:
        raise _gone(folder) from None
    if usage is None:
        return
    reserve = min(usage.total // RESERVE_PART, MOST_RESERVE)
    if usage.free - size < reserve:
        kept = f"but for {reserve >> 20} MiB, which are left to the write-ahead log"
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} {kept}", folder)


def write_made(disk: Disk, folder: str, number: int, maker: str, parts: Sequence[Buffer]) -> None:
    """Make the bytes of a segment durable under the name of its making.

    Only `LocalLog.replace` makes a segment of it. Raises OSError, and leaves nothing; LocalLogDamaged if the
    folder is gone, which an open log does not notice by itself.
    """
    try:
        write_new(disk, os.path.join(folder, made_name(number, maker)), parts)
    except FileNotFoundError:
        raise _gone(folder) from None


def _gone(folder: str) -> LocalLogDamaged:
    return LocalLogDamaged(f"{folder} is not there any more")


def write_new(disk: Disk, path: str, parts: Sequence[Buffer]) -> None:
    """A file in place of any other of that name; durable but for the name. Raises OSError, leaves nothing."""
    discard(disk, path)
    file = disk.open(path, create=True)
    try:
        file.write_durably(parts)
    except OSError:
        discard(disk, path)
        raise
    finally:
        file.close()


def discard(disk: Disk, path: str) -> None:
    """Remove a file if the disk lets us: what stays is removed by the next open."""
    with contextlib.suppress(OSError):
        disk.unlink(path)


class OpenSegment:
    """A segment with its index, open as long as a view has it."""

    def __init__(self, segment: Segment, path: str, footer: LevelOneFooter, file: DiskFile) -> None:
        self.segment = segment
        """As it was opened: what later rounds learn of its records only the manifest says."""
        self.footer = footer
        self._path = path
        self._file = file
        self._views = 0

    def read(self, block: Block) -> bytes:
        """The batches of one block; raises BadObject or LocalLogDamaged where the file is damaged, and
        OSError."""
        with given_back(self._path):
            data = self._file.pread(block.length, block.position)
        verify_block(self._path, block, data)
        return data

    def read_run(self, blocks: Sequence[Block]) -> bytes:
        """The batches of blocks that lie one after the other, read at once; raises as `read`."""
        start = blocks[0].position
        with given_back(self._path):
            data = self._file.pread(blocks[-1].end - start, start)
        view = memoryview(data)
        for block in blocks:
            verify_block(self._path, block, view[block.position - start : block.end - start])
        return data

    def batches(self, block: Block) -> tuple[bytes, list[StoredSpan]]:
        """The bytes of one block, and where its batches lie in the file; raises as `read`."""
        data = self.read(block)
        return data, list(batches_of(self._path, block, data, holes=True))

    def hold(self) -> None:
        self._views += 1

    def release(self) -> None:
        self._views -= 1
        if not self._views:
            self._file.close()


def open_segment(disk: Disk, folder: str, identity: LogIdentity, segment: Segment) -> OpenSegment:
    """The file of a segment, its size and its index checked; raises LocalLogDamaged, and OSError."""
    path = os.path.join(folder, file_name(segment.number))
    name = segment_name(identity, segment.number)
    try:
        file = disk.open(path)
    except FileNotFoundError:
        raise LocalLogDamaged(f"{path} is not there") from None
    try:
        size = file.size()
        if size != segment.size:
            raise LocalLogDamaged(f"{path} has {size} bytes in place of {segment.size}")
        with given_back(path):
            tail = file.pread(TAIL.size, max(size - TAIL.size, 0))
            length = footer_bytes(name, tail, size)
            index = file.pread(length, size - length)
        footer = parse_footer(name, index, size)
    except BadObject as error:
        file.close()
        raise LocalLogDamaged(f"{path}: {error.reason}") from error
    except BaseException:
        file.close()
        raise
    if (footer.base_offset, footer.end_offset) != (segment.base_offset, segment.end_offset):
        file.close()
        raise LocalLogDamaged(
            f"{path} has offsets {footer.base_offset} to {footer.end_offset}, not {segment}"
        )
    return OpenSegment(segment, path, footer, file)
