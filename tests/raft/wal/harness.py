"""What the tests of the write-ahead log share: a disk in memory that tells what was synced, and an opener."""

from __future__ import annotations

import asyncio
import errno
import random
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from strandline.node.raft.disk import Disk, DiskFile
from strandline.node.raft.wal.write_ahead_log import RecordKind, WalConfig, WriteAheadLog

FOLDER = "/log"
SMALL = WalConfig(segment_bytes=2048, max_buffered_bytes=1 << 20, full_retry_seconds=0.01)
ROOMY = WalConfig(segment_bytes=8192, max_buffered_bytes=1 << 20, full_retry_seconds=0.01)
Record = tuple[int, RecordKind, bytes]


class Stopped(BaseException):
    """The machine stopped in the middle of a disk operation."""


class Inode:
    def __init__(self, data: bytes = b"") -> None:
        self.live = bytearray(data)
        self.durable = bytearray(data)
        self.dirty: list[tuple[int, bytes]] = []


class FakeDisk(Disk):
    """Files and names, live and durable. Knobs: `stop_at`, `full`, `sync_error`, `write_error`, `gate`."""

    def __init__(self) -> None:
        self.names: dict[str, Inode] = {}
        self.durable_names: dict[str, Inode] = {}
        self.locked: set[str] = set()
        self.operations: list[str] = []
        self.stop_at: int | None = None
        self.full = False
        self.write_error: OSError | None = None
        self.sync_error: OSError | None = None
        self.gate: threading.Event | None = None
        self.at_gate = threading.Event()

    def step(self, operation: str) -> None:
        if self.stop_at is not None and len(self.operations) >= self.stop_at:
            raise Stopped
        self.operations.append(operation)

    def count(self, operation: str) -> int:
        return sum(done.split()[0] == operation for done in self.operations)

    def restart(self, survives: Callable[[Inode], bytes], *, names_survive: bool) -> FakeDisk:
        """The disk as the next process finds it."""
        after = FakeDisk()
        names = self.names if names_survive else self.durable_names
        for path, inode in names.items():
            after.names[path] = after.durable_names[path] = Inode(survives(inode))
        return after

    def killed(self) -> FakeDisk:
        """After kill -9: the page cache lives on, but nothing in it became durable."""
        after = self.restart(lambda inode: bytes(inode.durable), names_survive=False)
        after.names = {}
        for path, inode in self.names.items():
            after.names[path] = Inode(bytes(inode.durable))
            after.names[path].live[:] = inode.live
            after.names[path].dirty = list(inode.dirty)
            if path in self.durable_names:
                after.durable_names[path] = after.names[path]
        return after

    def power_cut(self) -> FakeDisk:
        """After a power cut that took all that was not synced."""
        return self.restart(lambda inode: bytes(inode.durable), names_survive=False)

    def copy(self) -> FakeDisk:
        return self.restart(lambda inode: bytes(inode.live), names_survive=True)

    def segments(self) -> list[str]:
        return sorted(path for path in self.names if path.endswith(".log"))

    def mkdir(self, path: str) -> None:
        self.step(f"mkdir {path}")

    def listdir(self, path: str) -> list[str]:
        prefix = path + "/"
        return sorted(name.removeprefix(prefix) for name in self.names if name.startswith(prefix))

    def exists(self, path: str) -> bool:
        return path in self.names

    def read(self, path: str) -> bytes:
        return bytes(self.names[path].live)

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        if create:
            self.step(f"create {path}")
            assert path not in self.names
            self.names[path] = Inode()
        return FakeFile(self, path, self.names[path])

    def rename(self, src: str, dst: str) -> None:
        self.step(f"rename {src} {dst}")
        self.names[dst] = self.names.pop(src)

    def rmdir(self, path: str) -> None:
        raise NotImplementedError

    def unlink(self, path: str) -> None:
        self.step(f"unlink {path}")
        del self.names[path]

    def sync_dir(self, path: str) -> None:
        self.step(f"sync_dir {path}")
        self.durable_names = dict(self.names)

    def lock(self, path: str) -> Callable[[], None]:
        if path in self.locked:
            raise BlockingIOError(errno.EAGAIN, "held")
        self.locked.add(path)
        return lambda: self.locked.discard(path)


