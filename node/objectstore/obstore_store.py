"""Objects in a bucket: S3, Google Cloud Storage, Azure, or memory, by obstore.

obstore's own retries are off, as ours know which outcomes are definite. A folder (file:) is refused: the
writer in obstore renames a finished file into place but never syncs it, nor can it be told to, so what it
calls stored may be gone after a power cut. LocalStore is for folders.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore import exceptions
from obstore.store import from_url

from strandline.node.objectstore.store import (
    Buffer,
    NotDone,
    ObjectNotFound,
    ObjectStore,
    OutcomeUnknown,
    RangeNotFound,
    StoreError,
    check_delete,
    check_key,
    check_list,
    check_put,
    check_range,
)

SCHEMES = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "memory")
_REFUSED = (
    exceptions.InvalidPathError,
    exceptions.NotSupportedError,
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    exceptions.UnknownConfigurationKeyError,
)
_LIST_CHUNK = 1000
_DURATION = re.compile(r" in \d+(\.\d+)?(s|ms|µs|ns) - ")
"""Duration in the server's refusal: it makes equal errors look different."""


class ObstoreStore(ObjectStore):
    """An ObjectStore at an obstore URL, such as `s3://bucket/prefix`.

    `options` are obstore's for that kind of store (`endpoint`, `region`, ...); what they do not say comes
    from the environment, as with the provider's own tools. `timeout_seconds` bounds each request. Raises
    NotDone for a URL or an option that will not do.
    """

    def __init__(
        self,
        url: str,
        *,
        options: Mapping[str, str] | None = None,
        timeout_seconds: float = 10.0,
        allow_http: bool = False,
        max_object_bytes: int = 256 * 1024 * 1024,
    ) -> None:
        self.max_object_bytes = max_object_bytes
        scheme = urlsplit(url).scheme
        if scheme == "file":
            reason = "obstore does not sync files, a power cut may take them: give the folder as a path"
            raise NotDone("open", url, reason, retriable=False)
        if scheme not in SCHEMES:
            raise NotDone("open", url, f"not one of {', '.join(SCHEMES)}", retriable=False)
        settings: dict[str, Any] = {}
        if scheme != "memory":
            settings = {
                "config": dict(options or {}),
                "client_options": {
                    "timeout": timedelta(seconds=timeout_seconds),
                    "connect_timeout": timedelta(seconds=timeout_seconds),
                    "allow_http": allow_http,
                },
                "retry_config": {"max_retries": 0, "retry_timeout": timedelta(seconds=timeout_seconds)},
            }
        try:
            self._store = from_url(url, **settings)
        except Exception as error:
            raise NotDone("open", url, first_line(error), retriable=False) from error
        except BaseException as error:
            # A panic of the library's Rust part is no Exception: it did not expect an option it knows of.
            if type(error).__name__ != "PanicException":
                raise
            reason = f"obstore cannot take these options: {', '.join(sorted(options or {}))}"
            raise NotDone("open", url, reason, retriable=False) from error

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        check_put(key, parts, self.max_object_bytes)
        # One request: a multipart upload would be several, and not atomic to abandon.
        try:
            await obstore.put_async(self._store, key, b"".join(parts), use_multipart=False)
        except Exception as error:
            raise changed("put", key, error) from error

    async def get(self, key: str) -> Buffer:
        check_key(key)
        try:
            result = await obstore.get_async(self._store, key)
            return memoryview(await result.bytes_async())
        except Exception as error:
            raise unread("get", key, error) from error

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        check_range(key, start, length)
        try:
            data = await obstore.get_range_async(self._store, key, start=start, length=length)
        except Exception as error:
            if isinstance(error, exceptions.GenericError) and await self._ends_before(key, start + length):
                raise RangeNotFound(key, start, length) from error
            raise unread("get_range", key, error) from error
        if len(data) != length:
            raise RangeNotFound(key, start, length)
        return memoryview(data)

    async def size(self, key: str) -> int:
        check_key(key)
        try:
            return (await obstore.head_async(self._store, key))["size"]
        except Exception as error:
            raise unread("size", key, error) from error

    async def list(self, prefix: str, after: str, limit: int) -> list[str]:
        check_list(prefix, after, limit)
        keys: list[str] = []
        try:
            stream = obstore.list(
                self._store, prefix or None, offset=after or None, chunk_size=min(limit, _LIST_CHUNK)
            )
            async for chunk in stream:
                keys += [meta["path"] for meta in chunk]
                if len(keys) >= limit:
                    break
        except Exception as error:
            raise unread("list", prefix, error) from error
        if any(key <= before for before, key in zip([after, *keys], keys, strict=False)):
            reason = "the store does not list in key order; a collector cannot work on it"
            raise NotDone("list", prefix, reason, retriable=False)
        return keys[:limit]

    async def delete_many(self, keys: Sequence[str]) -> None:
        check_delete(keys)
        if not keys:
            return
        try:
            await obstore.delete_async(self._store, [*keys])
        except FileNotFoundError:
            await self._delete_each(keys)
        except Exception as error:
            raise changed("delete", keys[0], error) from error

    async def close(self) -> None:
        """Nothing to let go of: connections end with the store."""

    async def _delete_each(self, keys: Sequence[str]) -> None:
        """Some stores end a deletion at the first key that is not there, with the rest undone."""
        for key in keys:
            try:
                await obstore.delete_async(self._store, key)
            except FileNotFoundError:
                continue
            except Exception as error:
                raise changed("delete", key, error) from error

    async def _ends_before(self, key: str, end: int) -> bool:
        try:
            return await self.size(key) < end
        except StoreError:
            return False


def first_line(error: Exception) -> str:
    """The first line of an error: obstore appends some screens of debug output, and the head of the server's
    answer."""
    line = str(error).partition("\n")[0].partition(": <?xml")[0]
    return _DURATION.sub(" - ", line) or type(error).__name__


def changed(operation: str, key: str, error: Exception) -> StoreError:
    """The error of a failed put or deletion. Only an outright refusal is definite."""
    if isinstance(error, FileNotFoundError):
        return missing_bucket(operation, key, error)
    if isinstance(error, (*_REFUSED, ValueError)):
        return NotDone(operation, key, first_line(error), retriable=False, cure=_cure(error))
    return OutcomeUnknown(operation, key, first_line(error))


def unread(operation: str, key: str, error: Exception) -> StoreError:
    """The error of a failed read: it changed nothing, so it is always definite."""
    # A listing of nothing is empty where there is a bucket; obstore has no error of its own for that.
    if operation == "list" and (isinstance(error, FileNotFoundError) or "404 Not Found" in first_line(error)):
        return missing_bucket(operation, key, error)
    if isinstance(error, FileNotFoundError):
        return ObjectNotFound(operation, key)
    retriable = not isinstance(error, (*_REFUSED, ValueError))
    return NotDone(operation, key, first_line(error), retriable=retriable, cure=_cure(error))


def missing_bucket(operation: str, key: str, error: Exception) -> NotDone:
    """There is nothing to store into."""
    reason = f"the bucket is missing ({first_line(error)})"
    return NotDone(operation, key, reason, retriable=False, cure="create the bucket, or correct storage.url")


def _cure(error: Exception) -> str:
    denied = isinstance(error, (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError))
    return "give the credentials in storage.options the right to do this, or correct them" if denied else ""
