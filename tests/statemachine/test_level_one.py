"""Level one: its names, and its rows against a plain list."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from strandline.statemachine.machine import Corruption
from strandline.statemachine.partition.level_one import (
    LEVEL_ONE_PREFIX,
    LEVEL_ONE_ROW,
    LevelOne,
    LevelOneExtent,
    level_one_name,
    parse_level_one_name,
    partition_prefix,
    topic_prefix,
)

TOPIC = bytes(range(16))
UNIQUE = bytes(range(100, 116))
NAME = "l1/000102030405060708090a0b0c0d0e0f/0000000007/00000000000000000042-6465666768696a6b6c6d6e6f70717273"


def extent(
    base: int,
    end: int,
    unique: int = 0,
    *,
    timestamp: int = 10,
    size: int = 100,
    index: int = 20,
    term: int = 3,
) -> LevelOneExtent:
    """An object that is called by its base offset unless told otherwise."""
    return LevelOneExtent(base, end, timestamp, size, index, term, (unique or base + 1).to_bytes(16, "big"))


# Names.


def test_a_name_tells_topic_partition_term_and_identity() -> None:
    assert level_one_name(TOPIC, 7, 42, UNIQUE) == NAME
    assert NAME.startswith(partition_prefix(TOPIC, 7))
    assert partition_prefix(TOPIC, 7).startswith(topic_prefix(TOPIC))
    assert topic_prefix(TOPIC).startswith(LEVEL_ONE_PREFIX)


@settings(max_examples=100, deadline=None)
@given(
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.binary(min_size=16, max_size=16),
)
def test_every_name_reads_back(topic_id: bytes, partition: int, term: int, unique: bytes) -> None:
    name = level_one_name(topic_id, partition, term, unique)
    assert parse_level_one_name(name) == (topic_id, partition, term, unique)


@settings(max_examples=50, deadline=None)
@given(st.tuples(st.integers(0, 12), st.integers(0, 2**63)), st.tuples(st.integers(0, 12), st.just(0)))
def test_no_partition_lies_under_another_ones_prefix(one: tuple[int, int], two: tuple[int, int]) -> None:
    """A sweep of partition 1 must not see what partition 10 has."""
    inside = level_one_name(TOPIC, *one, UNIQUE).startswith(partition_prefix(TOPIC, two[0]))
    assert inside == (one[0] == two[0])


@pytest.mark.parametrize(
    "name",
    [
        "",
        NAME + "\n",
        NAME + ".tmp",
        NAME[:-1],
        NAME.upper(),
        NAME.replace("l1/", "l0/"),
        NAME.replace("0000000007", "7"),
        NAME.replace("00000000000000000042", "42"),
        NAME.replace("0000000007", "000000000x"),
    ],
)
def test_any_other_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a level-one object"):
        parse_level_one_name(name)


def test_an_identity_has_sixteen_bytes() -> None:
    with pytest.raises(ValueError, match="16 unique bytes, not 5"):
        level_one_name(TOPIC, 0, 1, b"short")
    with pytest.raises(ValueError, match="a topic id has 16 bytes, not 5"):
        topic_prefix(b"short")


# Rows.


def test_a_row_has_60_bytes_whatever_the_machine() -> None:
    assert LEVEL_ONE_ROW.size == 60
    row = LEVEL_ONE_ROW.pack(*extent(5, 9, 7, timestamp=11, size=2**40, index=2**20, term=3))
    assert row == (
        b"".join(number.to_bytes(8, "little") for number in (5, 9, 11, 2**40))
        + (2**20).to_bytes(4, "little")
        + (3).to_bytes(8, "little")
        + (7).to_bytes(16, "big")
    )


@pytest.fixture
def four() -> LevelOne:
    level_one = LevelOne()
    level_one.append(
        [extent(10, 20), extent(20, 25, timestamp=30), extent(25, 40), extent(40, 41, timestamp=30)]
    )
    return level_one


def test_an_offset_finds_the_object_that_holds_it(four: LevelOne) -> None:
    found = {offset: four.extent_at(offset) for offset in (9, 10, 19, 20, 24, 25, 40, 41)}
    assert {offset: one and one.base_offset for offset, one in found.items()} == {
        9: None, 10: 10, 19: 10, 20: 20, 24: 20, 25: 25, 40: 40, 41: None,
    }  # fmt: skip
    assert LevelOne().extent_at(0) is None


@pytest.mark.parametrize(
    ("first", "end", "expected"),
    [
        (0, 99, [10, 20, 25, 40]),
        (0, 10, []),
        (0, 11, [10]),
        (19, 20, [10]),
        (19, 21, [10, 20]),
        (20, 25, [20]),
        (41, 99, []),
        (15, 15, []),
        (15, 14, []),
        (20, 20, []),
    ],
)
def test_a_range_gives_the_objects_that_hold_some_of_it(
    four: LevelOne, first: int, end: int, expected: list[int]
) -> None:
    assert [one.base_offset for one in four.between(first, end)] == expected


def test_by_time_the_first_object_that_reaches_it(four: LevelOne) -> None:
    found = [four.first_since(timestamp) for timestamp in (10, 11, 31)]
    assert [one and one.base_offset for one in found] == [10, 20, None]
    newest = four.newest()
    assert newest is not None
    assert newest.base_offset == 20
    assert LevelOne().newest() is None


def test_trimming_keeps_the_object_that_holds_the_offset(four: LevelOne) -> None:
    assert four.trim(10) == []
    assert [one.base_offset for one in four.trim(24)] == [10]
    assert [one.base_offset for one in four.trim(25)] == [20]
    assert [one.base_offset for one in four.trim(99)] == [25, 40]
    assert (len(four), four.bytes, four.end_offset) == (0, 0, 0)


def test_neighbours_are_replaced_by_objects_with_the_same_offsets(four: LevelOne) -> None:
    middle = list(four)[1:3]
    new = [extent(20, 22, 77, size=5, index=5), extent(22, 40, 78)]
    assert four.replace([(one.term, one.unique) for one in middle], new) == middle
    assert list(four) == [extent(10, 20), *new, extent(40, 41, timestamp=30)]
    assert four.bytes == 305
    assert new[0].unique in four
    assert middle[0].unique not in four
    assert four.extent_at(22) == new[1]


@pytest.mark.parametrize(
    "old",
    [
        [(3, 99)],
        [(4, 21)],
        [(3, 11), (3, 26)],
        [(3, 21), (3, 11)],
        [(3, 21), (3, 26), (3, 41), (3, 42)],
        [(3, 11), (3, 11)],
        [(3, 41), (3, 11)],
    ],
    ids=[
        "unknown",
        "other term",
        "not neighbours",
        "wrong order",
        "more than there is",
        "twice",
        "past the end",
    ],
)
def test_what_is_not_a_run_of_neighbours_is_not_replaced(four: LevelOne, old: list[tuple[int, int]]) -> None:
    before = list(four)
    run = [(term, unique.to_bytes(16, "big")) for term, unique in old]
    assert four.replace(run, [extent(20, 40, 77)]) is None
    assert (list(four), four.bytes) == (before, 400)


@pytest.mark.parametrize(
    ("new", "why"),
    [
        ([], "no objects"),
        ([extent(20, 39, 77)], "up to offset 39 cannot replace those up to 40"),
        ([extent(20, 41, 77)], "up to offset 41 cannot replace those up to 40"),
        ([extent(19, 40, 77)], "from offset 19 to 40 cannot follow on 20"),
        ([extent(20, 30, 77), extent(31, 40, 78)], "cannot follow on 30"),
        ([extent(20, 40, 21)], "named twice"),
        ([extent(20, 40, 11)], "named twice"),
    ],
)
def test_objects_with_other_offsets_do_not_replace(
    four: LevelOne, new: list[LevelOneExtent], why: str
) -> None:
    run = [(one.term, one.unique) for one in list(four)[1:3]]
    with pytest.raises(Corruption, match=why):
        four.replace(run, new)


@pytest.mark.parametrize(
    ("objects", "why"),
    [
        ([], "no objects"),
        ([extent(40, 45)], "from offset 40 to 45 cannot follow on 41"),
        ([extent(42, 45)], "cannot follow on 41"),
        ([extent(41, 41)], "from offset 41 to 41 cannot follow on 41"),
        ([extent(41, 43), extent(44, 45)], "cannot follow on 43"),
        ([extent(41, 43, 11)], "0b is named twice"),
        ([extent(41, 43, 77), extent(43, 45, 77)], "is named twice"),
        ([extent(41, 43, size=0, index=0)], "no level-one object is like"),
        ([extent(41, 43, size=10, index=11)], "no level-one object is like"),
        ([extent(41, 43, index=0)], "no level-one object is like"),
        ([extent(41, 43, term=-1)], "no level-one object is like"),
        ([extent(41, 43)._replace(unique=b"short")], "no level-one object is like"),
    ],
)
def test_what_does_not_follow_is_not_appended(
    four: LevelOne, objects: list[LevelOneExtent], why: str
) -> None:
    with pytest.raises(Corruption, match=why):
        four.append(objects)


def test_a_term_of_0_and_an_index_that_is_all_there_is_are_not_excluded() -> None:
    level_one = LevelOne()
    level_one.append([extent(0, 1, term=0, size=1, index=1)])
    assert level_one.bytes == 1


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (b"x", "not rows of 60"),
        (LEVEL_ONE_ROW.pack(*extent(0, 5)) * 2, "cannot follow on 5"),
        (LEVEL_ONE_ROW.pack(*extent(0, 0)), "cannot follow on 0"),
    ],
)
def test_rows_that_cannot_be_are_not_restored(rows: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        LevelOne.restored(rows)


class LevelOneAgainstList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.level_one = LevelOne()
        self.plain: list[LevelOneExtent] = []
        self.end = 0
        self.made = 0

    def new(self, base: int, counts: list[int], timestamp: int) -> list[LevelOneExtent]:
        made = []
        for count in counts:
            self.made += 1
            made.append(extent(base, base + count, self.made, timestamp=timestamp, size=20 + self.made))
            base += count
        return made

    @rule(counts=st.lists(st.integers(1, 4), min_size=1, max_size=4), timestamp=st.integers(0, 9))
    def append(self, counts: list[int], timestamp: int) -> None:
        new = self.new(self.end, counts, timestamp)
        self.level_one.append(new)
        self.plain += new
        self.end += sum(counts)

    @rule(first=st.integers(0, 9), count=st.integers(1, 3), cut=st.integers(1, 3))
    def replace(self, first: int, count: int, cut: int) -> None:
        old = self.plain[first : first + count]
        if not old:
            return
        records = old[-1].end_offset - old[0].base_offset
        counts = [cut, records - cut] if cut < records else [records]
        new = self.new(old[0].base_offset, counts, 5)
        assert self.level_one.replace([(one.term, one.unique) for one in old], new) == old
        self.plain[first : first + count] = new

    @rule(back=st.integers(0, 25))
    def trim(self, back: int) -> None:
        start = max(0, self.end - back)
        kept = [one for one in self.plain if one.end_offset > start]
        assert self.level_one.trim(start) == self.plain[: len(self.plain) - len(kept)]
        self.plain = kept

    @rule()
    def restore(self) -> None:
        self.level_one = LevelOne.restored(bytes(self.level_one.rows()))

    @rule(back=st.integers(-1, 25), span=st.integers(1, 25))
    def look_up_a_range(self, back: int, span: int) -> None:
        first = self.end - back
        expected = [one for one in self.plain if one.end_offset > first and one.base_offset < first + span]
        assert self.level_one.between(first, first + span) == expected
        at = self.level_one.extent_at(first)
        assert at == next((one for one in expected if one.base_offset <= first), None)

    @invariant()
    def same_as_the_list(self) -> None:
        assert list(self.level_one) == self.plain
        assert len(self.level_one) == len(self.plain)
        assert self.level_one.bytes == sum(one.size for one in self.plain)
        assert self.level_one.end_offset == (self.end if self.plain else 0)
        present = {one.unique for one in self.plain}
        for number in range(1, self.made + 1):
            unique = number.to_bytes(16, "big")
            assert (unique in self.level_one) == (unique in present)


TestLevelOneAgainstList = LevelOneAgainstList.TestCase
TestLevelOneAgainstList.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
