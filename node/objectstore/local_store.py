"""Objects as files of a local folder, durable when a put says so.

Write the bytes under a temporary name, sync the file, rename it into place, sync the folder: only then is
the object stored. All disk work runs on an executor and goes through `Disk`, so the simulator can crash it
between any two steps. Several nodes may share a folder; each has a place of its own for unfinished files, so
what a crash left there is swept without a walk through the store. See docs/level-zero.md.
"""

from __future__ import annotations

import asyncio
import errno
import posixpath
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing, suppress
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TypeVar

from strandline.node.objectstore.disk_errors import BRING_BACK, cure, describe
from strandline.node.objectstore.joined_parts import joined
from strandline.node.objectstore.object_file import Checked, FileCut, ObjectFile, ObjectFiles
from strandline.node.objectstore.store import (
    Buffer,
    NotDone,
    ObjectNotFound,
    ObjectStore,
    OutcomeUnknown,
    RangeNotFound,
    StoreError,
    Wanted,
    check_delete,
    check_key,
    check_list,
    check_put,
    check_range,
)
from strandline.node.objectstore.unfinished_files import LOCK, PARTIAL, ObjectDisk, UnfinishedFiles

T = TypeVar("T")

FORGOTTEN_FROM = 64 * 1024
"""Objects of this size on leave the system's page cache once they are durable, unless the disk keeps it. A
node has a cache of its own for what it wrote, and to take fresh memory for every object can cost more than
all else about its put."""
MAX_JOBS = 256
FOLDER_TRIES = 4


