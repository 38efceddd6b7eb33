"""A version's inputs: all below a bound is taken, and nothing above it, however records come."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from strandline.cluster.view_worker import inputs as inputs_module
from strandline.cluster.view_worker.fetched import NOTHING, Fetched, Place
from strandline.cluster.view_worker.inputs import Inputs
from strandline.snapshot.views.json_records import Record, batch_of, records_of

PLACE = ("t", 0)
OTHER = ("t", 1)
SIZE = 1 << 20


class Player:
    """A fetcher over a log with gaps, which are aborted records, markers or cleaned ones.

    It gives records some at a time, and tells of each end it comes to.
    """

    def __init__(self, logs: dict[int, list[int]], ends: dict[int, int], sizes: list[int]) -> None:
        self.logs, self.ends, self.sizes = logs, ends, sizes
        self.next: dict[Place, int] = {}
        self.ended: set[Place] = set()

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        return 0, self.ends[place.partition]

    def begin(self, cut: Mapping[Place, int]) -> None:
        self.next = dict(cut)

    def close(self) -> None:
        self.next = {}

    def fetch(self, but: Collection[Place], seconds: float) -> list[Fetched]:
        found = []
        size = self.sizes.pop() if self.sizes else 3
        for place in sorted(self.next.keys() - {*but}):
            offsets = [one for one in self.logs[place[1]] if one >= self.next[place]][:size]
            if offsets:
                self.next[place] = offsets[-1] + 1
                found.append(told(place, offsets, offsets[-1] + 1))
            elif place not in self.ended:
                self.ended.add(place)
                self.next[place] = self.ends[place[1]]
                found.append(told(place, [], self.ends[place[1]], end=True))
        return found


def told(place: Place, offsets: list[int], upto: int, *, end: bool = False) -> Fetched:
    records = [Record(place[1], offset, 1000, b"k", str(offset).encode()) for offset in offsets]
    return Fetched(place, batch_of(records) if records else NOTHING, upto, end)


def inputs_of(player: Player, **begin: int | None) -> Inputs:
    places = {("t", int(name[1:])): offset for name, offset in begin.items()}
    return Inputs(cast(Consumer, player), player, places)


def offsets_of(found: dict[str, Any]) -> list[int]:
    return [record.offset for record in records_of(found["t"])] if found else []


logs = st.sets(st.integers(0, 30)).map(sorted)


@given(
    first=logs,
    second=logs,
    bound=st.integers(0, 31),
    other=st.integers(0, 31),
    sizes=st.lists(st.integers(1, 9)),
)
def test_a_bound_is_reached_with_all_below_it_and_nothing_above_then_the_rest_comes_once(
    first: list[int], second: list[int], bound: int, other: int, sizes: list[int]
) -> None:
    player = Player({0: first, 1: second}, {0: 31, 1: 31}, sizes)
    inputs = inputs_of(player, p0=None, p1=None)
    cut = {PLACE: bound, OTHER: other}
    taken: dict[int, list[int]] = {0: [], 1: []}

    def take(bounds: dict[Any, int] | None) -> None:
        for batch in inputs.take(100, SIZE, 0, bounds).values():
            for record in records_of(batch):
                taken[record.partition].append(record.offset)

    for _ in range(200):
        if inputs.at(cut):
            break
        take(cut)
    assert inputs.position == cut
    assert taken == {0: [one for one in first if one < bound], 1: [one for one in second if one < other]}
    player.ended.clear()
    for _ in range(200):
        take(None)
    assert taken == {0: first, 1: second}
    assert inputs.position == {PLACE: 31, OTHER: 31}
    assert inputs.ended == {PLACE, OTHER}


def test_a_record_below_the_position_is_not_taken_twice() -> None:
    player = Player({0: [3, 4, 5]}, {0: 6}, [9])
    inputs = inputs_of(player, p0=4)
    player.next[PLACE] = 3
    assert offsets_of(inputs.take(9, SIZE, 0)) == [4, 5]


def test_an_end_does_not_pass_over_records_that_wait_in_a_partition_without_a_bound() -> None:
    player = Player({0: [0, 1]}, {0: 2}, [])
    inputs = inputs_of(player, p0=None)
    given = [[told(PLACE, [0], 1), told(PLACE, [1], 2), told(PLACE, [], 2, end=True)]]
    player.fetch = lambda but, seconds: given.pop() if given else []  # type: ignore[method-assign]
    assert inputs.take(9, SIZE, 0, {OTHER: 5}) == {}  # a partition that came after the cut
    assert inputs.position == {PLACE: 0}
    assert offsets_of(inputs.take(9, SIZE, 0)) == [0, 1]


def test_a_partition_that_is_above_its_bound_is_read_no_further() -> None:
    player = Player({0: [*range(100)]}, {0: 100}, [4] * 50)
    inputs = inputs_of(player, p0=None)
    for _ in range(20):
        inputs.take(4, SIZE, 0, {PLACE: 2})
    assert player.next[PLACE] == 4
    assert inputs.position == {PLACE: 2}


def test_no_more_comes_while_a_step_has_enough_and_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs_module, "AHEAD_BYTES", 3000)
    logs = {number: [*range(20)] for number in range(100)}
    player = Player(logs, dict.fromkeys(logs, 20), [20] * 100)
    asked: list[int] = []
    fetch = player.fetch

    def two(but: Collection[Place], seconds: float) -> list[Fetched]:
        asked.append(len(but))
        wanted = sorted(player.next.keys() - {*but} - player.ended)[:2]
        return fetch(player.next.keys() - {*wanted}, seconds)

    player.fetch = two  # type: ignore[method-assign]
    inputs = inputs_of(player, **{f"p{number}": None for number in logs})
    taken = 0
    for _ in range(1000):
        taken += len(offsets_of(inputs.take(10, SIZE, 0)))
    assert taken == 2000
    assert max(asked) < 12


def test_what_waits_beyond_its_bound_does_not_hold_up_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs_module, "AHEAD_BYTES", 1)
    player = Player({0: [*range(20)], 1: [*range(20)]}, {0: 20, 1: 20}, [4] * 50)
    inputs = inputs_of(player, p0=None, p1=None)
    for _ in range(20):
        inputs.take(4, SIZE, 0, {PLACE: 2, OTHER: 15})
    assert inputs.position == {PLACE: 2, OTHER: 15}


def test_a_bound_below_the_position_takes_nothing_back() -> None:
    player = Player({0: [3, 4, 5]}, {0: 6}, [9])
    inputs = inputs_of(player, p0=6)
    inputs.take(9, SIZE, 0, {PLACE: 3})
    assert inputs.ended == {PLACE}
    assert inputs.position == {PLACE: 6}


@given(first=logs, second=logs, sizes=st.lists(st.integers(1, 9)), bound=st.integers(0, 31))
def test_records_that_are_given_back_are_taken_again_and_ends_stay_reached(
    first: list[int], second: list[int], sizes: list[int], bound: int
) -> None:
    inputs = inputs_of(Player({0: first, 1: second}, {0: 31, 1: 31}, sizes), p0=None, p1=None)
    taken: dict[int, list[int]] = {0: [], 1: []}
    most = 8
    for turn in range(300):
        found = inputs.take(most, SIZE, 0, {PLACE: bound, OTHER: 31} if turn < 150 else None)
        if turn % 3 == 0 and found:
            inputs.give_back()
            most = 1 + most // 2
            continue
        most = 8
        for batch in found.values():
            for record in records_of(batch):
                taken[record.partition].append(record.offset)
    assert taken == {0: first, 1: second}
    assert inputs.position == {PLACE: 31, OTHER: 31}


def test_a_step_takes_little_more_than_its_bytes() -> None:
    player = Player({0: [*range(1000)]}, {0: 1000}, [200] * 9)
    inputs = inputs_of(player, p0=None)
    taken = offsets_of(inputs.take(1000, 500, 0))
    assert sum(1 + len(str(offset)) for offset in taken[:-1]) < 500
    assert sum(1 + len(str(offset)) for offset in taken) >= 500
    assert inputs.full
    assert offsets_of(inputs.take(1000, SIZE, 0)) == [*range(len(taken), 400)], "all that has come"
    assert not inputs.full


def test_what_is_given_back_has_the_end_behind_it() -> None:
    player = Player({0: [0, 1]}, {0: 9}, [])
    inputs = inputs_of(player, p0=None)
    given = [[told(PLACE, [0, 1], 2), told(PLACE, [], 9, end=True)]]
    player.fetch = lambda but, seconds: given.pop() if given else []  # type: ignore[method-assign]
    assert offsets_of(inputs.take(9, SIZE, 0)) == [0, 1]
    assert inputs.position == {PLACE: 9}
    inputs.give_back()
    assert inputs.position == {PLACE: 0}
    assert offsets_of(inputs.take(1, SIZE, 0)) == [0]
    assert offsets_of(inputs.take(9, SIZE, 0)) == [1]
    assert inputs.position == {PLACE: 9}
