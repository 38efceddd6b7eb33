"""Objects at rest as jobs read them: blocking, read-only, and reopened wherever the job runs.

The node's own stores live on its event loop and write; a job does neither. It needs three operations, from
many processes: a `Storage` is therefore its URL and options when it is sent somewhere, and connects on first
use there. The keys are the node's, so a folder and a bucket look alike. See docs/level-zero.md.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from io import FileIO
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore import exceptions
from obstore.store import from_url

from strandline.snapshot.client_options import check_options

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ClientConfig, RetryConfig

Found = TypeVar("Found")
SCHEMES = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss")

_CHECK = "check the bucket's name, its options and what they permit"
LOOK_SECONDS = 60.0
"""Longest time for a listing or a small object, retries and all, before a job says that it has none. A range
of records, of which it may read for hours, is asked for as long as obstore does by itself, three minutes."""
_SAID = re.compile(r"<Code>([^<]*)</Code>(?:.*?<Message>([^<]*)</Message>)?", re.DOTALL)
"""Of the error that a store answers with."""
_STATUS = re.compile(r"status code: (\d{3})")
_REFUSED = re.compile(r"status code: 4(?!08|29)\d\d|[Rr]ange start")
"""Of the error for a request that is not right, as for bytes behind an object's end: it stays wrong."""
_UNREACHED = re.compile(r"(https?://[^/\s]+)\S* in .* - HTTP error: (.*)")


class StorageError(Exception):
    """Storage that cannot be read as asked: one line that names the object, or the URL, and the reason."""


class ObjectMissing(StorageError):
    """There is no object of this name, or not any more."""


class NoAnswer(StorageError):
    """The storage says nothing of the object: it is not reached or not mounted, which may pass by itself."""


class Storage(ABC):
    """Object storage of a cluster. All operations block, and raise StorageError."""

    url: str
    options: Mapping[str, str] = {}
    """Those of a bucket, as `open_storage` takes them."""
    window_bytes: int = 16 * 1024 * 1024
    """Bytes that are best read at a time. A bucket answers a small request as late as one of megabytes."""

    @abstractmethod
    def folders(self, prefix: str) -> list[str]:
        """Names of the folders directly below a prefix, in order."""

    @abstractmethod
    def get(self, key: str) -> bytes:
        """A whole object."""

    @abstractmethod
    def get_range(self, key: str, start: int, length: int) -> bytes:
        """So many bytes of an object from `start` on; fewer than asked for is an error."""

    def read_into(self, key: str, start: int, room: memoryview) -> None:
        """Fill `room` with the bytes of an object from `start` on; fewer than it takes is an error."""
        room[:] = self.get_range(key, start, len(room))

    @abstractmethod
    def list(self, prefix: str) -> list[str]:
        """The keys that start with a prefix, in key order. The prefix is empty or ends with a slash."""

    @abstractmethod
    def sizes(self, prefix: str) -> dict[str, int]:
        """Bytes of each object, by the keys that start with a prefix."""

    @abstractmethod
    def versions(self, prefix: str) -> dict[str, str]:
        """By the keys that start with a prefix, what is another for other bytes: an object's size, and its
        time of writing in a folder or its ETag in a bucket."""


def open_storage(url: str, options: Mapping[str, str] | None = None) -> Storage:
    """The storage at a folder's path or a bucket's URL (`s3://bucket/prefix`, `gs://`, `az://`).

    `options` are obstore's for that kind of store (`endpoint`, `region`, ...); what they do not say comes
    from the environment, as with the provider's own tools. Raises StorageError.
    """
    return BucketStorage(url, dict(options or {})) if is_bucket(url) else FolderStorage(url)


def is_bucket(url: str) -> bool:
    """Whether it is a bucket's URL and no folder's path; raises StorageError if it is neither."""
    try:
        scheme = urlsplit(url).scheme
    except ValueError as error:
        raise StorageError(f"{url}: {error}: name a folder, or a bucket as s3://bucket/prefix") from error
    if scheme and scheme not in SCHEMES:
        raise StorageError(f"{url}: not a folder's path, nor one of {', '.join(SCHEMES)}")
    return bool(scheme)


