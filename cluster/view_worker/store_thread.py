"""An object store for code that blocks: its loop runs in a thread of its own."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Protocol, TypeVar

from strandline.cluster.view_worker.left_folders import remove_left_folders
from strandline.node.objectstore.opening import StorePlace, open_store
from strandline.node.objectstore.retries import RetryPolicy
from strandline.node.objectstore.store import Buffer, ObjectStore
from strandline.node.raft.disk import RealDisk
from strandline.node.runtime.disk_threads import DiskThreads, NodeLoop

STORE_THREADS: Final = 4
POLICY: Final = RetryPolicy(attempt_seconds=30.0, total_seconds=120.0)
Value = TypeVar("Value")


class BlockingStore(Protocol):
    """An object store whose calls return once they have ended; they raise StoreError."""

    def put(self, key: str, parts: Sequence[Buffer], /) -> None: ...

    def put_all(self, objects: Sequence[tuple[str, Sequence[Buffer]]], /) -> None: ...

    def get(self, key: str, /) -> Buffer: ...

    def list(self, prefix: str, after: str, limit: int, /) -> list[str]: ...

    def delete_many(self, keys: Sequence[str], /) -> None: ...


class StoreThread:
    """The store of a place. Raises NotDone when it cannot be opened."""

    def __init__(self, place: StorePlace) -> None:
        self._loop = NodeLoop()
        threading.Thread(target=self._loop.run_forever, name="store", daemon=True).start()
        self._store = self._run(self._open(place))
        if place.is_folder:
            remove_left_folders(place.url, place.owner)

    async def _open(self, place: StorePlace) -> ObjectStore:
        return open_store(
            place,
            POLICY,
            loop=self._loop,
            disk=RealDisk(),
            executor=DiskThreads(STORE_THREADS, "store"),
            rng=random.Random(random.SystemRandom().getrandbits(256)),
            make=False,
        )

    def _run(self, work: Coroutine[Any, Any, Value]) -> Value:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """Store an object."""
        self._run(self._store.put(key, parts))

    def put_all(self, objects: Sequence[tuple[str, Sequence[Buffer]]]) -> None:
        """Store objects beside each other; one that fails raises its error once all have ended."""

        async def all_of_them() -> None:
            puts = (self._store.put(key, parts) for key, parts in objects)
            for ended in await asyncio.gather(*puts, return_exceptions=True):
                if isinstance(ended, BaseException):
                    raise ended

        self._run(all_of_them())

    def get(self, key: str) -> Buffer:
        """Read an object."""
        return self._run(self._store.get(key))

    def list(self, prefix: str, after: str, limit: int) -> list[str]:
        """List up to `limit` names with a prefix, those behind `after`, in order."""
        return self._run(self._store.list(prefix, after, limit))

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete objects; those that are not there are no error."""
        self._run(self._store.delete_many(keys))

    def close(self) -> None:
        """End the thread; nothing may be under way."""
        self._loop.call_soon_threadsafe(self._loop.stop)
