"""Extents against a plain list: lookups, trimming, and rows that come back as they were."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import strandline.statemachine.partition.extents
from strandline.statemachine.partition.extent import (
    ROW,
    ROW_BYTES,
    Extent,
    InlineExtent,
    ObjectExtent,
    StoredInline,
)
from strandline.statemachine.partition.extents import CHUNK_ROWS, Extents
from tests.statemachine.partitions import OBJECT


@pytest.fixture
def many() -> tuple[Extents, list[Extent]]:
    """Several chunks of extents of both kinds, and the same as a list."""
    chance = random.Random(1)
    extents = Extents()
    plain: list[Extent] = []
    for number in range(CHUNK_ROWS * 3 + 7):
        count, timestamp, base = chance.randint(1, 9), chance.randint(0, 10**6), extents.end_offset
        if number % 10 == 0:
            extents.append_inline(count, 4, timestamp, b"x" * count)
            plain.append(InlineExtent(base, count, 4, timestamp, count, b"x" * count))
        else:
            extents.append_object(count, 4, timestamp, 100, 6 + number // 100, number, OBJECT)
            plain.append(ObjectExtent(base, count, 4, timestamp, 100, 6 + number // 100, number, OBJECT))
    return extents, plain


def test_a_row_has_69_bytes_whatever_the_machine() -> None:
    assert ROW_BYTES == 69
    assert ROW.format == "<BqIqqIqq20s"


def test_extents_come_back_in_order(many: tuple[Extents, list[Extent]]) -> None:
    extents, plain = many
    assert list(extents) == plain
    assert len(extents) == len(plain)
    assert len(extents.rows()) == 4
    assert extents.end_offset == plain[-1].end_offset


def test_a_range_is_found_wherever_it_begins_and_ends(many: tuple[Extents, list[Extent]]) -> None:
    extents, plain = many
    chance = random.Random(2)
    for _ in range(100):
        first = chance.randrange(extents.end_offset)
        end = first + chance.choice([1, 5, 100, 10**6])
        expected = [one for one in plain if one.end_offset > first and one.base_offset < end]
        assert extents.between(first, end, 10**9) == expected


def test_every_offset_finds_the_extent_that_holds_it(many: tuple[Extents, list[Extent]]) -> None:
    extents, plain = many
    for extent in plain[CHUNK_ROWS - 3 : CHUNK_ROWS + 3]:
        for offset in range(extent.base_offset, extent.end_offset):
            assert extents.between(offset, offset + 1, 1) == [extent]


def test_a_range_stops_before_the_byte_limit_but_gives_one(many: tuple[Extents, list[Extent]]) -> None:
    extents, plain = many
    first = plain[1].base_offset
    assert extents.between(first, 10**9, 1) == plain[1:2]
    assert extents.between(first, 10**9, 299) == plain[1:3]
    assert extents.between(first, 10**9, 300) == plain[1:4]


def test_nothing_is_found_outside(many: tuple[Extents, list[Extent]]) -> None:
    extents, _ = many
    assert extents.between(extents.end_offset, 10**9, 10**9) == []
    assert extents.between(7, 7, 10**9) == []
    assert Extents().between(0, 10, 10) == []


def test_by_timestamp_the_first_extent_that_reaches_it(many: tuple[Extents, list[Extent]]) -> None:
    extents, plain = many
    for timestamp in (0, 10, 999_000, *(one.max_timestamp for one in plain[::50])):
        assert extents.first_since(timestamp) == next(
            (one for one in plain if one.max_timestamp >= timestamp), None
        )
    newest = max(one.max_timestamp for one in plain)
    assert extents.first_since(newest + 1) is None
    assert extents.newest() == next(one for one in plain if one.max_timestamp == newest)
    assert Extents().newest() is None


@pytest.mark.parametrize("row", [0, 1, CHUNK_ROWS - 1, CHUNK_ROWS, CHUNK_ROWS + 5, CHUNK_ROWS * 3 + 6])
def test_trimming_keeps_the_extent_that_holds_the_offset(
    many: tuple[Extents, list[Extent]], row: int
) -> None:
    extents, plain = many
    extents.trim(plain[row].end_offset - 1)
    assert list(extents) == plain[row:]
    assert extents.first_offset == plain[row].base_offset
    assert extents.bytes == sum(one.length for one in plain[row:])
    rest = [one.epoch for one in plain[row:] if isinstance(one, ObjectExtent)]
    assert extents.oldest_epoch == min(rest)
    assert extents.newest() == max(plain[row:], key=lambda one: one.max_timestamp)
    assert [base for base, _ in extents.inline()] == [
        one.base_offset for one in plain[row:] if isinstance(one, InlineExtent)
    ]


def test_trimming_everything_keeps_the_end(many: tuple[Extents, list[Extent]]) -> None:
    extents, plain = many
    extents.trim(plain[-1].end_offset)
    assert list(extents) == []
    assert (extents.bytes, extents.first_offset) == (0, plain[-1].end_offset)
    assert extents.oldest_epoch is None
    assert extents.append_inline(1, 5, 0, b"x") == plain[-1].end_offset


def test_rows_do_not_tell_how_they_came_to_be(many: tuple[Extents, list[Extent]]) -> None:
    """Chunks of a trimmed and of a restored copy lie otherwise; their bytes are the same."""
    extents, plain = many
    extents.trim(plain[100].base_offset)
    copy = Extents.restored(b"".join(extents.rows()), extents.inline(), extents.end_offset)
    for one in (extents, copy):
        for _ in range(600):
            one.append_object(1, 5, 0, 1, 9, 0, OBJECT)
    assert b"".join(copy.rows()) == b"".join(extents.rows())
    assert copy.inline() == extents.inline()
    assert list(copy) == list(extents)
    assert copy.bytes == extents.bytes == sum(one.length for one in extents)


def stored(extent: Extent, epoch: int, position: int) -> StoredInline:
    return StoredInline(extent.base_offset, extent.length, epoch, position, OBJECT)


def named(extent: Extent, epoch: int, position: int) -> ObjectExtent:
    return ObjectExtent(*extent[:5], epoch, position, OBJECT)


def test_inline_extents_become_object_extents_in_their_places(many: tuple[Extents, list[Extent]]) -> None:
    extents, plain = many
    rows = extents.rows()
    before = b"".join(rows)
    rest = [one for one in plain if isinstance(one, InlineExtent)]
    chosen = rest[3:90]
    assert extents.store_inline([stored(one, 4, 7) for one in chosen]) == len(chosen)
    assert b"".join(rows) == before, "what a snapshot was given stays as it was"
    assert list(extents) == [named(one, 4, 7) if one in chosen else one for one in plain]
    assert extents.oldest_epoch == 4
    left = [one for one in rest if one not in chosen]
    assert extents.inline_bytes == sum(one.length for one in left)
    assert extents.first_inline_offset == left[0].base_offset
    assert extents.inline_between(left[3].base_offset, 10**9, 10**6, 10**6) == left[3:]


def test_what_is_stored_twice_or_too_late_is_passed_over(many: tuple[Extents, list[Extent]]) -> None:
    extents, plain = many
    chosen = [one for one in plain if isinstance(one, InlineExtent)][:3]
    extents.trim(chosen[1].base_offset)
    assert extents.store_inline([stored(one, 6, 7) for one in chosen]) == 2
    assert extents.store_inline([stored(one, 9, 8) for one in chosen]) == 0
    assert [one for one in extents if one.base_offset == chosen[2].base_offset] == [named(chosen[2], 6, 7)]
    objects = [one for one in plain if isinstance(one, ObjectExtent)]
    assert extents.store_inline([stored(one, 9, 8) for one in objects[200:203]]) == 0
    assert extents.store_inline([stored(chosen[2]._replace(base_offset=extents.end_offset), 9, 8)]) == 0


def test_inline_extents_are_given_up_to_a_limit(many: tuple[Extents, list[Extent]]) -> None:
    extents, plain = many
    inline = [one for one in plain if isinstance(one, InlineExtent)]
    assert extents.inline_between(0, 10**9, 0, 0) == inline[:1], "the first whatever its length"
    assert extents.inline_between(0, 10**9, 10**6, 5) == inline[:5]
    assert extents.inline_between(1, 10**9, inline[1].length + inline[2].length, 99) == inline[1:3]
    assert extents.inline_between(1, inline[3].base_offset, 10**6, 99) == inline[1:3]
    assert extents.inline_between(extents.end_offset, 10**9, 10**6, 5) == []


@pytest.mark.parametrize(
    "wrong",
    [
        [StoredInline(0, 2, 1, 0, OBJECT)],
        [StoredInline(0, 3, 1, -1, OBJECT)],
        [StoredInline(0, 3, 1, 0, OBJECT[1:])],
        [StoredInline(3, 3, 1, 0, OBJECT), StoredInline(0, 3, 1, 0, OBJECT)],
        [StoredInline(0, 3, 1, 0, OBJECT), StoredInline(0, 3, 1, 0, OBJECT)],
    ],
    ids=["another length", "no position", "no object", "out of order", "twice"],
)
def test_what_no_inline_batch_can_be_stored_as_changes_nothing(wrong: list[StoredInline]) -> None:
    extents = Extents()
    for _ in range(2):
        extents.append_inline(3, 1, 0, b"abc")
    with pytest.raises(ValueError, match="stored"):
        extents.store_inline(wrong)
    assert extents.inline_bytes == 6
    assert all(isinstance(one, InlineExtent) for one in extents)


def test_every_place_between_two_extents_is_a_boundary_and_no_other(
    many: tuple[Extents, list[Extent]],
) -> None:
    extents, plain = many
    extents.trim(plain[3].base_offset)
    boundaries = {extents.end_offset, *(one.base_offset for one in plain[3:])}
    for offset in range(-1, extents.end_offset + 3):
        assert extents.is_boundary(offset) == (offset in boundaries)


@pytest.mark.parametrize(
    ("count", "length", "epoch", "position", "identity"),
    [
        (0, 1, 1, 0, OBJECT),
        (1, 0, 1, 0, OBJECT),
        (1, 1, -1, 0, OBJECT),
        (1, 1, 1, -1, OBJECT),
        (1, 1, 1, 0, OBJECT[1:]),
    ],
)
def test_what_is_no_extent_is_not_appended(
    count: int, length: int, epoch: int, position: int, identity: bytes
) -> None:
    with pytest.raises(ValueError, match="no extent"):
        Extents().append_object(count, 1, 0, length, epoch, position, identity)


@pytest.mark.parametrize(("count", "data"), [(0, b"x"), (1, b"")])
def test_what_is_no_inline_extent_is_not_appended(count: int, data: bytes) -> None:
    with pytest.raises(ValueError, match="no extent"):
        Extents().append_inline(count, 1, 0, data)


def row(kind: int, base: int, count: int) -> bytes:
    return ROW.pack(kind, base, count, 1, 0, 1, 1, 0, OBJECT)


@pytest.mark.parametrize(
    ("rows", "inline", "end", "why"),
    [
        (b"x", [], 0, "not rows"),
        (row(0, 0, 2) + row(0, 3, 1), [], 4, "not contiguous"),
        (row(0, 0, 2) + row(0, 1, 1), [], 2, "not contiguous"),
        (row(0, 0, 0), [], 0, "not contiguous"),
        (row(0, 0, 2), [], 3, "end at offset 2"),
        (row(7, 0, 2), [], 2, "unknown kind 7"),
        (row(1, 0, 2), [], 2, "no bytes"),
        (row(0, 0, 2), [(0, b"x")], 2, "without an inline batch"),
    ],
)
def test_rows_that_cannot_be_are_not_restored(
    rows: bytes, inline: list[tuple[int, bytes]], end: int, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        Extents.restored(rows, inline, end)


class ExtentsAgainstList(RuleBasedStateMachine):
    """Chunks of three rows, so that a few steps cross their borders."""

    def __init__(self) -> None:
        super().__init__()
        self.before = strandline.statemachine.partition.extents.CHUNK_ROWS
        strandline.statemachine.partition.extents.CHUNK_ROWS = 3
        self.extents = Extents()
        self.plain: list[Extent] = []
        self.end = 0

    def teardown(self) -> None:
        strandline.statemachine.partition.extents.CHUNK_ROWS = self.before

    @rule(count=st.integers(1, 3), timestamp=st.integers(0, 9), epoch=st.integers(0, 9))
    def append_object(self, count: int, timestamp: int, epoch: int) -> None:
        length = 10 + timestamp
        assert self.extents.append_object(count, 1, timestamp, length, epoch, 0, OBJECT) == self.end
        self.plain.append(ObjectExtent(self.end, count, 1, timestamp, length, epoch, 0, OBJECT))
        self.end += count

    @rule(count=st.integers(1, 3), timestamp=st.integers(0, 9), data=st.binary(min_size=1, max_size=3))
    def append_inline(self, count: int, timestamp: int, data: bytes) -> None:
        assert self.extents.append_inline(count, 1, timestamp, data) == self.end
        self.plain.append(InlineExtent(self.end, count, 1, timestamp, len(data), data))
        self.end += count

    @rule(picks=st.sets(st.integers(0, 12)), epoch=st.integers(0, 9))
    def store_inline(self, picks: set[int], epoch: int) -> None:
        chosen = [one for number, one in enumerate(self.plain) if number in picks]
        expected = sum(isinstance(one, InlineExtent) for one in chosen)
        assert self.extents.store_inline([stored(one, epoch, 3) for one in chosen]) == expected
        self.plain = [
            named(one, epoch, 3) if isinstance(one, InlineExtent) and one in chosen else one
            for one in self.plain
        ]

    @rule(back=st.integers(0, 25), span=st.integers(0, 30), size=st.integers(0, 9), count=st.integers(0, 4))
    def look_up_inline_ones(self, back: int, span: int, size: int, count: int) -> None:
        first = max(0, self.end - back)
        end = first + span
        expected: list[Extent] = []
        for extent in self.plain:
            if isinstance(extent, InlineExtent) and first <= extent.base_offset < end:
                if expected and (
                    sum(e.length for e in expected) + extent.length > size or len(expected) >= count
                ):
                    break
                expected.append(extent)
        assert self.extents.inline_between(first, end, size, count) == expected

    @rule(back=st.integers(0, 25))
    def trim(self, back: int) -> None:
        start = max(0, self.end - back)
        self.extents.trim(start)
        self.plain = [extent for extent in self.plain if extent.end_offset > start]

    @rule()
    def restore(self) -> None:
        self.extents = Extents.restored(b"".join(self.extents.rows()), self.extents.inline(), self.end)

    @rule(back=st.integers(0, 25), span=st.integers(1, 25))
    def look_up_a_range(self, back: int, span: int) -> None:
        first = max(0, self.end - back)
        assert self.extents.between(first, first + span, 10**6) == [
            extent for extent in self.plain if extent.end_offset > first and extent.base_offset < first + span
        ]

    @rule(timestamp=st.integers(0, 10))
    def look_up_a_time(self, timestamp: int) -> None:
        expected = (extent for extent in self.plain if extent.max_timestamp >= timestamp)
        assert self.extents.first_since(timestamp) == next(expected, None)

    @rule(back=st.integers(-2, 25))
    def look_for_a_boundary(self, back: int) -> None:
        boundaries = {self.end, *(extent.base_offset for extent in self.plain)}
        assert self.extents.is_boundary(self.end - back) == (self.end - back in boundaries)

    @invariant()
    def same_as_the_list(self) -> None:
        assert list(self.extents) == self.plain
        assert self.extents.first_offset == (self.plain[0].base_offset if self.plain else self.end)
        assert self.extents.bytes == sum(extent.length for extent in self.plain)
        epochs = [extent.epoch for extent in self.plain if isinstance(extent, ObjectExtent)]
        assert self.extents.oldest_epoch == min(epochs, default=None)
        inline = [extent for extent in self.plain if isinstance(extent, InlineExtent)]
        assert self.extents.inline() == [(one.base_offset, one.data) for one in inline]
        assert self.extents.inline_bytes == sum(one.length for one in inline)
        assert self.extents.first_inline_offset == (inline[0].base_offset if inline else self.end)


TestExtentsAgainstList = ExtentsAgainstList.TestCase
TestExtentsAgainstList.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