class FakeFile(DiskFile):
    def __init__(self, disk: FakeDisk, path: str, inode: Inode) -> None:
        self.disk = disk
        self.path = path
        self.inode = inode

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._write("pwrite", bytes(data), offset)

    def preallocate(self, size: int) -> None:
        self._write("preallocate", bytes(size), 0)

    def _write(self, operation: str, data: bytes, offset: int) -> None:
        self.disk.step(f"{operation} {self.path} {offset} {len(data)}")
        if self.disk.write_error is not None:
            raise self.disk.write_error
        if self.disk.full:
            data = data[: len(data) // 2]
        place(self.inode.live, offset, data)
        self.inode.dirty.append((offset, data))
        if self.disk.full:
            raise OSError(errno.ENOSPC, "No space left on device")

    def pread(self, size: int, offset: int) -> bytes:
        return bytes(self.inode.live[offset : offset + size])

    def datasync(self) -> None:
        if self.disk.gate is not None:
            self.disk.at_gate.set()
            assert self.disk.gate.wait(10)
        self.disk.step(f"datasync {self.path}")
        if self.disk.sync_error is not None:
            self.inode.dirty.clear()  # As Linux does: the pages count as clean and are lost.
            raise self.disk.sync_error
        for offset, data in self.inode.dirty:
            place(self.inode.durable, offset, data)
        self.inode.dirty.clear()

    def size(self) -> int:
        return len(self.inode.live)

    def close(self) -> None:
        pass


def place(target: bytearray, offset: int, data: bytes) -> None:
    target.extend(bytes(max(0, offset - len(target))))
    target[offset : offset + len(data)] = data


class Opened:
    """A log, what it replayed, and what it reported."""

    def __init__(self, log: WriteAheadLog, replayed: list[Record], segments: list[int]) -> None:
        self.log = log
        self.replayed = replayed
        self.replayed_segments = segments
        self.synced: list[tuple[int, int]] = []
        self.failures: list[Exception] = []
        self.stalls: list[OSError] = []
        self.spaces = 0
        """How often it was told that the disk has space again."""
        self.changed = asyncio.Event()
        log.on_synced = self._on_synced
        log.on_failed = self._on_failed
        log.on_stall = self._on_stall
        log.on_space = self._on_space

    def _on_synced(self, lsn: int, segment: int) -> None:
        assert self.log.synced_lsn == lsn
        self.synced.append((lsn, segment))
        self.changed.set()

    def _on_failed(self, error: Exception) -> None:
        self.failures.append(error)
        self.changed.set()

    def _on_stall(self, error: OSError) -> None:
        self.stalls.append(error)
        self.changed.set()

    def _on_space(self) -> None:
        self.spaces += 1

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def until_synced(self, lsn: int) -> None:
        await self.until(lambda: self.log.synced_lsn >= lsn)

    def is_waiting(self) -> bool:
        return self.log.stalled_since is not None

    async def until_failed(self) -> None:
        await self.until(lambda: bool(self.failures))

    async def write(self, records: Iterable[Record]) -> None:
        """Append as one batch, and wait until it is synced."""
        for record in records:
            self.log.append(*record)
        self.log.flush()
        await self.until_synced(self.log.tail_lsn)

    async def until_dropped(self, first: int) -> None:
        async with asyncio.timeout(10):
            while self.log.first_segment < first:  # noqa: ASYNC110 - the log reports no drops
                await asyncio.sleep(0.001)


def open_log(
    disk: Disk,
    executor: ThreadPoolExecutor,
    *,
    folder: str = FOLDER,
    node_id: int = 7,
    cluster_id: str = "c1",
    config: WalConfig = SMALL,
    seed: int = 0,
) -> Opened:
    replayed: list[Record] = []
    segments: list[int] = []

    def replay(group: int, kind: RecordKind, segment: int, payload: bytes) -> None:
        replayed.append((group, kind, payload))
        segments.append(segment)

    log = WriteAheadLog.open(
        disk,
        folder,
        loop=asyncio.get_running_loop(),
        executor=executor,
        node_id=node_id,
        cluster_id=cluster_id,
        config=config,
        rng=random.Random(seed),
        replay=replay,
    )
    return Opened(log, replayed, segments)


def run(scenario: Callable[[ThreadPoolExecutor], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario on a fresh loop with a one-thread executor."""

    async def body() -> None:
        with ThreadPoolExecutor(1) as executor:
            await scenario(executor)

    asyncio.run(body())


def entry(number: int, size: int = 40) -> Record:
    """A record told from others by its payload."""
    return 3, RecordKind.ENTRIES, number.to_bytes(4, "big") * (size // 4)
