"""A node's budget of memory: what the rest leaves is divided over the caches, and given back when unused."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest

from strandline.node.broker.memory_budget import (
    GROWTH_BYTES,
    LOOK_SECONDS,
    TRIM_BYTES,
    TRIM_SECONDS,
    UNUSED_SECONDS,
    MemoryBudget,
    Share,
    Weighed,
    budget_of,
)
from strandline.node.config.node_config import LEAST_CACHE_BYTES
from strandline.node.level_one.block_cache import BlockCache
from strandline.node.level_zero.cache import ENTRY_BYTES, BatchCache
from tests.runtime.manual_loop import ManualLoop

MIB = 1024 * 1024
BATCH = MIB - ENTRY_BYTES


class Rig:
    """Three caches of 40, 20 and 60 MiB, in a process of 80 MiB besides."""

    def __init__(self, limit: int | None) -> None:
        self.loop = ManualLoop()  # type: ignore[abstract]
        self.caches = [BatchCache(size * MIB) for size in (40, 20, 60)]
        self.uses = [0, 0, 0]
        self.others, self.workers, self.kept = 80 * MIB, 0, 0
        self.trims = 0
        shares = [
            Share(cache, partial(self.uses.__getitem__, number)) for number, cache in enumerate(self.caches)
        ]
        self.budget = MemoryBudget(
            limit,
            shares,
            resident=lambda: (self.others + self.kept + self.held, self.workers),
            loop=cast(asyncio.AbstractEventLoop, self.loop),
            executor=None,
            give_back=self._give_back,
        )
        self.put = 0

    def _give_back(self) -> None:
        self.trims += 1
        self.kept = 0

    @property
    def held(self) -> int:
        return sum(cache.bytes for cache in self.caches)

    @property
    def limits(self) -> list[int]:
        return [cache.max_bytes // MIB for cache in self.caches]

    def fill(self, batches: int = 60) -> None:
        for cache in self.caches:
            for _ in range(batches):
                self.put += 1
                cache.put(self.put.to_bytes(8, "big"), 0, bytes(BATCH))

    def look(self, *used: int, times: int = 1) -> None:
        """Seconds pass, in each of which these caches are used so often."""
        for _ in range(times):
            for number, count in enumerate(used):
                self.uses[number] += count
            self.loop.advance(LOOK_SECONDS)
            self.budget.look()


def test_without_a_limit_each_cache_has_what_it_was_given() -> None:
    rig = Rig(None)
    rig.others = 10_000 * MIB
    rig.look(1, 1, 1, times=100)
    assert rig.limits == [40, 20, 60]
    assert rig.trims == 0


def test_a_cache_that_serves_nothing_gives_back_what_it_holds() -> None:
    rig = Rig(None)
    rig.fill()
    assert rig.held == 120 * MIB
    rig.look(0, 1, 0, times=int(UNUSED_SECONDS) + 1)
    assert rig.limits == [LEAST_CACHE_BYTES // MIB, 20, LEAST_CACHE_BYTES // MIB]
    assert rig.held == 24 * MIB
    assert rig.trims == 1, "and the memory goes back to the system"
    rig.look(1, 0, 0)
    assert rig.limits[0] == 40, "at its first use it has all again"


def test_the_caches_have_what_the_rest_leaves() -> None:
    rig = Rig(160 * MIB)
    rig.fill()
    rig.look(1, 1, 1)
    assert sum(rig.limits) in (79, 80)
    assert rig.others + rig.held <= 160 * MIB
    rig.workers = 50 * MIB
    rig.look(1, 1, 1)
    assert 27 <= sum(rig.limits) <= 30, "a worker that runs is part of it"
    assert rig.others + rig.workers + rig.held <= 160 * MIB


def test_use_decides_which_cache_has_it() -> None:
    rig = Rig(140 * MIB)
    rig.look(1000, 0, 10, times=40)
    first, second, third = rig.limits
    assert first == 40
    assert second < 4 < third
    rig.look(0, 0, 1000, times=40)
    assert rig.limits[2] > 40 > rig.limits[0]


def test_they_shrink_at_once_and_grow_step_by_step() -> None:
    rig = Rig(200 * MIB)
    rig.look(1, 1, 1)
    assert rig.limits == [40, 20, 60]
    rig.others = 180 * MIB
    rig.look(1, 1, 1)
    low = sum(cache.max_bytes for cache in rig.caches)
    assert low <= 20 * MIB
    rig.others = 80 * MIB
    rig.look(1, 1, 1)
    assert sum(cache.max_bytes for cache in rig.caches) == pytest.approx(low + GROWTH_BYTES, abs=10)
    rig.look(1, 1, 1, times=40)
    assert rig.limits == [40, 20, 60]


def test_a_node_that_is_too_large_keeps_the_least_in_each() -> None:
    rig = Rig(160 * MIB)
    rig.others = 500 * MIB
    rig.look(1, 1, 1)
    assert rig.limits == [LEAST_CACHE_BYTES // MIB] * 3


def test_free_memory_that_the_process_keeps_is_given_back() -> None:
    """Else the process stays above its limit, however small the caches are."""
    rig = Rig(160 * MIB)
    rig.kept = 100 * MIB
    rig.look(1, 1, 1)
    assert rig.trims == 1
    rig.look(1, 1, 1, times=60)
    assert sum(rig.limits) >= 79
    assert rig.trims == 1
    rig.others = 300 * MIB
    rig.look(1, 1, 1, times=int(TRIM_SECONDS) * 4)
    assert 1 < rig.trims <= 6, "and not at every look"


@pytest.mark.parametrize(("batches", "trims"), [(4, 0), (5, 1)])
def test_little_is_not_worth_giving_back(batches: int, trims: int) -> None:
    rig = Rig(None)
    rig.fill(batches)
    rig.look(times=int(UNUSED_SECONDS) + 1)
    freed = 3 * (batches * MIB - LEAST_CACHE_BYTES)
    assert (freed >= TRIM_BYTES) == bool(trims)
    assert rig.trims == trims


def test_it_looks_by_itself_until_it_is_closed() -> None:
    rig = Rig(None)
    rig.budget.start()
    rig.loop.advance(UNUSED_SECONDS + 2)
    assert rig.limits == [2, 2, 2]
    rig.budget.close()
    rig.uses = [1, 1, 1]
    rig.loop.advance(2 * LOOK_SECONDS)
    assert rig.limits == [2, 2, 2]


class Reads:
    """What a node wrote is read by one consumer, after a minute without one, under a node's budget."""

    def __init__(self, limit: int | None) -> None:
        self.loop = ManualLoop()  # type: ignore[abstract]
        self.written = BatchCache(48 * MIB)
        self.budget = budget_of(
            cast(
                "Weighed",
                SimpleNamespace(
                    config=SimpleNamespace(memory=SimpleNamespace(limit=limit)),
                    loop=self.loop,
                    work_executor=None,
                    written=self.written,
                    fetched=BatchCache(32 * MIB),
                    level_one_reader=SimpleNamespace(chunks=BatchCache(MIB), layouts=BatchCache(MIB)),
                    level_one_builder=None,
                    compactor=None,
                ),
            )
        )
        self.put = 0
        for _ in range(int(UNUSED_SECONDS) + 2):
            self._second()
        assert self.written.max_bytes == LEAST_CACHE_BYTES

    def _second(self) -> None:
        self.loop.advance(LOOK_SECONDS)
        self.budget.look()

    def read(self, size: int, *, a_second: int, behind: int, seconds: int) -> list[int]:
        """Misses in each second, with so many batches written and as many read `behind` them."""
        found = []
        for _ in range(seconds):
            before = self.written.misses
            for _ in range(a_second):
                self.put += 1
                self.written.put(self.put.to_bytes(8, "big"), 0, bytes(size))
                if self.put > behind:
                    self.written.get((self.put - behind).to_bytes(8, "big"), 0)
            found.append(self.written.misses - before)
            self._second()
        return found


