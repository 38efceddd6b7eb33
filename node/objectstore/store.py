"""Interface of an object store, and the outcomes of its operations.

A put is atomic and durable: when it returns, a reader finds the whole object, also after a power cut. When it
raises, the error's type says whether the object is certainly not there, or may be there now or appear later.
A caller that stores under a unique name may put the same bytes again after either.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from strandline.node.objectstore.object_file import Checked, ObjectFile

Buffer = bytes | bytearray | memoryview

MAX_KEY_BYTES = 512
MAX_LIST = 10_000
MAX_DELETE = 1_000
_SEGMENT = r"[A-Za-z0-9_][A-Za-z0-9_.=+-]{0,199}"
_KEY = re.compile(rf"{_SEGMENT}(/{_SEGMENT})*")


class StoreError(Exception):
    """An operation of a store did not succeed. `retriable`: the same call may succeed later.

    `cure` says what an operator can do about it, where that is known; empty where not.
    """

    def __init__(self, operation: str, key: str, reason: str, *, retriable: bool, cure: str = "") -> None:
        super().__init__(f"{operation} {key}: {reason}")
        self.operation = operation
        self.key = key
        self.reason = reason
        self.retriable = retriable
        self.cure = cure


class NotDone(StoreError):
    """Definite: the operation had no effect and will have none. Of a read: there is no answer."""


class ObjectNotFound(NotDone):
    """There is no such object."""

    def __init__(self, operation: str, key: str) -> None:
        super().__init__(operation, key, "there is no such object", retriable=False)


class RangeNotFound(NotDone):
    """The object is there and ends before the range does."""

    def __init__(self, key: str, start: int, length: int) -> None:
        reason = f"it ends before byte {start + length}, the end of a range of {length} bytes"
        super().__init__("get_range", key, reason, retriable=False)


class OutcomeUnknown(StoreError):
    """The operation may have taken effect, or take effect later; never to be taken for a failure."""

    def __init__(
        self, operation: str, key: str, reason: str, *, retriable: bool = True, cure: str = ""
    ) -> None:
        super().__init__(operation, key, reason, retriable=retriable, cure=cure)


class Wanted(NamedTuple):
    """Bytes of an object, and the memory that they are to go to."""

    key: str
    pieces: Sequence[tuple[int, memoryview]]
    """(position in the object, memory), each as long as its memory."""


def definite(last: StoreError, unknown: OutcomeUnknown | None) -> StoreError:
    """The error that tells the truth about all attempts: one with an unknown outcome taints the rest."""
    if unknown is None or not isinstance(last, NotDone) or last.operation not in ("put", "delete"):
        return last
    reason = f"{last.reason}; an attempt before it had no answer ({unknown.reason})"
    return OutcomeUnknown(last.operation, last.key, reason, retriable=last.retriable, cure=last.cure)


class ObjectStore(Protocol):
    """A flat space of named, immutable objects. Operations raise StoreError, and ValueError for bad keys."""

    max_object_bytes: int
    """Puts above this size are refused."""

    max_puts: int = 1_000
    """Beyond so many puts in parallel there is nothing to be gained."""

    @property
    def has_files(self) -> bool:
        """Whether objects are files of this machine, so that `open_file` may open one."""
        return False

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """Store the concatenation of `parts`, replacing an object of that name. Atomic and durable."""

    async def get(self, key: str) -> Buffer:
        """The whole object; ObjectNotFound when there is none."""

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """Exactly `length` (1 or more) bytes from `start`; ObjectNotFound, RangeNotFound if it is shorter."""

    async def fill(self, wanted: Sequence[Wanted]) -> list[bool]:
        """Read bytes of several objects straight to where they belong, in one go where objects are files.

        Says of each whether all of its memory was filled, and raises nothing: `get_range` tells why not. Once
        it has returned nothing writes to the memory any more; cancelled, something may.
        """
        return [False] * len(wanted)

    async def open_file(self, key: str) -> ObjectFile | None:
        """The object's file, held open; None where there is none to be had: read ranges then.

        ObjectNotFound when there is no such object.
        """
        return None

    async def checked(self, file: ObjectFile, ranges: Sequence[tuple[int, int]]) -> list[Checked]:
        """Read ranges (position, length) of an open file and tell their checksums; RangeNotFound if it ends
        before one of them does."""
        raise NotDone("get_range", file.key, "this store opens no files", retriable=False)

    async def size(self, key: str) -> int:
        """Length of an object in bytes; ObjectNotFound when there is none."""

    async def list(self, prefix: str, after: str, limit: int) -> list[str]:
        """Up to `limit` keys behind `after`, in key order, of those below `prefix` ("" or ends in "/").

        What was put before the call and not deleted is in it.
        """

    async def delete_many(self, keys: Sequence[str]) -> None:
        """Delete up to MAX_DELETE objects; those that are not there count as deleted."""

    async def close(self) -> None:
        """Let go of what the store holds. No operation may be under way."""


async def every_name(store: ObjectStore, prefix: str) -> list[str]:
    """All keys below `prefix`, in order, however many pages they are; raises StoreError."""
    found: list[str] = []
    while True:
        names = await store.list(prefix, found[-1] if found else "", MAX_LIST)
        found += names
        if len(names) < MAX_LIST:
            return found


def check_key(key: str) -> None:
    """Raise ValueError for a key that some store would read differently, or not take."""
    if len(key) > MAX_KEY_BYTES or not _KEY.fullmatch(key):
        raise ValueError(
            f"{key[:80]!r} cannot name an object: up to {MAX_KEY_BYTES} characters in segments of letters, "
            "digits and _.=+- that begin with a letter, a digit or _"
        )


def check_put(key: str, parts: Sequence[Buffer], max_object_bytes: int) -> int:
    """The size of an object about to be stored; ValueError for a bad key, NotDone when it is too large."""
    check_key(key)
    size = sum(map(len, parts))
    if size > max_object_bytes:
        reason = f"{size} bytes, this store takes up to {max_object_bytes}"
        raise NotDone("put", key, reason, retriable=False)
    return size


def check_range(key: str, start: int, length: int) -> None:
    check_key(key)
    if start < 0 or length < 1:
        raise ValueError(f"no range of {key} has {length} bytes from {start}")


def check_list(prefix: str, after: str, limit: int) -> None:
    if prefix:
        check_key(prefix.removesuffix("/"))
        if not prefix.endswith("/"):
            raise ValueError(f"{prefix!r} is not a prefix of keys: it must end in /")
    if not 1 <= limit <= MAX_LIST or len(after) > MAX_KEY_BYTES:
        raise ValueError(f"a listing gives 1 to {MAX_LIST} keys, not {limit}")


def check_delete(keys: Sequence[str]) -> None:
    for key in keys:
        check_key(key)
    if len(keys) > MAX_DELETE:
        raise ValueError(f"up to {MAX_DELETE} objects are deleted at a time, not {len(keys)}")
