"""One budget of memory for a node divides it over the caches, by their use and by what else the node takes.

Every second the process and its workers are weighed. What is left of `memory.limit` is divided over the
caches, each at least LEAST_BYTES, the rest by how much each was used lately. A cache that served nothing for
a minute gives back all but its least, with a limit or without one. docs/operating.md, "Memory".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final, Protocol

from strandline.node.admin.process import resident_bytes
from strandline.node.compaction.worker_compactor import WorkerCompactor
from strandline.node.config.node_config import LEAST_CACHE_BYTES, NodeConfig
from strandline.node.level_one.reader import LevelOneReader
from strandline.node.level_one.worker_builder import WorkerBuilder
from strandline.node.level_zero.cache import BatchCache
from strandline.node.runtime.allocator import give_back_memory
from strandline.node.runtime.rounds import until_round

MIB: Final = 1024 * 1024

LOOK_SECONDS: Final = 1.0
UNUSED_SECONDS: Final = 60.0
"""A cache that served nothing for so long gives back what it holds; as long as an idle worker stays."""
GROWTH_BYTES: Final = 4 * MIB
"""Bytes by which the caches together may grow from one look to the next; they shrink at once. A large request
comes and goes within a second, and would empty them again and again."""
TRIM_BYTES: Final = 8 * MIB
"""Memory that the caches have let go of goes back to the system from so much on."""
TRIM_SECONDS: Final = 5.0
"""Between two times that free memory is given back because the node is above its limit."""
_OLD: Final = 0.9
"""Weight of the uses before, at each look: ten seconds make a difference, one does not."""


class Cache(Protocol):
    """Something that holds bytes and can be told to hold fewer."""

    bytes: int
    max_bytes: int

    def resize(self, max_bytes: int) -> None:
        """Hold so much at most from now on; what is above is evicted."""


class Weighed(Protocol):
    """The parts of a node whose memory is weighed."""

    config: NodeConfig
    loop: asyncio.AbstractEventLoop
    work_executor: Executor | None
    written: BatchCache
    fetched: BatchCache
    level_one_reader: LevelOneReader

    @property
    def level_one_builder(self) -> object: ...
    @property
    def compactor(self) -> object: ...


@dataclass(slots=True)
class Share:
    """One cache's part of the budget. `uses` counts the lookups that show that it is of use."""

    cache: Cache
    uses: Callable[[], int]
    most: int = 0
    """Bytes: as configured."""
    seen: int = 0
    used_at: float = float("-inf")
    weight: float = 0.0

    @property
    def least(self) -> int:
        return min(LEAST_CACHE_BYTES, self.most)


class MemoryBudget:
    """Tells the caches how much they may hold. Belongs to one event loop."""

    def __init__(
        self,
        limit: int | None,
        shares: Sequence[Share],
        *,
        resident: Callable[[], tuple[int, int]],
        loop: asyncio.AbstractEventLoop,
        executor: Executor | None,
        give_back: Callable[[], object] = give_back_memory,
    ) -> None:
        """`resident` gives the bytes in RAM of this process, and those of its workers. Free memory is given
        back in `executor`, because that takes some milliseconds for 100 MB."""
        self.limit = limit
        self.node_bytes = self.worker_bytes = 0
        """By the last look."""
        self.given_back = 0
        """Times that free memory was given back to the system."""
        self._shares = shares
        self._resident = resident
        self._loop = loop
        self._executor = executor
        self._give_back = give_back
        self._room: int | None = None
        self._giving_back: asyncio.Future[object] | None = None
        self._given_back_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        for share in shares:
            share.most = share.cache.max_bytes
            share.used_at = loop.time()

    def start(self) -> None:
        """Look from now on, every LOOK_SECONDS."""
        self._timer = self._loop.call_later(until_round(self._loop, LOOK_SECONDS), self._tick)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> None:
        """Weigh the node, and divide what is left."""
        now = self._loop.time()
        for share in self._shares:
            uses = share.uses()
            if uses != share.seen:
                share.used_at = now
            share.weight = _OLD * share.weight + uses - share.seen
            share.seen = uses
        self.node_bytes, self.worker_bytes = self._resident()
        held = sum(share.cache.bytes for share in self._shares)
        for share, size in zip(self._shares, self._divided(now, held), strict=True):
            if size != share.cache.max_bytes:
                share.cache.resize(size)
        freed = held - sum(share.cache.bytes for share in self._shares)
        above = self.limit is not None and self.node_bytes + self.worker_bytes > self.limit
        if freed >= TRIM_BYTES or (above and now - self._given_back_at >= TRIM_SECONDS):
            self._trim(now)

    def _divided(self, now: float, held: int) -> list[int]:
        """The bytes of each cache."""
        wanted = [
            share.most if now - share.used_at < UNUSED_SECONDS else share.least for share in self._shares
        ]
        if self.limit is None:
            return wanted
        room = self.limit - self.worker_bytes - (self.node_bytes - held)
        if self._room is not None:
            room = min(room, self._room + GROWTH_BYTES)
        given = [share.least for share in self._shares]
        # Never below their least, nor above what all of them want: growth begins from there.
        self._room = room = min(max(room, sum(given)), sum(wanted))
        return _filled(given, wanted, [share.weight for share in self._shares], room - sum(given))

    def _trim(self, now: float) -> None:
        if self._giving_back is not None and not self._giving_back.done():
            return
        self.given_back += 1
        self._given_back_at = now
        self._giving_back = self._loop.run_in_executor(self._executor, self._give_back)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(until_round(self._loop, LOOK_SECONDS), self._tick)
        self.look()


def budget_of(parts: Weighed) -> MemoryBudget:
    """The budget of a node's caches and workers.

    What a node wrote is of use where it is found, or would be if the cache had not been made smaller: it goes
    into that cache whether it is read or not. What was fetched was asked for.
    """
    written, fetched, reader = parts.written, parts.fetched, parts.level_one_reader
    shares = (
        Share(written, lambda: written.hits + written.missed_for_size),
        Share(fetched, lambda: fetched.hits + fetched.misses),
        Share(reader.chunks, lambda: reader.chunks.hits + reader.chunks.misses),
        Share(reader.layouts, lambda: reader.layouts.hits + reader.layouts.misses),
    )

    def resident() -> tuple[int, int]:
        workers = [
            worker.process_id
            for worker in (parts.level_one_builder, parts.compactor)
            if isinstance(worker, WorkerBuilder | WorkerCompactor)
        ]
        return resident_bytes(), sum(resident_bytes(pid) for pid in workers if pid is not None)

    limit = parts.config.memory.limit
    return MemoryBudget(limit, shares, resident=resident, loop=parts.loop, executor=parts.work_executor)


def _filled(given: list[int], wanted: list[int], weights: list[float], left: int) -> list[int]:
    """The bytes that are given, and those left over divided by weight, up to what each wants."""
    while left > 0:
        open_ones = [number for number in range(len(given)) if given[number] < wanted[number]]
        if not open_ones:
            break
        total = sum(weights[number] + 1.0 for number in open_ones)
        parts = {number: int(left * (weights[number] + 1.0) / total) for number in open_ones}
        full = [number for number in open_ones if given[number] + parts[number] >= wanted[number]]
        for number in full or open_ones:
            part = wanted[number] - given[number] if full else parts[number]
            given[number] += part
            left -= part
        if not full:
            break
    return given
