"""One replica's own log of a compacted partition, on its disk: files that never change, and a manifest.

A change writes its segments aside, syncs and renames them, then replaces the manifest in the same way. So a
crash at any step leaves the log of before or of after, and files that no manifest names, which the next open
removes. Whatever is wrong with a log, it is never mended: it was made of level one, and is made of it again.

All of it blocks, and belongs to one process, which holds the node's lock file.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

from strandline.node.compaction.manifest import (
    LogIdentity,
    Manifest,
    ManifestDamaged,
    Segment,
    encoded,
    parsed,
)
from strandline.node.raft.disk import Disk, DiskFile
from strandline.snapshot.level_one_format import (
    Block,
    EncodedObject,
    LevelOneFooter,
    footer_bytes,
    parse_footer,
    verify_block,
)
from strandline.snapshot.object_frame import TAIL, BadObject, Buffer
from strandline.statemachine.partition.level_one import UNIQUE_BYTES, level_one_name

MANIFEST: Final = "manifest"
SUFFIX: Final = ".seg"
_PART: Final = ".part"
_TERM: Final = 0
"""Of a segment as a level-one object: no leader's."""


class LocalLogDamaged(Exception):
    """The log is missing or not what was written: it has to be reset. Says what is wrong."""


class LocalLogUnknown(Exception):
    """An error while the manifest was being replaced: only the next open shows which one the disk has."""


def log_folder(data_folder: str, topic_id: bytes, partition: int) -> str:
    """`<data>/compacted/<topic id, 32 hex>/<partition>`."""
    return os.path.join(data_folder, "compacted", topic_id.hex(), str(partition))


def segment_unique(number: int) -> bytes:
    """Unique part of a segment's identity as a level-one object, made from the segment's number."""
    return number.to_bytes(UNIQUE_BYTES, "big")


class OpenSegment:
    """A segment with its index, open as long as a view has it."""

    def __init__(self, segment: Segment, name: str, footer: LevelOneFooter, file: DiskFile) -> None:
        self.segment = segment
        self.footer = footer
        self._name = name
        self._file = file
        self._views = 0

    def read(self, block: Block) -> bytes:
        """The batches of one block; raises BadObject where the file is damaged, and OSError."""
        data = self._file.pread(block.length, block.position)
        verify_block(self._name, block, data)
        return data

    def hold(self) -> None:
        self._views += 1

    def release(self) -> None:
        self._views -= 1
        if not self._views:
            self._file.close()


class View:
    """The log at one moment. What a reader holds stays readable, whatever is removed meanwhile."""

    def __init__(self, manifest: Manifest, segments: Sequence[OpenSegment]) -> None:
        self.manifest = manifest
        self.segments = tuple(segments)
        self._holders = 1
        for one in segments:
            one.hold()

    def segment_at(self, offset: int) -> OpenSegment | None:
        """The segment that an offset is in; None above and below the log."""
        number = bisect_right(self.segments, offset, key=lambda one: one.segment.base_offset) - 1
        if number < 0 or offset >= self.segments[number].segment.end_offset:
            return None
        return self.segments[number]

    def hold(self) -> View:
        """For a reader, which must `release` it."""
        assert self._holders, "a view that was let go of is gone"
        self._holders += 1
        return self

    def release(self) -> None:
        self._holders -= 1
        if not self._holders:
            for one in self.segments:
                one.release()


class LocalLog:
    """An open log. `view` is what readers take hold of; every change puts another in its place."""

    def __init__(self, disk: Disk, folder: str, manifest: Manifest, segments: Sequence[OpenSegment]) -> None:
        """See `open_log` and `reset_log`."""
        self._disk = disk
        self._folder = folder
        self._next_number = manifest.next_number
        self._unknown = False
        self.view = View(manifest, segments)

    @property
    def manifest(self) -> Manifest:
        """As it is on disk, durably."""
        return self.view.manifest

    def next_number(self) -> int:
        """A number for a segment that is about to be made, never given before."""
        self._next_number += 1
        return self._next_number - 1

    def write_segment(self, number: int, made: EncodedObject) -> None:
        """Make a segment's file durable, under its name; raises OSError, and leaves nothing then."""
        self._usable()
        _write_durably(self._disk, self._path(_file_name(number)), made.parts)
        self._disk.sync_dir(self._folder)

    def replace(self, segments: Sequence[Segment], clean_end: int) -> None:
        """Let the log be these segments, of those it has and those that were written for it.

        Durable when it returns. Raises OSError if nothing has changed: then what was written is removed.
        Raises LocalLogUnknown if the disk does not say; the log is not to be used any more. LocalLogDamaged
        if a segment that was written is not there as it should be. ValueError for what no log is like.
        """
        self._usable()
        old = {one.segment.number: one for one in self.view.segments}
        log_end = segments[-1].end_offset if segments else self.manifest.log_end
        manifest = self.manifest._replace(
            segments=tuple(segments), clean_end=clean_end, log_end=log_end, next_number=self._next_number
        )
        data = encoded(manifest)
        opened: list[OpenSegment] = []
        try:
            for one in segments:
                known = old.get(one.number)
                if known is None:
                    known = _open_segment(self._disk, self._folder, manifest.identity, one)
                opened.append(known)
            self._replace_manifest(data)
        except OSError:
            self._remove(one.number for one in segments if one.number not in old)
            raise
        before, self.view = self.view, View(manifest, opened)
        before.release()
        self._remove(old.keys() - {one.number for one in segments})

    def close(self) -> None:
        """No more changes; files are closed once the readers are through."""
        self._unknown = True
        self.view.release()

    def _replace_manifest(self, data: bytes) -> None:
        path = self._path(MANIFEST)
        _write_aside(self._disk, path, [data])
        self._unknown = True
        try:
            self._disk.rename(path + _PART, path)
            self._disk.sync_dir(self._folder)
        except OSError as error:
            raise LocalLogUnknown(f"{path}: {error}") from error
        self._unknown = False

    def _usable(self) -> None:
        if self._unknown:
            raise LocalLogUnknown(f"{self._folder}: it is closed, or an earlier change of it failed half-way")

    def _remove(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            # What stays is removed by the next open.
            with contextlib.suppress(OSError):
                self._disk.unlink(self._path(_file_name(number)))

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)


