"""Messages and runs of entries: what goes in comes out, and what is not a message raises BadMessage only."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.node.raft.bad_message import BadMessage
from strandline.node.raft.entries import (
    MAX_NUMBER,
    EntryKind,
    pack_entries,
    pack_members,
    unpack_entries,
    unpack_members,
)
from strandline.node.raft.rules.messages import FIELDS, MessageKind, decode

COMMANDS = st.binary(max_size=20).map(lambda tail: bytes([EntryKind.REGULAR]) + tail)
RUNS = st.lists(st.tuples(COMMANDS, st.integers(1, 5)), min_size=1, max_size=30)
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 2**64 - 1)
    | st.floats()
    | st.binary(max_size=8)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
SAMPLES: dict[type, Any] = {int: 3, float: 1.5, bool: True, bytes: b"bytes"}


def message(kind: int) -> list[Any]:
    return [7, kind, 2, *(SAMPLES[field] for field in FIELDS[kind])]


@given(RUNS, st.integers(1, 2**40))
def test_entries_round_trip(run: list[tuple[bytes, int]], first: int) -> None:
    terms = sorted(term for _, term in run)
    entries = [
        (command, index, term)
        for index, ((command, _), term) in enumerate(zip(run, terms, strict=True), first)
    ]
    assert unpack_entries(pack_entries(entries)) == entries


@given(st.lists(st.integers(1, 65535), min_size=1, max_size=9, unique=True), st.integers(0, 8))
def test_members_round_trip(nodes: list[int], count: int) -> None:
    voters, learners = nodes[: count + 1], nodes[count + 1 :]
    command = pack_members(voters, learners)
    assert command[0] == EntryKind.MEMBERSHIP
    assert unpack_members(command) == (tuple(sorted(voters)), tuple(sorted(learners)), ())
    folders = tuple((node, 7 * node) for node in sorted(nodes)[1:])
    assert unpack_members(pack_members(voters, learners, folders))[2] == folders


@pytest.mark.parametrize("kind", list(MessageKind))
def test_every_kind_round_trips_through_msgpack(kind: MessageKind) -> None:
    sent = message(kind)
    assert list(decode(msgpack.unpackb(msgpack.packb(sent)))) == sent


def test_every_kind_has_fields() -> None:
    assert set(FIELDS) == set(MessageKind)


@pytest.mark.parametrize("kind", list(MessageKind))
def test_every_field_of_a_wrong_type_is_refused(kind: MessageKind) -> None:
    wrongs: list[Any] = [None, "text", [], {}, -1, MAX_NUMBER + 1, float("nan"), 2.5, b"", True]
    for position, sample in enumerate(message(kind)):
        for wrong in wrongs:
            fits = wrong == wrong and wrong not in (-1, MAX_NUMBER + 1)
            if type(wrong) is type(sample) and (fits or position == 0):
                continue  # Of the right type; a group nobody has goes nowhere.
            spoiled = message(kind)
            spoiled[position] = wrong
            with pytest.raises(BadMessage):
                decode(spoiled)


@pytest.mark.parametrize("kind", list(MessageKind))
def test_one_field_more_or_less_is_refused(kind: MessageKind) -> None:
    for spoiled in ([*message(kind), 0], message(kind)[:-1]):
        with pytest.raises(BadMessage):
            decode(spoiled)


@given(JUNK)
def test_junk_is_a_message_or_a_bad_one(junk: Any) -> None:
    try:
        taken = decode(junk)
    except BadMessage:
        return
    assert list(taken) == junk


@given(st.binary(max_size=60) | JUNK.map(msgpack.packb) | st.tuples(JUNK, JUNK, JUNK).map(msgpack.packb))
def test_junk_is_a_run_of_entries_or_a_bad_one(data: bytes) -> None:
    try:
        entries = unpack_entries(data)
    except BadMessage:
        return
    assert unpack_entries(pack_entries(entries)) == entries


BAD_RUNS = {
    "empty": (1, [1, 0], []),
    "no terms": (1, [], [b"\x00"]),
    "too few": (1, [1, 2], [b"\x00"]),
    "empty command": (1, [1, 1], [b""]),
    "unknown kind": (1, [1, 1], [b"\x09"]),
    "text command": (1, [1, 1], ["a"]),
    "index 0": (0, [1, 1], [b"\x00"]),
    "term 0": (1, [0, 1], [b"\x00"]),
    "terms fall": (1, [2, 1, 1, 1], [b"\x00", b"\x00"]),
    "negative count": (1, [1, 3, 2, -1], [b"\x00", b"\x00"]),
    "count for memory": (1, [1, 10**12, 2, 1 - 10**12], [b"\x00"]),
    "odd": (1, [1], []),
    "bool": (1, [True, 1], [b"\x00"]),
    "map": (1, [1, 1], {b"\x00": 1}),
    "membership": (1, [1, 1], [b"\x02junk"]),
}


@pytest.mark.parametrize("name", BAD_RUNS)
def test_bad_run_is_refused(name: str) -> None:
    with pytest.raises(BadMessage):
        unpack_entries(msgpack.packb(BAD_RUNS[name]))
