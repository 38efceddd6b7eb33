"""One replica's own log of a compacted partition, on its disk: files that never change, and a manifest.

A change writes its segments aside, durably; then they are renamed, and the manifest is replaced in the same
way. So a crash at any step leaves the log of before or of after, and files that no manifest names, which the
next open removes. Whatever is wrong with a log, it is never mended: it was made of level one, and is made of
it again.

All of it blocks. The log belongs to one process, which holds the node's lock file; another may make the bytes
of a segment for it (`segment_files.write_made`).
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from strandline.node.compaction.log_folders import MANIFEST
from strandline.node.compaction.manifest import (
    LogIdentity,
    Manifest,
    ManifestDamaged,
    Segment,
    encoded,
    parsed,
)
from strandline.node.compaction.segment_files import (
    PART,
    SUFFIX,
    LocalLogDamaged,
    OpenSegment,
    discard,
    file_name,
    given_back,
    made_name,
    number_of,
    open_segment,
    write_new,
)
from strandline.node.raft.disk import Disk


class LocalLogUnknown(Exception):
    """An error while the manifest was being replaced: only the next open shows which one the disk has."""


class Floors(NamedTuple):
    """Offsets of the state that was applied when the log was last empty; see Manifest."""

    tombstones: int
    markers: int


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


class Change(NamedTuple):
    """A change that is durable, and that readers do not see yet: for `LocalLog.take`."""

    manifest: Manifest
    segments: Sequence[OpenSegment]
    gone: tuple[int, ...]
    """Numbers of the segments that are named no more."""


class LocalLog:
    """An open log. `view` is what readers take hold of; every change puts another in its place.

    Readers' counts are not locked: `view` and its holders, `take` and `close` belong to the node's loop. The
    other methods block.
    """

    def __init__(
        self, disk: Disk, folder: str, maker: str, manifest: Manifest, segments: Sequence[OpenSegment]
    ) -> None:
        """See `open_log` and `reset_log`."""
        self.folder = folder
        self.maker = maker
        """Part of the names of the files that are made for this log."""
        self._disk = disk
        self._next_number = manifest.next_number
        self._unknown = self._closed = False
        self.view = View(manifest, segments)

    @property
    def manifest(self) -> Manifest:
        """As it is on disk, durably."""
        return self.view.manifest

    def next_number(self) -> int:
        """A number for a segment that is about to be made, never given before."""
        self._next_number += 1
        return self._next_number - 1

    def replace(self, segments: Sequence[Segment], clean_end: int) -> Change:
        """Let the log be these segments, one or more, of those it has and those that were made for it.

        Durable when it returns; then `take` it. Raises OSError if nothing has changed: then what was made is
        removed. LocalLogUnknown if the disk does not say; the log is not to be used any more. LocalLogDamaged
        if a segment that was made is not there as it should be. ValueError for what no log is like.
        """
        return self._change(
            self.manifest._replace(
                segments=tuple(segments),
                clean_end=clean_end,
                log_end=segments[-1].end_offset,
                next_number=self._next_number,
            )
        )

    def empty(self, start_offset: int, floors: Floors, reset_index: int) -> Change:
        """Let the log be empty and begin at an offset, with the floors of the state that is applied, which is
        that of the log index.

        Durable when it returns; then `take` it. Raises what `replace` does.
        """
        return self._change(
            self.manifest._replace(
                segments=(),
                reset_index=reset_index,
                floor=floors.tombstones,
                floor_markers=floors.markers,
                clean_end=start_offset,
                log_end=start_offset,
                next_number=self._next_number,
            )
        )

    def take(self, change: Change) -> None:
        """Let readers see a change. Does not block. Of a log that was closed meanwhile nothing is opened."""
        if self._closed:
            _close_new(change.segments, {one.segment.number: one for one in self.view.segments})
            return
        before, self.view = self.view, View(change.manifest, change.segments)
        before.release()

    def remove(self, change: Change) -> None:
        """Remove the files that a change that was taken names no more, as far as the disk lets us."""
        self._remove(change.gone)

    def discard_made(self, numbers: Iterable[int]) -> None:
        """Remove what was made for the log and is not wanted any more, as far as the disk lets us."""
        for number in numbers:
            discard(self._disk, self._path(made_name(number, self.maker)))

    def close(self) -> None:
        """No more changes; files are closed once the readers are through."""
        self._closed = True
        self.view.release()

    def _change(self, manifest: Manifest) -> Change:
        self._usable()
        old = {one.segment.number: one for one in self.view.segments}
        new = [one.number for one in manifest.segments if one.number not in old]
        data = encoded(manifest)
        opened: list[OpenSegment] = []
        try:
            for number in new:
                self._take_name(number)
            if new:
                self._disk.sync_dir(self.folder)
            for one in manifest.segments:
                known = old.get(one.number)
                if known is None:
                    known = open_segment(self._disk, self.folder, manifest.identity, one)
                opened.append(known)
            self._replace_manifest(data)
        except BaseException as error:
            _close_new(opened, old)
            if not isinstance(error, LocalLogUnknown):
                self.discard_made(new)
                self._remove(new)
            raise
        gone = old.keys() - {one.number for one in manifest.segments}
        return Change(manifest, opened, tuple(sorted(gone)))

    def _take_name(self, number: int) -> None:
        try:
            self._disk.rename(self._path(made_name(number, self.maker)), self._path(file_name(number)))
        except FileNotFoundError:
            if self._disk.exists(self.folder):
                raise
            raise LocalLogDamaged(f"{self.folder} is not there any more") from None

    def _replace_manifest(self, data: bytes) -> None:
        path = self._path(MANIFEST)
        try:
            write_new(self._disk, path + PART, [data])
        except FileNotFoundError:
            raise LocalLogDamaged(f"{self.folder} is not there any more") from None
        self._unknown = True
        try:
            self._disk.rename(path + PART, path)
            self._disk.sync_dir(self.folder)
        except OSError as error:
            raise LocalLogUnknown(f"{path}: {error}") from error
        self._unknown = False

    def _usable(self) -> None:
        if self._unknown or self._closed:
            raise LocalLogUnknown(f"{self.folder}: it is closed, or an earlier change of it failed half-way")

    def _remove(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            discard(self._disk, self._path(file_name(number)))

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)


def open_log(disk: Disk, folder: str, identity: LogIdentity, maker: str = "made") -> LocalLog:
    """Open a log, and remove what its manifest does not name. Raises LocalLogDamaged, and OSError.

    `maker` must differ from that of every log for which a job may still be under way.
    """
    if not disk.exists(os.path.join(folder, MANIFEST)):
        raise LocalLogDamaged(f"{folder} has no manifest")
    # A process that was killed may leave names that are seen and not durable; what is seen is relied on.
    disk.sync_dir(folder)
    path = os.path.join(folder, MANIFEST)
    with given_back(path):
        data = disk.read(path)
    try:
        manifest = parsed(data, identity)
    except ManifestDamaged as error:
        raise LocalLogDamaged(f"the manifest in {folder}: {error}") from error
    opened: list[OpenSegment] = []
    try:
        for one in manifest.segments:
            opened.append(open_segment(disk, folder, identity, one))
        _sweep(disk, folder, manifest)
    except BaseException:
        View(manifest, opened).release()
        raise
    return LocalLog(disk, folder, maker, manifest, opened)


def reset_log(
    disk: Disk,
    folder: str,
    identity: LogIdentity,
    *,
    reset_index: int,
    start_offset: int,
    floors: Floors,
    maker: str = "made",
) -> LocalLog:
    """Begin an empty log in place of whatever is there; durable when it returns. Raises OSError.

    `floors` are those of the state that is applied: nothing is read into the log before.
    """
    disk.mkdir(folder)
    # Files of before may still be there after a crash: no new one may have the name of one of them.
    number = max((number_of(name) for name in disk.listdir(folder)), default=-1) + 1
    manifest = Manifest(identity, reset_index, *floors, start_offset, start_offset, number, segments=())
    path = os.path.join(folder, MANIFEST)
    write_new(disk, path + PART, [encoded(manifest)])
    try:
        disk.rename(path + PART, path)
    except OSError:
        discard(disk, path + PART)
        raise
    disk.sync_dir(folder)
    _sweep(disk, folder, manifest)
    return LocalLog(disk, folder, maker, manifest, [])


def has_segments(disk: Disk, folder: str) -> bool:
    """Whether there are files of segments; a crash of the first reset leaves none. Raises OSError."""
    return disk.exists(folder) and any(name.endswith(SUFFIX) for name in disk.listdir(folder))


def _close_new(opened: Sequence[OpenSegment], old: dict[int, OpenSegment]) -> None:
    """Close the files that no view has got."""
    for one in opened:
        if one.segment.number not in old:
            one.hold()
            one.release()


def _sweep(disk: Disk, folder: str, manifest: Manifest) -> None:
    """Remove every file that the manifest does not name."""
    named = {MANIFEST, *(file_name(one.number) for one in manifest.segments)}
    for name in disk.listdir(folder):
        if name not in named:
            disk.unlink(os.path.join(folder, name))
