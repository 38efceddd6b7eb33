"""Entries kept until they are published come out as they went in, and are not copied as they grow."""

from __future__ import annotations

import random

import pytest

from strandline.node.checkpoints.packed_entries import PIECE_BYTES, PackedEntries


@pytest.mark.parametrize("most", [1, 100, 20_000, PIECE_BYTES, 3 * PIECE_BYTES])
def test_what_was_added_comes_out_joined(most: int) -> None:
    rng, entries = random.Random(most), PackedEntries()
    assert (len(entries), entries.joined()) == (0, b"")
    added = [rng.randbytes(rng.randint(1, most)) for _ in range(200)]
    for one in added:
        entries.add(one)
    assert entries.joined() == b"".join(added)
    assert len(entries) == sum(map(len, added))


def test_what_is_full_is_not_touched_again_and_small_ones_share_a_buffer() -> None:
    entries = PackedEntries()
    for _ in range(3 * PIECE_BYTES // 64):
        entries.add(bytes(64))
    assert [len(piece) for piece in entries._pieces] == [PIECE_BYTES] * 3
    before = [*entries._pieces]
    entries.add(bytes(2 * PIECE_BYTES))
    entries.add(b"x")
    assert [len(piece) for piece in entries._pieces[3:]] == [2 * PIECE_BYTES, 1]
    assert all(a is b for a, b in zip(before, entries._pieces, strict=False))
