"""A simulated disk: the production `Disk` protocol, and every fault a disk may have.

Names are durable after `sync_dir` of their folder, bytes after `datasync` of their file; a crash costs the
rest or a part of it. Scenarios and tests turn the knobs and look at the views; see `SimDisk`.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
from collections.abc import Callable
from zlib import crc32

from tests.simulation.inode import Inode, SimFile

OPERATIONS = ("mkdir", "create", "pwrite", "preallocate", "datasync", "rename", "unlink", "rmdir", "sync_dir")


class SimCrash(BaseException):
    """The node died inside a disk operation. Not an Exception: production code must not handle it."""


def no_note(operation: str, name: str, value: int) -> None:
    """The digest of a disk that belongs to no world."""


class SimDisk:
    """One node's disk. It outlives the node's crashes; `crash()` says what they cost.

    Knobs: `job_seconds` (shortest and longest time of an executor job), `slow` (factor on it), `stall()`,
    `fill()`, `fail_next()`, `flip_bit()`, `crash_at()`, `reorders_writes` (may a power cut keep later writes
    and lose earlier ones). Figures: `counts` of each operation, `operations` that changed something,
    `bytes_written`, `bytes_synced`.
    """

    def __init__(self, rng: random.Random, note: Callable[[str, str, int], None] = no_note) -> None:
        self._rng = rng
        self._note = note
        self._names: dict[str, Inode] = {}
        self._durable_names: dict[str, Inode] = {}
        self._pending: list[tuple[str, str, Inode]] = []  # (path to remove or "", path to set or "", inode)
        self._folders: dict[str, None] = {"/": None, ".": None}
        self._locks: dict[str, int] = {}
        self._inodes_made = 0
        self._failing: dict[str, list[int]] = {}
        self._crash_at = 0
        self._crash_kind = "power"
        self._off = False
        self._free: int | None = None
        self._overwrites_count = False
        self.epoch = 0
        self.on_crash: Callable[[str], None] | None = None
        self.job_seconds = (0.0003, 0.003)
        self.slow = 1.0
        self.stalled = False
        self.parked: list[Callable[[], None]] = []
        self.reorders_writes = True
        self.counts: dict[str, int] = {}
        self.operations = 0
        self.bytes_written = 0
        self.bytes_synced = 0

    def usage(self, path: str) -> None:
        """There is no end of it until `fill`, and then nothing is set aside."""
        del path

    @property
    def space(self) -> int | None:
        """Bytes that are left, None while there is no end of them."""
        return self._free

    # The production protocol.

    def mkdir(self, path: str) -> None:
        path = posixpath.normpath(path)
        self.begin("mkdir", path)
        if path in self._names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        while path not in self._folders:
            self._folders[path] = None
            path = posixpath.dirname(path) or "."

    def listdir(self, path: str) -> list[str]:
        path = posixpath.normpath(path)
        self.begin("listdir", path)
        if path in self._names:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        self._need_folder(path)
        everything = [*self._names, *self._folders]
        return sorted(
            posixpath.basename(p) for p in everything if p != path and (posixpath.dirname(p) or ".") == path
        )

    def exists(self, path: str) -> bool:
        path = posixpath.normpath(path)
        self.begin("exists", path)
        return path in self._names or path in self._folders

    def read(self, path: str) -> bytes:
        path = posixpath.normpath(path)
        self.begin("read", path)
        inode = self._find(path)
        inode.check_sectors(path)
        return bytes(inode.live)

    def open(self, path: str, *, create: bool = False) -> SimFile:
        path = posixpath.normpath(path)
        if not create:
            self.begin("open", path)
            return SimFile(self, self._find(path), path)
        self.begin("create", path)
        if path in self._names or path in self._folders:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return SimFile(self, self._create(path), path)

    def rename(self, src: str, dst: str) -> None:
        src, dst = posixpath.normpath(src), posixpath.normpath(dst)
        self.begin("rename", f"{src} > {dst}")
        inode = self._find(src)
        self._need_folder(posixpath.dirname(dst) or ".")
        if dst in self._names and dst != src:
            self._give_back(self._names[dst])
        self._change(src, dst, inode)

    def unlink(self, path: str) -> None:
        path = posixpath.normpath(path)
        self.begin("unlink", path)
        inode = self._find(path)
        self._give_back(inode)
        self._change(path, "", inode)

    def spread(self, path: str) -> None:
        """Where files lie makes no difference here."""

    def rmdir(self, path: str) -> None:
        path = posixpath.normpath(path)
        self.begin("rmdir", path)
        self._need_folder(path)
        if any((posixpath.dirname(p) or ".") == path for p in [*self._names, *self._folders]):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        # Folders are durable at once here, and one that is gone for good has no names left in it.
        self._sync_names(path)
        del self._folders[path]

    def sync_dir(self, path: str) -> None:
        path = posixpath.normpath(path)
        self.begin("sync_dir", path)
        self._need_folder(path)
        self._sync_names(path)

    def _sync_names(self, path: str) -> None:
        later = []
        for change in self._pending:
            if any(p and (posixpath.dirname(p) or ".") == path for p in change[:2]):
                apply(self._durable_names, change)
            else:
                later.append(change)
        self._pending = later

    def lock(self, path: str) -> Callable[[], None]:
        path = posixpath.normpath(path)
        self.begin("lock", path)
        if path in self._locks:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), path)
        if path not in self._names:
            self._create(path)
        self._locks[path] = epoch = self.epoch

        def release() -> None:
            if self._locks.get(path) == epoch:
                del self._locks[path]

        return release

    # What the operations share.

    def begin(self, operation: str, name: str, torn: Callable[[], None] | None = None) -> None:
        """Count an operation and let the planned faults happen; `torn` does a part of it before a crash."""
        if self._off:
            raise SimCrash(f"{operation} {name}: the node is down")
        self.counts[operation] = self.counts.get(operation, 0) + 1
        if operation in OPERATIONS:
            self.operations += 1
            if self.operations == self._crash_at:
                if torn is not None:
                    torn()
                self._die(f"{operation} {name}")
            self._note(operation, name, self.operations)
        codes = self._failing.get(operation)
        if codes:
            code = codes.pop(0)
            raise OSError(code, os.strerror(code), name)

    def _die(self, where: str) -> None:
        self._crash_at = 0
        self._off = True
        if self.on_crash is not None:
            self.on_crash(self._crash_kind)
        raise SimCrash(where)

    def write(self, operation: str, name: str, inode: Inode, offset: int, data: bytes) -> None:
        """Write all of `data`, or as much as fits and then raise OSError(ENOSPC)."""
        self.begin(operation, name, lambda: inode.write(offset, data[: self._rng.randint(0, len(data))]))
        full = False
        if self._free is not None:
            counted = offset if self._overwrites_count else max(offset, len(inode.live))
            need = max(0, offset + len(data) - counted)
            full = need > self._free
            if full:
                data = data[: max(0, counted + self._free - offset)]
                need = self._free
            self._free -= need
        inode.write(offset, data)
        self.bytes_written += len(data)
        self._note(operation, name, crc32(data))
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

    def sync(self, name: str, inode: Inode) -> None:
        try:
            self.begin("datasync", name)
        except OSError:
            # As on Linux: the pages count as clean now, so a second fdatasync succeeds and saves nothing.
            inode.dirty.clear()
            raise
        self.bytes_synced += inode.sync()

    def _find(self, path: str) -> Inode:
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return inode

    def _need_folder(self, path: str) -> None:
        if path not in self._folders:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def _create(self, path: str) -> Inode:
        self._need_folder(posixpath.dirname(path) or ".")
        self._inodes_made += 1
        inode = Inode(self._inodes_made)
        self._change("", path, inode)
        return inode

    def _change(self, removed: str, added: str, inode: Inode) -> None:
        change = (removed, added, inode)
        apply(self._names, change)
        self._pending.append(change)

    def _give_back(self, inode: Inode) -> None:
        if self._free is not None:
            self._free += len(inode.live)

    # Crashes and faults.

    def crash(self, kind: str) -> None:
        """End every open file and lock; "kill" keeps the page cache, "power" only what a power cut leaves."""
        if kind not in ("kill", "power"):
            raise ValueError(f"a crash is 'kill' or 'power', not {kind!r}")
        self.epoch += 1
        self._locks.clear()
        self.parked.clear()
        self._crash_at = 0
        self._off = False
        if kind == "power":
            kept = self._pending[: self._rng.randint(0, len(self._pending))]
            inodes = {i.number: i for i in [*self._names.values(), *self._durable_names.values()]}
            for change in kept:
                apply(self._durable_names, change)
                inodes[change[2].number] = change[2]
            self._pending.clear()
            for number in sorted(inodes):
                inodes[number].lose_power(self._rng, self.reorders_writes)
            self._names = dict(sorted(self._durable_names.items()))
            for path, inode in self._names.items():
                self._note("after power", path, crc32(inode.live))

    def turn_off(self) -> None:
        """Every operation raises SimCrash until `turn_on()`: what a dead node's unwinding code sees."""
        self._off = True

    def turn_on(self) -> None:
        self._off = False

    def crash_at(self, operation: int, kind: str = "power") -> None:
        """Crash in the `operation`-th changing operation from now (1 is the next), before its effect."""
        self._crash_at = self.operations + operation
        self._crash_kind = kind

    def fail_next(self, operation: str, code: int, times: int = 1) -> None:
        """The next `times` operations of this name raise OSError(code)."""
        self._failing.setdefault(operation, []).extend([code] * times)

    def fill(self, free: int, *, overwrites_count: bool = False) -> None:
        """ENOSPC after `free` more bytes of growth, or of any writing (as on a copy-on-write file system)."""
        self._free = free
        self._overwrites_count = overwrites_count

    def empty(self) -> None:
        self._free = None

    def forget_faults(self) -> None:
        """Drop the errors and the crash that were planned and did not happen."""
        self._failing.clear()
        self._crash_at = 0

    def exists_now(self, path: str) -> bool:
        """Whether there is such a file; no operation of the node's."""
        return path in self._names

    def stall(self) -> None:
        """Jobs hang, as with a dead device, until `unstall()`."""
        self.stalled = True

    def unstall(self) -> None:
        self.stalled = False
        parked, self.parked = self.parked, []
        for go_on in parked:
            go_on()

    def job_times(self) -> tuple[float, float]:
        """When within an executor job its work happens, and how long the job takes; seconds."""
        shortest, longest = self.job_seconds
        end = (shortest + (longest - shortest) * self._rng.random()) * self.slow
        return end * self._rng.random(), end

    def lose_sectors(self, path: str) -> None:
        """Let every read of this file's bytes raise OSError(EIO) from now on; one in its place is well."""
        self._find(posixpath.normpath(path)).sectors_lost = True

    def flip_bit(self, path: str, offset: int | None = None) -> tuple[int, int]:
        """Rot one bit of a durable byte (a random one by default); returns (offset, bit)."""
        inode = self._find(posixpath.normpath(path))
        if offset is None:
            offset = self._rng.randrange(len(inode.durable))
        bit = self._rng.randrange(8)
        inode.durable[offset] ^= 1 << bit
        inode.live[offset] ^= 1 << bit
        self._note("flip", path, offset * 8 + bit)
        return offset, bit

    # Views.

    def snapshot(self, *, durable: bool = False) -> dict[str, bytes]:
        """Every file's bytes, live or only those that a power cut cannot take."""
        if durable:
            return {path: bytes(inode.durable) for path, inode in sorted(self._durable_names.items())}
        return {path: bytes(inode.live) for path, inode in sorted(self._names.items())}

    def unsynced(self) -> list[str]:
        """One line for each write and name change that a power cut may take."""
        lines = [
            f"{path}: {len(data)} bytes at {offset}"
            for path, inode in sorted(self._names.items())
            for offset, data in inode.dirty
        ]
        return lines + [f"name: {old or 'nothing'} > {new or 'nothing'}" for old, new, _ in self._pending]


def apply(names: dict[str, Inode], change: tuple[str, str, Inode]) -> None:
    removed, added, inode = change
    if removed:
        names.pop(removed, None)
    if added:
        names[added] = inode


def differences(before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    """One line for each file in which two snapshots of a disk differ."""
    lines = []
    for path in sorted({*before, *after}):
        old, new = before.get(path), after.get(path)
        if old is None or new is None:
            lines.append(f"{path}: only {'after' if old is None else 'before'}")
        elif old != new:
            pairs = enumerate(zip(old, new, strict=False))
            at = next((i for i, (x, y) in pairs if x != y), min(len(old), len(new)))
            lines.append(f"{path}: {len(old)} > {len(new)} bytes, first difference at {at}")
    return lines
