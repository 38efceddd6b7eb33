"""Cache of level-one blocks and indexes: each is loaded once for all its readers, bounded in bytes.

Blocks are evicted in the order of their arrival, used or not; a block that was read ahead and not requested
yet is spared once. A consumer that catches up reads each block once or twice and then never again, so keeping
the most recently used would evict the blocks that are about to be used. Only indexes, which every read needs,
may be kept by use.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeAlias, TypeVar

from strandline.node.objectstore.store import NotDone, StoreError
from strandline.snapshot.object_frame import BadObject

Key = tuple[bytes, int]
"""Unique bytes of an object, and which part of it."""


class Sized(Protocol):
    """Something immutable that was loaded."""

    @property
    def bytes(self) -> int:
        """The memory it takes."""

    @property
    def sound(self) -> bool:
        """Whether it is worth keeping; its readers get it in any case."""


T = TypeVar("T", bound=Sized)
Loaded: TypeAlias = T | StoreError | BadObject


class BlockCache(Generic[T]):
    """Things by key, present or on their way. Belongs to one event loop.

    With `by_use` the least recently used goes first, otherwise the oldest.
    """

    def __init__(self, max_bytes: int, *, loop: asyncio.AbstractEventLoop, by_use: bool) -> None:
        if max_bytes < 0:
            raise ValueError(f"a cache cannot have {max_bytes} bytes; 0 keeps nothing")
        self.max_bytes = max_bytes
        self.bytes = 0
        self.hits = self.misses = 0
        self.joined = 0
        """Number of misses whose block was being loaded already."""
        self.evicted = 0
        self.wasted = 0
        """Evicted entries that were read ahead and never requested."""
        self.ahead_bytes = 0
        """Read ahead, here or on its way, and not asked for yet."""
        self._loop = loop
        self._by_use = by_use
        self._present: OrderedDict[Key, T] = OrderedDict()
        self._loading: dict[Key, asyncio.Future[Loaded[T]]] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._ahead: dict[Key, int] = {}
        self._spared: set[Key] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._present)

    def peek(self, key: Key) -> T | None:
        """The cached entry, without counting as a use."""
        return self._present.get(key)

    def get(self, key: Key, load: Callable[[], Awaitable[T]]) -> T | asyncio.Future[Loaded[T]]:
        """The cached entry, or a future of its load, which is started unless one is in progress.

        The future's result is the thing or the StoreError or BadObject that `load` raised: see `arrived`.
        """
        self.ahead_bytes -= self._ahead.pop(key, 0)
        self._spared.discard(key)
        present = self._present.get(key)
        if present is not None:
            self.hits += 1
            if self._by_use:
                self._present.move_to_end(key)
            return present
        self.misses += 1
        loading = self._loading.get(key)
        if loading is not None:
            self.joined += 1
            return loading
        return self._start(key, load)

    def ahead(self, key: Key, size: int, load: Callable[[], Awaitable[T]]) -> bool:
        """Load something of about `size` bytes that will be wanted soon; False where too much is waiting so.

        At most half of the cache is for that: what was read ahead may not push out what was read ahead.
        """
        if key in self._present or key in self._loading:
            return True
        if self._closed or self.ahead_bytes + size > self.max_bytes // 2:
            return False
        self._ahead[key] = size
        self.ahead_bytes += size
        self._start(key, load)
        return True

    def put(self, key: Key, value: T) -> None:
        """Keep something that came with something else."""
        if key in self._present or not value.sound or value.bytes > self.max_bytes:
            self.ahead_bytes -= self._ahead.pop(key, 0)
            return
        self._present[key] = value
        self.bytes += value.bytes
        self._evict()

    def resize(self, max_bytes: int) -> None:
        """Hold so much at most from now on; what is above is evicted."""
        self.max_bytes = max_bytes
        self._evict()

    def _evict(self) -> None:
        while self.bytes > self.max_bytes:
            oldest, dropped = self._present.popitem(last=False)
            if oldest in self._ahead and oldest not in self._spared:
                self._spared.add(oldest)
                self._present[oldest] = dropped
                continue
            self._spared.discard(oldest)
            self.bytes -= dropped.bytes
            self.evicted += 1
            unused = self._ahead.pop(oldest, None)
            if unused is not None:
                self.ahead_bytes -= unused
                self.wasted += 1

    def drop(self, which: Callable[[T], bool]) -> None:
        """Let go of the entries that are present and of which this is true."""
        for key in [key for key, value in self._present.items() if which(value)]:
            self.bytes -= self._present.pop(key).bytes
            self.ahead_bytes -= self._ahead.pop(key, 0)
            self._spared.discard(key)

    async def close(self) -> None:
        """End the loads in progress; their readers get an error."""
        self._closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)
        # A task that never ran has delivered nothing.
        for key in [*self._loading]:
            self._deliver(key, _stopping())

    def _start(self, key: Key, load: Callable[[], Awaitable[T]]) -> asyncio.Future[Loaded[T]]:
        future: asyncio.Future[Loaded[T]] = self._loop.create_future()
        if self._closed:
            future.set_result(_stopping())
            return future
        self._loading[key] = future
        self._tasks[key] = self._loop.create_task(self._load(key, load))
        return future

    async def _load(self, key: Key, load: Callable[[], Awaitable[T]]) -> None:
        loaded: Loaded[T] = _stopping()
        try:
            loaded = await load()
        except (StoreError, BadObject) as error:
            loaded = error
        except Exception as error:
            loaded = NotDone("get_range", key[0].hex(), f"{type(error).__name__}: {error}", retriable=False)
            self._loop.call_exception_handler({"message": "reading level one", "exception": error})
        finally:
            self._deliver(key, loaded)

    def _deliver(self, key: Key, loaded: Loaded[T]) -> None:
        self._tasks.pop(key, None)
        if isinstance(loaded, (StoreError, BadObject)):
            self.ahead_bytes -= self._ahead.pop(key, 0)
        else:
            self.put(key, loaded)
        # By value, because a block that is read ahead may have no reader to take an exception.
        self._loading.pop(key).set_result(loaded)


async def arrived(wanted: T | asyncio.Future[Loaded[T]]) -> T:
    """The result of `BlockCache.get`, once it is loaded; raises the StoreError or BadObject of the load.

    A reader that stops waiting does not disturb the others.
    """
    if not isinstance(wanted, asyncio.Future):
        return wanted
    loaded = await asyncio.shield(wanted)
    if isinstance(loaded, (StoreError, BadObject)):
        raise loaded
    return loaded


def _stopping() -> NotDone:
    return NotDone("get_range", "", "the node is stopping", retriable=True)
