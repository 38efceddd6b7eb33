"""A snapshot at rest: no byte of it can change, or go missing, unnoticed."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.snapshot.document import MAGIC, SnapshotDamaged, SnapshotDocument, SnapshotTooNew, decode

DOCUMENT = SnapshotDocument("cluster", "register-map", 7, 42, 3, (1, 2, 3), (4,), b"the state" * 5)
NODES = st.lists(st.integers(1, 65535), max_size=5).map(tuple)


FOLDERS = st.lists(st.tuples(st.integers(1, 65535), st.integers(1, 2**63 - 1)), max_size=5).map(tuple)


@given(
    st.text(max_size=9), st.integers(0, 2**63), st.integers(0, 2**63), NODES, NODES, st.binary(max_size=99),
    FOLDERS,
)  # fmt: skip
def test_round_trip(
    cluster: str,
    index: int,
    term: int,
    voters: tuple[int, ...],
    learners: tuple[int, ...],
    state: bytes,
    folders: tuple[tuple[int, int], ...],
) -> None:
    document = SnapshotDocument(cluster, "kind", 7, index, term, voters, learners, state, folders)
    assert decode(document.encode()) == document
    assert decode(memoryview(document.encode())) == document


def test_equal_documents_have_equal_bytes() -> None:
    assert (
        DOCUMENT.encode()
        == SnapshotDocument(*(getattr(DOCUMENT, name) for name in DOCUMENT.__slots__)).encode()
    )


def test_every_flipped_bit_is_found() -> None:
    data = DOCUMENT.encode()
    for offset in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[offset] ^= 1 << bit
            with pytest.raises(SnapshotDamaged):
                decode(bytes(damaged))


def test_every_truncation_is_found() -> None:
    data = DOCUMENT.encode()
    for length in range(len(data)):
        with pytest.raises(SnapshotDamaged):
            decode(data[:length])


def test_anything_after_the_end_is_found() -> None:
    with pytest.raises(SnapshotDamaged):
        decode(DOCUMENT.encode() + b"\x00")


def test_document_without_folders_is_of_the_format_that_earlier_releases_read() -> None:
    version, *fields = msgpack.unpackb(DOCUMENT.encode()[len(MAGIC) + 32 :])
    assert (version, len(fields)) == (1, 8)
    version, *fields = msgpack.unpackb(replace(DOCUMENT, folders=((1, 7),)).encode()[len(MAGIC) + 32 :])
    assert (version, len(fields), fields[7]) == (2, 9, [1, 7])


@pytest.mark.parametrize("folders", [7, [1], None])
def test_folders_that_cannot_be_are_damage(folders: Any) -> None:
    version, *fields = msgpack.unpackb(replace(DOCUMENT, folders=((1, 7),)).encode()[len(MAGIC) + 32 :])
    fields[7] = folders
    with pytest.raises(SnapshotDamaged):
        decode(with_body(msgpack.packb([version, *fields])))


def with_body(body: bytes) -> bytes:
    return MAGIC + hashlib.sha256(body).digest() + body


def test_newer_format_says_so_whatever_else_it_holds() -> None:
    for fields in ([3], [3, "anything", {"new": 1}], [9, *range(20)]):
        with pytest.raises(SnapshotTooNew, match="upgrade this node"):
            decode(with_body(msgpack.packb(fields)))


@pytest.mark.parametrize("body", [{}, [], ["one"], 7, None])
def test_document_without_a_version_is_damaged(body: object) -> None:
    with pytest.raises(SnapshotDamaged):
        decode(with_body(msgpack.packb(body)))
