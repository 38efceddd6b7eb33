"""The target of an export: a folder or a bucket in which a file is made whole, and once.

All that an export promises rests on one operation, `create`: of all that make a file under a name, one
succeeds, and its bytes are there for good. In a bucket that is a conditional put (If-None-Match). In a folder
the bytes are written and synced under another name, which is then linked: a link never replaces a file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

import obstore
from obstore import exceptions
from obstore.store import from_url

from strandline.snapshot.storage import BucketStorage, FolderStorage, StorageError, is_bucket, open_storage

Buffer = bytes | memoryview
STATE: Final = "_strandline/"
"""Folder of an export's own documents; readers of Parquet pass over names that begin with an underscore."""
_UNFINISHED: Final = f"{STATE}unfinished"
_CURE: Final = "mend that and run it again, it goes on where it was"


class Target(ABC):
    """A folder or bucket that is exported to. All operations block, and raise StorageError."""

    url: str
    options: Mapping[str, str] = {}
    """Those of the bucket, as `open_storage` takes them."""

    @abstractmethod
    def create(self, key: str, data: Buffer) -> bool:
        """Make a file, durable once this returns; False if there is one of this name, which stays."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove a file; it is no error if there is none."""

    @abstractmethod
    def get(self, key: str) -> bytes:
        """A whole file; raises ObjectMissing too."""

    @abstractmethod
    def list(self, prefix: str) -> list[str]:
        """The keys that start with a prefix, in their order. The prefix is empty or ends with a slash."""

    @abstractmethod
    def sweep(self) -> int:
        """Remove what processes left unfinished that are gone; returns how many files that were."""


def open_target(url: str, options: Mapping[str, str] | None = None, *, make: bool = True) -> Target:
    """The target at a folder's path, which is made if so asked, or at a bucket's URL; raises StorageError.

    `options` are those of `open_storage`.
    """
    if is_bucket(url):
        return _BucketTarget(url, dict(options or {}))
    if make:
        try:
            _make_folders(os.path.join(os.path.abspath(url), _UNFINISHED))
        except OSError as error:
            raise StorageError(f"{url}: {error.strerror}: name a folder that can be written") from error
    return _FolderTarget(url)


class _FolderTarget(Target):
    def __init__(self, url: str) -> None:
        self.url = os.path.abspath(url)
        self._read = FolderStorage(self.url)
        self._durable: set[str] = set()
        """Folders that are known to exist durably."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _FolderTarget, (self.url,)

    def create(self, key: str, data: Buffer) -> bool:
        path = os.path.join(self.url, key)
        folder = os.path.dirname(path)
        try:
            self._make_folder(folder)
            made = self._create(path, data)
            # Also if another made it: that one may be gone, and its entry not durable.
            _sync_folder(folder)
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
                raise StorageError(
                    f"{self.url}: its file system has no hard links; export elsewhere"
                ) from error
            raise StorageError(f"{self.url}: file {key}: {error.strerror}: {_CURE}") from error
        return made

    def _create(self, path: str, data: Buffer) -> bool:
        unfinished, file = self._open_unfinished()
        try:
            view = memoryview(data)
            while len(view):
                view = view[os.write(file, view) :]
            os.fsync(file)
            try:
                os.link(unfinished, path)
            except FileExistsError:
                return False
            return True
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(unfinished)
            os.close(file)

    def _open_unfinished(self) -> tuple[str, int]:
        """A new file of another name, locked for as long as this process has it open."""
        while True:
            path = os.path.join(self.url, _UNFINISHED, uuid.uuid4().hex)
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_nlink:
                return path, file
            os.close(file)  # swept before it was locked

    def _make_folder(self, folder: str) -> None:
        if folder in self._durable or folder == self.url:
            return
        parent = os.path.dirname(folder)
        self._make_folder(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
        _sync_folder(parent)
        self._durable.add(folder)

    def delete(self, key: str) -> None:
        try:
            os.unlink(os.path.join(self.url, key))
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"{self.url}: file {key}: {error.strerror}: {_CURE}") from error

    def get(self, key: str) -> bytes:
        return self._read.get(key)

    def list(self, prefix: str) -> list[str]:
        unfinished = _UNFINISHED + "/"
        return [key for key in self._read.list(prefix) if not key.startswith(unfinished)]

    def sweep(self) -> int:
        swept = 0
        try:
            for entry in os.scandir(os.path.join(self.url, _UNFINISHED)):
                try:
                    file = os.open(entry.path, os.O_WRONLY | os.O_CLOEXEC)
                except FileNotFoundError:
                    continue
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(entry.path)
                    swept += 1
                except (BlockingIOError, FileNotFoundError):
                    continue  # its process lives, or has ended it just now
                finally:
                    os.close(file)
        except OSError as error:
            raise StorageError(f"{self.url}: {error.strerror}: {_CURE}") from error
        return swept


class _BucketTarget(Target):
    def __init__(self, url: str, options: dict[str, str]) -> None:
        self.url = url
        self.options = options
        read = open_storage(url, options)
        assert isinstance(read, BucketStorage), "a URL with a scheme"
        self._read = read
        plain = options.get("endpoint", "").startswith("http://")
        self._store = from_url(url, config=options, client_options={"allow_http": plain})  # type: ignore[call-overload]

    def __reduce__(self) -> tuple[Any, ...]:
        return _BucketTarget, (self.url, self.options)

    def create(self, key: str, data: Buffer) -> bool:
        try:
            # A copy: obstore takes a view of Arrow's signed bytes for an iterator of numbers.
            obstore.put(self._store, key, bytes(data), mode="create", use_multipart=False)
        except exceptions.AlreadyExistsError:
            return False
        except (exceptions.BaseError, OSError) as error:
            raise StorageError(f"{self.url}: file {key}: {_first_line(error)}: {_CURE}") from error
        return True

    def delete(self, key: str) -> None:
        try:
            obstore.delete(self._store, key)
        except FileNotFoundError:
            return
        except (exceptions.BaseError, OSError) as error:
            raise StorageError(f"{self.url}: file {key}: {_first_line(error)}: {_CURE}") from error

    def get(self, key: str) -> bytes:
        return self._read.get(key)

    def list(self, prefix: str) -> list[str]:
        return self._read.list(prefix)

    def sweep(self) -> int:
        return 0  # a put that did not end leaves nothing


def _make_folders(path: str) -> None:
    """Make a folder and those above it, durably."""
    if not os.path.isdir(path):
        _make_folders(os.path.dirname(path))
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
        _sync_folder(os.path.dirname(path))


def _sync_folder(path: str) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _first_line(error: Exception) -> str:
    """obstore appends its own debug output, some screens of it."""
    return str(error).partition("\n")[0] or type(error).__name__
