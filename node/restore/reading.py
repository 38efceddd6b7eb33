"""A restore reads the storage: pages of names, and objects in parallel; and it refuses if that is no use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol, TypeVar

from strandline.node.objectstore.store import MAX_LIST

READS_AT_ONCE: Final = 16
"""Documents that are read in parallel."""
T = TypeVar("T")


class Listed(Protocol):
    """A storage whose names are wanted."""

    async def list(self, prefix: str, after: str, limit: int, /) -> Sequence[str]: ...


class CannotRestore(Exception):
    """There is nothing that could be restored, or not as it is; one line with the cure."""

    def __init__(self, cause: str, cure: str) -> None:
        super().__init__(f"{cause}: {cure}")
        self.cause = cause
        self.cure = cure


async def names_below(store: Listed, prefix: str) -> AsyncIterator[str]:
    """Names that begin with `prefix`, in order, a page at a time; raises StoreError."""
    after = ""
    while names := await store.list(prefix, after, MAX_LIST):
        for name in names:
            yield name
        after = names[-1]


async def for_each(todo: Iterable[T], work: Callable[[T], Awaitable[None]], at_once: int) -> None:
    """Do `work` with each, so many at a time; the first error ends it, and is raised."""
    left = iter(todo)

    async def worker() -> None:
        for one in left:
            await work(one)

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(at_once):
                tasks.create_task(worker())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