class LocalStore(ObjectStore):
    """An ObjectStore below the folder `root`; make one with `open`.

    At most MAX_JOBS operations wait for the executor at a time; more are refused, retriably. Give it more
    threads than `max_puts`, or reads wait for other people's syncs.
    """

    max_puts = 4  # one disk syncs them all

    def __init__(
        self,
        disk: ObjectDisk,
        root: str,
        unfinished: UnfinishedFiles,
        release: Callable[[], None],
        *,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        max_object_bytes: int,
    ) -> None:
        self.max_object_bytes = max_object_bytes
        self._disk = disk
        self._root = root
        self._unfinished = unfinished
        self._release = release
        self._loop, self._executor = loop, executor
        self._jobs = self._made = 0
        self._files = ObjectFiles(loop, executor)
        self._durable: set[str] = set()  # folders known to exist durably; only ever asked for membership

    @classmethod
    def open(
        cls,
        disk: ObjectDisk,
        root: str,
        *,
        owner: str,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        max_object_bytes: int = 256 * 1024 * 1024,
        make: bool = True,
    ) -> LocalStore:
        """Open the folder and remove what this owner left unfinished. Blocks.

        `owner` names this process among all that share the folder. With `make` the folder is made if need be;
        without, one that is missing is an error, as where it is not mounted. Raises StoreError, which says
        what to do.
        """
        check_key(owner)
        unfinished = UnfinishedFiles(disk, root, owner)
        if not make and not disk.exists(posixpath.join(root, PARTIAL)):
            raise NotDone("open", root, "the store's folder is missing", retriable=True, cure=BRING_BACK)
        try:
            disk.mkdir(unfinished.folder)
            release = disk.lock(unfinished.folder + LOCK)
        except BlockingIOError as error:
            reason = f"another process uses this folder as {owner}"
            todo = "stop that process, or give one of the two another node.id"
            raise NotDone("open", root, reason, retriable=False, cure=todo) from error
        except OSError as error:
            raise NotDone("open", root, describe(error), retriable=False) from error
        try:
            unfinished.open()
        except OSError as error:
            release()
            raise NotDone("open", root, describe(error), retriable=False) from error
        return cls(
            disk, root, unfinished, release, loop=loop, executor=executor, max_object_bytes=max_object_bytes
        )

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        check_put(key, parts, self.max_object_bytes)
        self._made += 1
        await self._run("put", key, partial(self._put, key, parts, self._made))

    async def get(self, key: str) -> Buffer:
        check_key(key)
        return await self._look_up("get", key, lambda: self._disk.read(self._path(key)))

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        check_range(key, start, length)
        data = await self._look_up("get_range", key, lambda: self._read(key, start, length))
        if len(data) < length:
            raise RangeNotFound(key, start, length)
        return data

    async def fill(self, wanted: Sequence[Wanted]) -> list[bool]:
        try:
            return await self._run("get_range", "", lambda: [self._fill(one) for one in wanted])
        except StoreError:
            return [False] * len(wanted)

    @property
    def has_files(self) -> bool:
        return self._files.has_any

    async def open_file(self, key: str) -> ObjectFile | None:
        check_key(key)
        if not self._files.has_room:
            return None
        path = self._path(key)
        return await self._look_up("open", key, lambda: self._files.open(self._disk, path, key))

    async def checked(self, file: ObjectFile, ranges: Sequence[tuple[int, int]]) -> list[Checked]:
        try:
            return await self._run("get_range", file.key, lambda: file.checked(ranges))
        except FileCut as error:
            raise RangeNotFound(file.key, error.start, error.length) from error

    async def size(self, key: str) -> int:
        check_key(key)
        return await self._look_up("size", key, lambda: self._size(key))

    async def list(self, prefix: str, after: str, limit: int) -> list[str]:
        check_list(prefix, after, limit)
        return [*await self._run("list", prefix, lambda: self._first(prefix, after, limit))]

    async def delete_many(self, keys: Sequence[str]) -> None:
        check_delete(keys)
        if keys:
            await self._run("delete", keys[0], lambda: self._delete(keys))

    async def close(self) -> None:
        self._release()

    async def _look_up(self, operation: str, key: str, job: Callable[[], T]) -> T:
        """Run a job that reads an object. One that is not there is told from a store that is not: the first
        may be corruption to the reader, the second is trouble that ends."""

        def read() -> T:
            try:
                return job()
            except (FileNotFoundError, NotADirectoryError):
                self._check_there(operation, key)
                raise

        return await self._run(operation, key, read)

    async def _run(self, operation: str, key: str, job: Callable[[], T]) -> T:
        if self._jobs >= MAX_JOBS:
            raise NotDone(operation, key, f"{MAX_JOBS} operations wait for the disk", retriable=True)
        self._jobs += 1
        future = self._loop.run_in_executor(self._executor, job)
        # Not when the caller stops waiting: the job may go on long after that.
        future.add_done_callback(self._ended)
        try:
            return await asyncio.shield(future)
        except StoreError:
            raise
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise ObjectNotFound(operation, key) from error
        except OSError as error:
            # What may have changed something says so itself, in its job.
            raise NotDone(operation, key, describe(error), retriable=True, cure=cure(error)) from error

    def _ended(self, job: asyncio.Future[T]) -> None:
        self._jobs -= 1
        _ = job.cancelled() or job.exception()  # retrieved, as the caller may have stopped waiting

    # Jobs, on the executor.

    def _path(self, key: str) -> str:
        return posixpath.join(self._root, key)

    def _put(self, key: str, parts: Sequence[Buffer], number: int) -> None:
        temporary, path = "", self._path(key)
        folder = posixpath.dirname(path)
        try:
            temporary = self._unfinished.path(number)
            self._write(temporary, parts)
            self._rename(temporary, path, folder)
        except OSError as error:
            if temporary:
                self._unfinished.remove(temporary)
            if isinstance(error, FileNotFoundError):
                self._check_there("put", key)
            raise NotDone("put", key, describe(error), retriable=True, cure=cure(error)) from error
        try:
            self._disk.sync_dir(folder)
        except OSError as error:
            reason = f"stored, but its folder could not be synced: {describe(error)}"
            raise OutcomeUnknown("put", key, reason, cure=cure(error)) from error

    def _write(self, path: str, parts: Sequence[Buffer]) -> None:
        with closing(self._disk.open(path, create=True)) as file:
            file.write_durably([*joined(parts)])
            if sum(map(len, parts)) >= FORGOTTEN_FROM:
                file.forget_cached()

    def _rename(self, temporary: str, path: str, folder: str) -> None:
        for _ in range(FOLDER_TRIES):
            if folder not in self._durable:
                self._make_folder(folder)
            try:
                return self._disk.rename(temporary, path)
            except FileNotFoundError:
                # Another node deleted the last object in it, and then the folder.
                self._durable.discard(folder)
        raise OSError(errno.ENOENT, f"the folder went away {FOLDER_TRIES} times", folder)

    def _make_folder(self, folder: str) -> None:
        # Where the whole store is gone this raises: new folders would stand in its way when it is moved back.
        self._disk.listdir(self._unfinished.folder)
        self._disk.mkdir(folder)
        # Another node may have made it a moment ago and not have synced its parent yet.
        parent = folder
        while parent not in self._durable and len(parent) > len(self._root):
            parent = posixpath.dirname(parent)
            self._disk.sync_dir(parent)
        if len(self._durable) >= 4096:
            self._durable.clear()
        self._durable.add(folder)

    def _read(self, key: str, start: int, length: int) -> bytes:
        with closing(self._disk.open(self._path(key))) as file:
            return file.pread(length, start)

    def _fill(self, wanted: Wanted) -> bool:
        with suppress(OSError), closing(self._disk.open(self._path(wanted.key))) as file:
            return all(file.pread_into(memory, at) == len(memory) for at, memory in wanted.pieces)
        return False

    def _size(self, key: str) -> int:
        with closing(self._disk.open(self._path(key))) as file:
            return file.size()

    def _first(self, prefix: str, after: str, limit: int) -> Sequence[str]:
        names = self._children(self._path(prefix))
        if names is None:
            self._check_there("list", prefix)
        return [*islice(self._walk(prefix, names or (), after), limit)]

    def _check_there(self, operation: str, key: str) -> None:
        """Raise NotDone when the store's folder is gone: this one was made when the store was opened."""
        if self._children(self._unfinished.folder) is None:
            reason = f"the store's folder is missing, or another is in its place ({self._unfinished.folder})"
            raise NotDone(operation, key, reason, retriable=True, cure=BRING_BACK)

    def _walk(self, prefix: str, names: Sequence[str], after: str) -> Iterator[str]:
        """Keys below a prefix in key order, given the names there. "a-b" comes before "a/b": a folder sorts
        with its /.

        Whether a name is a folder's is found out when its turn comes, and only then what is in it: the first
        keys below a prefix cost the folders on the way to them, however much lies behind. A folder whose turn
        came too early for its / waits for it once more.
        """
        keys = (prefix + name for name in names if not name.startswith("."))
        # "0" follows "/": below this, neither the key nor anything in a folder of its name is wanted.
        due = [key for key in keys if not after or key + "0" > after]
        heapify(due)
        folders: dict[str, Sequence[str]] = {}
        while due:
            key = heappop(due)
            if key in folders:
                yield from self._walk(key, folders.pop(key), after)
            elif (children := self._children(self._path(key))) is not None:
                folders[key + "/"] = children
                heappush(due, key + "/")
            elif key > after:
                yield key

    def _children(self, path: str) -> Sequence[str] | None:
        """Names in a folder; None when it is a file, or nothing any more."""
        try:
            return self._disk.listdir(path)
        except (NotADirectoryError, FileNotFoundError):
            return None

    def _delete(self, keys: Sequence[str]) -> None:
        folders: dict[str, None] = {}
        try:
            for key in keys:
                path = self._path(key)
                with suppress(FileNotFoundError):
                    self._disk.unlink(path)
                    folders[posixpath.dirname(path)] = None
            for folder in folders:
                self._disk.sync_dir(folder)
        except OSError as error:
            raise OutcomeUnknown("delete", keys[0], describe(error), cure=cure(error)) from error
        for folder in folders:
            self._remove_empty(folder)

    def _remove_empty(self, folder: str) -> None:
        """Remove a folder, and those above it, as far as they are empty: each epoch leaves one behind."""
        with suppress(OSError):
            while len(posixpath.dirname(folder)) > len(self._root):
                self._durable.discard(folder)
                self._disk.rmdir(folder)
                folder = posixpath.dirname(folder)
