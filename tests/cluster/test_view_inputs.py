"""A version's inputs: all below a bound is taken, and nothing above it, however records come."""

from __future__ import annotations

from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from strandline.cluster.view_worker.inputs import InputGone, Inputs

PLACE = ("t", 0)
OTHER = ("t", 1)
SIZE = 1 << 20


class Told:
    """A message, or an error in its place, as librdkafka gives it."""

    def __init__(self, number: int, offset: int, code: int | None = None) -> None:
        self._number, self._offset, self._code = number, offset, code

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return self._number

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return None if self._code is None else KafkaError(self._code)

    def timestamp(self) -> tuple[int, int]:
        return 1, 1000

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return str(self._offset).encode()


class Player:
    """A consumer over a log with gaps, which are aborted records, markers or cleaned ones.

    It gives records of partitions that are not paused, some at a time, and tells of each end it comes to.
    """

    def __init__(self, logs: dict[int, list[int]], ends: dict[int, int], sizes: list[int]) -> None:
        self.logs, self.ends, self.sizes = logs, ends, sizes
        self.next: dict[int, int] = {}
        self.paused: set[int] = set()
        self.ended: set[int] = set()

    def assign(self, places: list[TopicPartition]) -> None:
        self.next = {place.partition: place.offset for place in places}

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        return 0, self.ends[place.partition]

    def pause(self, places: list[TopicPartition]) -> None:
        self.paused |= {place.partition for place in places}

    def resume(self, places: list[TopicPartition]) -> None:
        self.paused -= {place.partition for place in places}

    def consume(self, most: int, seconds: float) -> list[Told]:
        found: list[Told] = []
        size = self.sizes.pop() if self.sizes else 3
        for number in self.next.keys() - self.paused:
            offsets = [offset for offset in self.logs[number] if offset >= self.next[number]][:size]
            found += [Told(number, offset) for offset in offsets]
            if offsets:
                self.next[number] = offsets[-1] + 1
            elif number not in self.ended:
                self.ended.add(number)
                found.append(Told(number, self.ends[number], KafkaError._PARTITION_EOF))
        return found


def inputs_of(player: Player, **begin: int | None) -> Inputs:
    return Inputs(cast(Consumer, player), {("t", int(name[1:])): offset for name, offset in begin.items()})


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
        for record in inputs.take(100, SIZE, 0, bounds).get("t", []):
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


def test_records_that_are_gone_end_it_and_passing_failures_do_not() -> None:
    player = Player({0: []}, {0: 0}, [])
    inputs = inputs_of(player, p0=5)
    told = [Told(0, -1001, KafkaError._TRANSPORT)]
    player.consume = lambda most, seconds: told  # type: ignore[method-assign]
    assert inputs.take(1, SIZE, 0) == {}
    told[:] = [Told(0, 5, KafkaError._AUTO_OFFSET_RESET)]
    with pytest.raises(InputGone, match="t-0 does not have the records any more"):
        inputs.take(1, SIZE, 0)
    told[:] = [Told(0, 5, KafkaError.TOPIC_AUTHORIZATION_FAILED)]
    with pytest.raises(KafkaException):
        inputs.take(1, SIZE, 0)


def test_a_record_below_the_position_is_not_taken_twice() -> None:
    player = Player({0: [3, 4, 5]}, {0: 6}, [9])
    inputs = inputs_of(player, p0=4)
    player.next[0] = 3
    assert [record.offset for record in inputs.take(9, SIZE, 0)["t"]] == [4, 5]


def test_an_end_does_not_pass_over_records_that_wait_in_a_partition_without_a_bound() -> None:
    player = Player({0: [0, 1]}, {0: 2}, [])
    inputs = inputs_of(player, p0=None)
    told = [Told(0, 0), Told(0, 1), Told(0, 2, KafkaError._PARTITION_EOF)]
    player.consume = lambda most, seconds: told  # type: ignore[method-assign]
    assert inputs.take(9, SIZE, 0, {OTHER: 5}) == {}  # a partition that came after the cut
    assert inputs.position == {PLACE: 0}
    assert [record.offset for record in inputs.take(9, SIZE, 0)["t"]] == [0, 1]


def test_a_partition_that_is_above_its_bound_is_read_no_further() -> None:
    player = Player({0: [*range(100)]}, {0: 100}, [4] * 50)
    inputs = inputs_of(player, p0=None)
    for _ in range(20):
        inputs.take(4, SIZE, 0, {PLACE: 2})
    assert player.next[0] == 4
    assert inputs.position == {PLACE: 2}


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
            inputs.give_back(found)
            most = 1 + most // 2
            continue
        most = 8
        for record in found.get("t", []):
            taken[record.partition].append(record.offset)
    assert taken == {0: first, 1: second}
    assert inputs.position == {PLACE: 31, OTHER: 31}


def test_a_step_takes_little_more_than_its_bytes() -> None:
    player = Player({0: [*range(1000)]}, {0: 1000}, [200] * 9)
    inputs = inputs_of(player, p0=None)
    taken = inputs.take(1000, 500, 0)["t"]
    assert len(taken) == 200, "what librdkafka gives at once"
    assert inputs.full
    assert len(inputs.take(1000, SIZE, 0)["t"]) == 800
    assert not inputs.full
