"""Tails at rest: what comes back, and what is refused."""

from __future__ import annotations

import hashlib

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.snapshot.log_document import LogDamaged, pack_entry
from strandline.snapshot.tail_document import (
    MAGIC,
    Section,
    TailDamaged,
    TailDocument,
    TailName,
    TailTooNew,
    decode_tail,
    life_prefix,
    parse_tail_name,
    read_incarnation,
    tail_name,
)

INCARNATION = "2026-11-26T13:02:53Z-0ecc3cd9"
TAIL = TailDocument("harbour", 2, [Section("partition", 7, 3, 5, None, pack_entry(5, 1, b"command"))])


@given(
    st.lists(
        st.tuples(st.integers(0, 2**40), st.integers(0, 5), st.none() | st.binary(), st.binary()), max_size=5
    )
)
def test_what_was_written_comes_back(rows: list[tuple[int, int, bytes | None, bytes]]) -> None:
    sections = [
        Section("partition", number, after, after + more, state, entries)
        for number, (after, more, state, entries) in enumerate(rows)
    ]
    tail = TailDocument("harbour", 2, sections)
    assert decode_tail(tail.encode()) == tail


def test_each_changed_or_missing_byte_is_noticed() -> None:
    data = TAIL.encode()
    for at in range(len(data)):
        with pytest.raises(TailDamaged):
            decode_tail(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(TailDamaged):
            decode_tail(data[:at])


@pytest.mark.parametrize(
    "fields",
    [
        "text",
        [],
        [1, "harbour", 2],
        [1, "harbour", 2, [["partition", 7, 5, 3, None, b""]]],
        [1, "harbour", 2, [["partition", 7, 3, 5, "state", b""]]],
        [1, "harbour", 2, [[7]]],
    ],
)
def test_what_is_no_tail_is_refused(fields: object) -> None:
    with pytest.raises(TailDamaged):
        decode_tail(_sealed(fields))


def test_a_tail_of_a_newer_release_says_so() -> None:
    with pytest.raises(TailTooNew, match="upgrade it"):
        decode_tail(_sealed([2, "anything"]))


def _sealed(fields: object) -> bytes:
    body = msgpack.packb(fields)
    return MAGIC + hashlib.sha256(body).digest() + body


def test_entries_are_those_between_its_ends() -> None:
    section = TAIL.sections[0]
    assert [entry.log_index for entry in section.read()] == [5]
    assert section._replace(after=5, entries=b"").read() == []
    with pytest.raises(LogDamaged):
        section._replace(log_index=6).read()
    with pytest.raises(LogDamaged):
        section._replace(after=5, log_index=6).read()


def test_names_are_in_the_order_of_time_and_read_back() -> None:
    early, late = (tail_name("harbour", INCARNATION, ms, 3, 0xABC) for ms in (999, 1_764_000_000_000))
    assert early < late
    assert parse_tail_name(late) == TailName(1_764_000_000_000, 3)
    assert late.startswith(life_prefix("harbour", INCARNATION))
    for name in (late[:-1], late + "0", late.replace("tails", "snapshots"), "tails/harbour/x"):
        with pytest.raises(ValueError, match="is not the name of a tail"):
            parse_tail_name(name)
    with pytest.raises(ValueError, match="cannot stand in an object's name"):
        tail_name("a/b", INCARNATION, 1, 1, 1)


def test_the_owner_of_the_storage_names_an_incarnation() -> None:
    assert read_incarnation(b'{"format": 2, "cluster": "harbour", "incarnation": "one"}') == "one"
    for wrong in (b"", b"[]", b"{}", b"\xff"):
        with pytest.raises(ValueError, match="does not name an incarnation"):
            read_incarnation(wrong)
