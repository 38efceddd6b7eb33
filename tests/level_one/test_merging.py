"""Which small objects become one, and that no record is written again too often."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.node.level_one.merging import MAX_SOURCES, next_merge
from strandline.node.level_one.plan import Grain
from strandline.statemachine.partition.level_one import LevelOneExtent
from tests.level_one.upkeep_harness import HEADER_BYTES, INDEX_BYTES, KIB

TARGET = 64 * KIB
ANY = Grain(TARGET, None)


def objects(*payloads: int, timestamps: Sequence[int] = ()) -> list[LevelOneExtent]:
    return [
        LevelOneExtent(
            number,
            number + 1,
            timestamps[number] if timestamps else 0,
            payload + HEADER_BYTES + INDEX_BYTES,
            INDEX_BYTES,
            1,
            number.to_bytes(16, "big"),
        )
        for number, payload in enumerate(payloads)
    ]


def found(some: list[LevelOneExtent], count: int = 4, grain: Grain = ANY) -> list[int]:
    return [one.base_offset for one in next_merge(some, count, grain)]


def test_so_many_neighbours_of_a_class_are_one_run_and_fewer_are_none() -> None:
    assert found(objects(100, 100, 100)) == []
    assert found(objects(100, 100, 100, 100)) == [0, 1, 2, 3]
    assert found(objects(100, 100, 100, 100, 100)) == [0, 1, 2, 3]
    # 64 to 255 is one class with a count of 4.
    assert found(objects(64, 255, 64, 255)) == [0, 1, 2, 3]
    assert found(objects(64, 256, 64, 64, 64, 63)) == []


def test_a_larger_one_between_keeps_them_apart_until_there_are_enough_of_its_class() -> None:
    big = 300
    assert found(objects(100, 100, big, 100, 100)) == []
    assert found(objects(100, big, 100, big, 100, big, 100)) == []
    assert found(objects(100, big, 100, big, 100, big, 100, big, 100)) == [0, 1, 2, 3, 4, 5, 6, 7]


def test_the_smallest_class_comes_first() -> None:
    assert found(objects(300, 300, 300, 300, 70, 70, 70, 70)) == [4, 5, 6, 7]


def test_the_result_keeps_within_the_size_and_large_ones_are_left_alone() -> None:
    quarter = TARGET // 4
    assert found(objects(*[quarter] * 8)) == []
    less = (TARGET - 4 * (HEADER_BYTES + INDEX_BYTES)) // 4
    assert found(objects(*[less] * 8)) == [0, 1, 2, 3]
    assert found(objects(*[less + 1] * 8)) == []
    assert found(objects(*[10 * KIB] * 8), grain=Grain(20 * KIB, None)) == []


def test_the_run_slides_over_what_does_not_fit() -> None:
    # The first of them makes it too large: without it there are still enough.
    large, small = 20 * KIB, 16 * KIB + 10
    some = objects(large, small, small, small, small)
    assert found(some, grain=Grain(66 * KIB, None)) == [1, 2, 3, 4]
    assert found(some[:4], grain=Grain(66 * KIB, None)) == []


def test_the_result_keeps_within_the_time() -> None:
    some = objects(*[100] * 8, timestamps=[0, 10, 20, 30, 40, 41, 42, 43])
    assert found(some, grain=Grain(TARGET, 30)) == [0, 1, 2, 3]
    assert found(some, grain=Grain(TARGET, 29)) == [2, 3, 4, 5]
    assert found(some, grain=Grain(TARGET, 3)) == [4, 5, 6, 7]
    assert found(some, grain=Grain(TARGET, 2)) == []
    # Producers' clocks may also run backwards.
    back = objects(*[100] * 4, timestamps=[90, 60, 30, 0])
    assert found(back, grain=Grain(TARGET, 50)) == []


def test_a_run_has_a_bound() -> None:
    """Below the class in question many may lie between, each time too few to be a run of their own."""
    large = Grain(1 << 30, None)
    for between, wanted in ((15, 16 * 99 + 16), (50, 0)):
        some = objects(*([1] * between + [150]) * 100)
        assert len(found(some, 100, large)) == wanted <= MAX_SOURCES


def test_as_many_as_may_be_configured_become_one() -> None:
    assert len(found(objects(*[100] * 1_000), 1_000, Grain(1 << 30, None))) == 1_000


@settings(deadline=None)
@given(st.lists(st.integers(1, 20 * KIB), min_size=1, max_size=60), st.sampled_from([2, 3, 4, 8]))
def test_every_record_comes_into_a_higher_class_each_time(payloads: list[int], count: int) -> None:
    """Played to its end: a record is written again at most once a class, and little is left to merge."""
    some = objects(*payloads)
    rewritten = {one.unique: 0 for one in some}
    members = {one.unique: [one.unique] for one in some}
    fresh = 10_000
    while run := next_merge(some, count, ANY):
        first = some.index(run[0])
        assert list(run) == some[first : first + len(run)]
        assert len(run) >= count
        payload = sum(one.size - HEADER_BYTES - INDEX_BYTES for one in run)
        assert payload + HEADER_BYTES + INDEX_BYTES <= TARGET
        fresh += 1
        unique = fresh.to_bytes(16, "big")
        members[unique] = [each for one in run for each in members[one.unique]]
        for each in members[unique]:
            rewritten[each] += 1
        merged = LevelOneExtent(
            run[0].base_offset,
            run[-1].end_offset,
            0,
            payload + HEADER_BYTES + INDEX_BYTES,
            INDEX_BYTES,
            1,
            unique,
        )
        some[first : first + len(run)] = [merged]
    classes = 0
    while count ** (classes + 1) <= TARGET:
        classes += 1
    assert max(rewritten.values()) <= classes


def test_a_day_of_little_traffic_leaves_few_objects_and_writes_each_record_a_few_times() -> None:
    """An object of about 20 KiB a minute, with a target of 64 MiB and a count of 8, as configured."""
    rng = random.Random(1)
    grain = Grain(64 * KIB * KIB, None)
    some: list[LevelOneExtent] = []
    written = merged = 0
    for minute in range(24 * 60):
        payload = rng.randrange(10 * KIB, 30 * KIB)
        written += payload
        size = payload + HEADER_BYTES + INDEX_BYTES
        some.append(LevelOneExtent(minute, minute + 1, 0, size, INDEX_BYTES, 1, minute.to_bytes(16, "big")))
        while run := next_merge(some, 8, grain):
            first = some.index(run[0])
            total = sum(one.size - HEADER_BYTES - INDEX_BYTES for one in run)
            merged += total
            unique = (1_000_000 + merged).to_bytes(16, "big")
            some[first : first + len(run)] = [
                LevelOneExtent(run[0].base_offset, run[-1].end_offset, 0, total + 116, INDEX_BYTES, 1, unique)
            ]
    assert len(some) <= 4 * 8
    assert merged / written <= 4