def open_log(disk: Disk, folder: str, identity: LogIdentity) -> LocalLog:
    """Open a log, and remove what its manifest does not name. Raises LocalLogDamaged, and OSError."""
    if not disk.exists(os.path.join(folder, MANIFEST)):
        raise LocalLogDamaged(f"{folder} has no manifest")
    # A process that was killed may leave names that are seen and not durable; what is seen is relied on.
    disk.sync_dir(folder)
    try:
        manifest = parsed(disk.read(os.path.join(folder, MANIFEST)), identity)
    except ManifestDamaged as error:
        raise LocalLogDamaged(f"the manifest in {folder}: {error}") from error
    opened: list[OpenSegment] = []
    try:
        for one in manifest.segments:
            opened.append(_open_segment(disk, folder, identity, one))
        _sweep(disk, folder, manifest)
    except BaseException:
        View(manifest, opened).release()
        raise
    return LocalLog(disk, folder, manifest, opened)


def reset_log(
    disk: Disk,
    folder: str,
    identity: LogIdentity,
    *,
    reset_index: int,
    start_offset: int,
    floor: int,
    floor_markers: int,
) -> LocalLog:
    """Begin an empty log in place of whatever is there; durable when it returns. Raises OSError.

    `floor` and `floor_markers` are those of the state that is applied: nothing is read into the log before.
    """
    disk.mkdir(folder)
    # Files of before may still be there after a crash: no new one may have the name of one of them.
    number = max((_number_of(name) for name in disk.listdir(folder)), default=-1) + 1
    manifest = Manifest(
        identity, reset_index, floor, floor_markers, start_offset, start_offset, number, segments=()
    )
    path = os.path.join(folder, MANIFEST)
    _write_durably(disk, path, [encoded(manifest)])
    disk.sync_dir(folder)
    _sweep(disk, folder, manifest)
    return LocalLog(disk, folder, manifest, [])


def _open_segment(disk: Disk, folder: str, identity: LogIdentity, segment: Segment) -> OpenSegment:
    """The file of a segment, its size and its index checked; raises LocalLogDamaged, and OSError."""
    path = os.path.join(folder, _file_name(segment.number))
    name = level_one_name(identity.topic_id, identity.partition, _TERM, segment_unique(segment.number))
    try:
        file = disk.open(path)
    except FileNotFoundError:
        raise LocalLogDamaged(f"{path} is not there") from None
    try:
        size = file.size()
        if size != segment.size:
            raise LocalLogDamaged(f"{path} has {size} bytes in place of {segment.size}")
        tail = file.pread(TAIL.size, max(size - TAIL.size, 0))
        length = footer_bytes(name, tail, size)
        footer = parse_footer(name, file.pread(length, size - length), size)
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
    return OpenSegment(segment, name, footer, file)


def _sweep(disk: Disk, folder: str, manifest: Manifest) -> None:
    """Remove every file that the manifest does not name."""
    named = {MANIFEST, *(_file_name(one.number) for one in manifest.segments)}
    for name in disk.listdir(folder):
        if name not in named:
            disk.unlink(os.path.join(folder, name))


def _write_durably(disk: Disk, path: str, parts: Sequence[Buffer]) -> None:
    """A file under its name; durable but for the name. Raises OSError, and leaves what was there before."""
    _write_aside(disk, path, parts)
    try:
        disk.rename(path + _PART, path)
    except OSError:
        _discard(disk, path + _PART)
        raise


def _write_aside(disk: Disk, path: str, parts: Sequence[Buffer]) -> None:
    aside = path + _PART
    _discard(disk, aside)
    file = disk.open(aside, create=True)
    try:
        file.write_durably(parts)
    except OSError:
        _discard(disk, aside)
        raise
    finally:
        file.close()


def _discard(disk: Disk, path: str) -> None:
    with contextlib.suppress(OSError):
        disk.unlink(path)


def _file_name(number: int) -> str:
    return f"{number:020d}{SUFFIX}"


def _number_of(name: str) -> int:
    """The number of a segment's file, also of one that is being written; -1 for another name."""
    number = name.removesuffix(_PART).removesuffix(SUFFIX)
    return int(number) if number.isdecimal() else -1
