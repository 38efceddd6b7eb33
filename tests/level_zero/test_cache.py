"""The batch cache: bounded by bytes, least recently used first, and it keeps nothing else alive."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.node.level_zero.cache import ENTRY_BYTES, MAX_GONE, BatchCache


def test_a_batch_is_found_by_object_and_position() -> None:
    cache = BatchCache(10_000)
    cache.put(b"object", 16, b"batch")
    assert cache.get(b"object", 16) == b"batch"
    assert cache.get(b"object", 17) is None
    assert cache.get(b"other", 16) is None
    assert (cache.hits, cache.misses) == (1, 2)
    assert (b"object", 16) in cache
    assert (cache.hits, cache.misses) == (1, 2)


def test_a_view_is_copied_so_that_it_keeps_nothing_else_alive() -> None:
    frame = bytearray(b"head batch tail")
    cache = BatchCache(10_000)
    cache.put(b"object", 0, memoryview(frame)[5:10])
    frame.clear()
    assert cache.get(b"object", 0) == b"batch"


def test_small_batches_are_bounded_by_what_they_really_cost() -> None:
    cache = BatchCache(100 * ENTRY_BYTES)
    for position in range(10_000):
        cache.put(b"object", position, b"x")
    assert len(cache) < 100


def test_a_batch_larger_than_the_cache_empties_nothing() -> None:
    cache = BatchCache(2000)
    cache.put(b"object", 0, b"small")
    cache.put(b"object", 1, bytes(2000))
    assert cache.get(b"object", 0) == b"small"
    with pytest.raises(ValueError, match="cannot have"):
        BatchCache(-1)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(1, 900)), max_size=80))
def test_it_is_a_least_recently_used_cache(steps: list[tuple[bool, int, int]]) -> None:
    cache = BatchCache(4000)
    model: OrderedDict[int, bytes] = OrderedDict()
    for is_put, position, size in steps:
        if is_put:
            cache.put(b"object", position, bytes(size))
            model.setdefault(position, bytes(size))
            while sum(len(data) + ENTRY_BYTES for data in model.values()) > 4000:
                model.popitem(last=False)
        else:
            assert cache.get(b"object", position) == model.get(position)
            if position in model:
                model.move_to_end(position)
        assert cache.bytes == sum(len(data) + ENTRY_BYTES for data in model.values()) <= 4000
        assert len(cache) == len(model)


def test_a_miss_of_what_a_cache_of_its_first_size_would_hold_is_counted() -> None:
    cache = BatchCache(10 * (1000 + ENTRY_BYTES))
    names = [number.to_bytes(2, "big") for number in range(14)]
    for name in names[:12]:
        cache.put(name, 0, bytes(1000))
    assert cache.get(names[0], 0) is None
    assert cache.missed_for_size == 0, "a larger cache was never given"
    cache.resize(2 * (1000 + ENTRY_BYTES))
    for name in names[2:10]:
        assert cache.get(name, 0) is None
    assert cache.missed_for_size == 8
    cache.put(names[12], 0, bytes(1000))
    assert cache.get(names[2], 0) is None
    assert cache.missed_for_size == 8, "the first size would have evicted it by now"
    cache.put(names[13], 0, bytes(5000))
    assert cache.get(names[13], 0) is None
    assert cache.missed_for_size == 9, "it is too large for the cache of now only"
    cache.put(b"huge", 0, bytes(20_000))
    assert cache.get(b"huge", 0) is None
    assert cache.missed_for_size == 9, "it would never be kept"


def test_what_is_remembered_is_bounded_by_its_number_too() -> None:
    cache = BatchCache(1_000_000_000)
    cache.resize(0)
    for number in range(MAX_GONE + 10):
        cache.put(number.to_bytes(4, "big"), 0, b"x")
    for number in range(MAX_GONE + 10):
        cache.get(number.to_bytes(4, "big"), 0)
    assert cache.missed_for_size == MAX_GONE
