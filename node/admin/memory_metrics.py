"""The samples about what a node may take: memory for its records and what it reads ahead, and money."""

from __future__ import annotations

from typing import Any

from strandline.node.admin.exposition import Page, label
from strandline.node.admin.source import AdminSource
from strandline.node.level_one.block_cache import BlockCache
from strandline.node.level_zero.cache import BatchCache
from strandline.node.level_zero.read_pace import ReadPaces


def memory(page: Page, source: AdminSource) -> None:
    """Each cache, what the node takes in all, and the consumers that are read ahead for."""
    _cache(page, "written", source.written)
    _cache(page, "fetched", source.fetched)
    _cache(page, "blocks", source.level_one_reader.chunks)
    _cache(page, "indexes", source.level_one_reader.layouts)
    budget = source.memory
    if budget.limit is not None:
        page.add("strandline_memory_limit_bytes", budget.limit)
    page.add("strandline_memory_bytes", budget.node_bytes, label("of", "node"))
    page.add("strandline_memory_bytes", budget.worker_bytes, label("of", "workers"))
    page.add("strandline_memory_given_back_total", budget.given_back)
    _paces(page, "zero", source.reader.paces)
    _paces(page, "one", source.level_one_reader.paces)


def money(page: Page, source: AdminSource) -> None:
    """The budget for the store's requests, where there is one."""
    budget = source.batcher.money
    if budget is not None:
        page.add("strandline_store_budget_left", budget.left)
        page.add("strandline_store_spent_total", budget.spent)
        page.add("strandline_store_budget_per_month", budget.per_month)
        page.add("strandline_store_budget_exceeded_total", budget.exceeded)


def _cache(page: Page, name: str, cache: BatchCache | BlockCache[Any]) -> None:
    which = label("cache", name)
    page.add("strandline_cache_bytes", cache.bytes, which)
    page.add("strandline_cache_limit_bytes", cache.max_bytes, which)
    page.add("strandline_cache_entries", len(cache), which)
    page.add("strandline_cache_hits_total", cache.hits, which)
    page.add("strandline_cache_misses_total", cache.misses, which)
    page.add("strandline_cache_evictions_total", cache.evicted, which)


def _paces(page: Page, level: str, paces: ReadPaces) -> None:
    page.add("strandline_read_ahead_consumers", paces.readers, label("level", level))
    page.add("strandline_read_ahead_window_bytes", paces.window_bytes, label("level", level))