@pytest.mark.parametrize("limit", [None, 4096 * MIB])
def test_a_cache_comes_back_for_batches_that_the_small_one_cannot_keep(limit: int | None) -> None:
    reads = Reads(limit)
    misses = reads.read(3 * MIB, a_second=2, behind=0, seconds=10)
    assert misses[0] == 2
    assert misses[2:] == [0] * 8
    if limit is None:
        assert reads.written.max_bytes == 48 * MIB


@pytest.mark.parametrize("limit", [None, 4096 * MIB])
def test_a_cache_comes_back_for_a_consumer_that_is_behind_what_the_small_one_holds(limit: int | None) -> None:
    reads = Reads(limit)
    misses = reads.read(MIB // 2, a_second=4, behind=12, seconds=20)
    assert misses[3] == 4
    assert misses[10:] == [0] * 10


class Block:
    bytes = 1
    sound = True


def test_a_block_cache_that_is_made_smaller_evicts() -> None:
    loop = ManualLoop()  # type: ignore[abstract]
    cache: BlockCache[Block] = BlockCache(10, loop=loop, by_use=False)
    for number in range(10):
        cache.put((b"object", number), Block())
    assert cache.bytes == 10
    cache.resize(4)
    assert (cache.bytes, len(cache), cache.max_bytes) == (4, 4, 4)
    assert cache.peek((b"object", 9)) is not None
    cache.resize(10)
    assert cache.max_bytes == 10