class FolderStorage(Storage):
    """A folder that the node's LocalStore writes: a file for each object, names with a dot are its own."""

    window_bytes = 4 * 1024 * 1024
    """A read costs next to nothing, and of so little the processor's cache has all when it is decoded."""

    def __init__(self, url: str) -> None:
        self.url = os.path.abspath(url)
        if not os.path.isdir(url):
            raise StorageError(f"{url}: there is no such folder: name the one that there is, or a bucket")
        self._was_empty = self._is_empty()

    def folders(self, prefix: str) -> list[str]:
        try:
            with self._scanned(prefix) as entries:
                return sorted(e.name for e in entries if not e.name.startswith(".") and e.is_dir())
        except FileNotFoundError:
            self._check_there()
            return []
        except OSError as error:
            raise self._said(f"{self.url}: {error}", error) from error

    def _walk(self, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
        try:
            with self._scanned(prefix) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir():
                        yield from self._walk(f"{prefix}{entry.name}/")
                    else:
                        yield prefix + entry.name, entry
        except FileNotFoundError:
            self._check_there()
        except OSError as error:
            raise self._said(f"{self.url}: {error}", error) from error

    def get(self, key: str) -> bytes:
        try:
            with self._opened(key) as file:
                return file.read()
        except OSError as error:
            raise self._failed(key, error) from error

    def get_range(self, key: str, start: int, length: int) -> bytes:
        try:
            with self._opened(key) as file:
                data = os.pread(file.fileno(), length, start)
        except OSError as error:
            raise self._failed(key, error) from error
        return _whole(self.url, key, start, length, data)

    def read_into(self, key: str, start: int, room: memoryview) -> None:
        try:
            with self._opened(key) as file:
                found = os.preadv(file.fileno(), [room], start)
        except OSError as error:
            raise self._failed(key, error) from error
        _check_length(self.url, key, start, len(room), found)

    def _scanned(self, prefix: str) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
        return self._twice(lambda: os.scandir(os.path.join(self.url, prefix)))

    def _opened(self, key: str) -> FileIO:
        return self._twice(lambda: open(os.path.join(self.url, key), "rb", buffering=0))

    def _twice(self, look: Callable[[], Found]) -> Found:
        """Look once more for what is missing: the whole folder may have come back meanwhile."""
        try:
            return look()
        except FileNotFoundError:
            self._check_there()
            return look()

    def _failed(self, key: str, error: OSError) -> StorageError:
        if isinstance(error, (FileNotFoundError, IsADirectoryError, NotADirectoryError)):
            self._check_there()
            return ObjectMissing(f"{self.url}: there is no object {key}")
        return self._said(f"{self.url}: object {key}: {error.strerror}", error)

    def _said(self, what: str, error: OSError) -> StorageError:
        """The error of a file. It stays where this user may not read; a whole folder may be mounted yet."""
        if isinstance(error, PermissionError):
            self._check_there()
            return StorageError(what)
        return NoAnswer(what)

    def _check_there(self) -> None:
        """Raise NoAnswer where the whole folder is gone: of what is in it nothing can be told then."""
        if self._is_empty() and not self._was_empty:
            raise NoAnswer(f"{self.url}: the folder is gone, or empty: bring it back, or mount it")

    def _is_empty(self) -> bool:
        """Whether there is nothing in the folder, as where it is not mounted, or no folder."""
        try:
            with os.scandir(self.url) as entries:
                return next(entries, None) is None
        except OSError:
            return True

    def list(self, prefix: str) -> list[str]:
        return sorted(key for key, _ in self._walk(prefix))

    def sizes(self, prefix: str) -> dict[str, int]:
        return {key: file.st_size for key, file in self._files(prefix)}

    def versions(self, prefix: str) -> dict[str, str]:
        return {key: f"{file.st_size}-{file.st_mtime_ns}" for key, file in self._files(prefix)}

    def _files(self, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
        for key, entry in self._walk(prefix):
            try:
                file = self._twice(entry.stat)
            except FileNotFoundError:
                self._check_there()
                continue  # deleted since it was listed
            except OSError as error:
                raise self._said(f"{self.url}: {error}", error) from error
            yield key, file


class BucketStorage(Storage):
    """A bucket, by obstore, whose own retries are right for reading."""

    def __init__(self, url: str, options: dict[str, str]) -> None:
        self.url = url
        self.options = options
        # A scheme that is written out is meant.
        plain = options.get("endpoint", "").startswith("http://")
        patience: RetryConfig = {"retry_timeout": timedelta(seconds=LOOK_SECONDS)}
        once: ClientConfig = {"allow_http": plain, "timeout": timedelta(seconds=LOOK_SECONDS / 2)}
        try:
            check_options(options)
            self._store = from_url(url, config=options, client_options=once, retry_config=patience)  # type: ignore[call-overload]
            self._ranges = from_url(url, config=options, client_options={"allow_http": plain})  # type: ignore[call-overload]
        except (exceptions.BaseError, ValueError) as error:
            raise StorageError(f"{url}: {_first_line(error)}") from error

    def __reduce__(self) -> tuple[Any, ...]:
        """A connection stays where it is; the other process makes its own."""
        return BucketStorage, (self.url, self.options)

    def folders(self, prefix: str) -> list[str]:
        try:
            found = obstore.list_with_delimiter(self._store, prefix or None)["common_prefixes"]
        except (exceptions.BaseError, OSError) as error:
            raise self._said(error, self.url) from error
        return sorted(name.rstrip("/").rpartition("/")[2] for name in found)

    def get(self, key: str) -> bytes:
        try:
            # Plain bytes, at the price of a copy: they are read one by one at twice the speed of a view's.
            return obstore.get(self._store, key).bytes().to_bytes()
        except (exceptions.BaseError, OSError) as error:
            raise self._failed(key, error) from error

    def get_range(self, key: str, start: int, length: int) -> bytes:
        try:
            data = obstore.get_range(self._ranges, key, start=start, length=length).to_bytes()
        except (exceptions.BaseError, OSError) as error:
            raise self._failed(key, error) from error
        return _whole(self.url, key, start, length, data)

    def _failed(self, key: str, error: Exception) -> StorageError:
        if isinstance(error, FileNotFoundError):
            return ObjectMissing(f"{self.url}: there is no object {key}")
        return self._said(error, f"{self.url}: object {key}")

    def _said(self, error: Exception, what: str) -> StorageError:
        passing = isinstance(error, (exceptions.GenericError, OSError)) and not _REFUSED.search(str(error))
        return (NoAnswer if passing else StorageError)(f"{what}: {_reason(error)}: {_CHECK}")

    def list(self, prefix: str) -> list[str]:
        return sorted(meta["path"] for meta in self._listed(prefix))

    def sizes(self, prefix: str) -> dict[str, int]:
        return {meta["path"]: meta["size"] for meta in self._listed(prefix)}

    def versions(self, prefix: str) -> dict[str, str]:
        return {
            meta["path"]: f"{meta['size']}-{meta['e_tag'] or meta['last_modified']}"
            for meta in self._listed(prefix)
        }

    def _listed(self, prefix: str) -> Iterator[ObjectMeta]:
        try:
            for chunk in obstore.list(self._store, prefix or None):
                yield from chunk
        except (exceptions.BaseError, OSError) as error:
            raise self._said(error, self.url) from error


def _whole(url: str, key: str, start: int, length: int, data: bytes) -> bytes:
    _check_length(url, key, start, length, len(data))
    return data


def _check_length(url: str, key: str, start: int, length: int, found: int) -> None:
    if found != length:
        raise StorageError(
            f"{url}: object {key} ends at byte {start + found}, bytes up to {start + length} were asked for"
        )


def _reason(error: Exception) -> str:
    """Say what a store answered, or that it did not, in a few words."""
    text = str(error)
    line = _first_line(error)
    if (said := _SAID.search(text)) is not None:
        code, message = said[1], " ".join((said[2] or "").split()).rstrip(".")
        status = _STATUS.search(line)
        return f"{code}{f' ({message})' if message else ''}{f', status {status[1]}' if status else ''}"
    if (unreached := _UNREACHED.search(line)) is not None:
        return f"{unreached[1]} does not answer ({unreached[2]})"
    return line


def _first_line(error: Exception) -> str:
    """obstore appends its own debug output, some screens of it."""
    return str(error).partition("\n")[0] or type(error).__name__
