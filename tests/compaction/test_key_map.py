"""The map of keys beside a dict: the last offset of each, within its memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.node.compaction.key_map import LONGEST_MULTILINEAR, SLOT_BYTES, KeyHash, KeyMap
from strandline.snapshot.record_fields import Spans

HASH = KeyHash()
KEYS = st.one_of(
    st.binary(max_size=12), st.binary(min_size=250, max_size=262), st.sampled_from([b"", b"\0", b"\0\0"])
)


def spans(keys: Sequence[bytes]) -> tuple[bytes, Spans]:
    ends = np.cumsum([len(key) for key in keys], dtype=np.int64)
    starts = ends - np.array([len(key) for key in keys], np.int64)
    return b"".join(keys), Spans(starts, ends, np.zeros(len(keys), np.bool_))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(KEYS, min_size=1, max_size=60), max_size=6), st.lists(KEYS, min_size=1, max_size=30))
def test_it_has_what_a_dict_has(puts: list[list[bytes]], asked: list[bytes]) -> None:
    expected: dict[bytes, int] = {}
    keys = KeyMap(SLOT_BYTES * 480, HASH)
    offset = 5
    for put in puts:
        offsets = np.arange(offset, offset + 3 * len(put), 3)
        keys.put(*HASH.of(*spans(put)), offsets)
        expected.update(zip(put, offsets.tolist(), strict=True))
        offset += 3 * len(put)
        assert keys.size == len(expected)
        assert keys.room == keys.capacity - len(expected)
    for some in (asked, [*expected] or [b""]):
        assert keys.get(*HASH.of(*spans(some))).tolist() == [expected.get(key, -1) for key in some]


def test_it_is_full_at_three_quarters_and_says_so() -> None:
    keys = KeyMap(SLOT_BYTES * 40 + 23, HASH)
    assert keys.capacity == keys.room == 30
    many = [b"key %d" % number for number in range(31)]
    with pytest.raises(ValueError, match="31 keys may not fit into the room for 30"):
        keys.put(*HASH.of(*spans(many)), np.arange(31))
    keys.put(*HASH.of(*spans(many[:30])), np.arange(30))
    assert (keys.size, keys.room) == (30, 0)
    assert keys.get(*HASH.of(*spans(many))).tolist() == [*range(30), -1]
    for memory in (0, 23, SLOT_BYTES):
        with pytest.raises(ValueError, match="a map of keys cannot have"):
            KeyMap(memory, HASH)


def test_other_coefficients_give_other_hashes_and_none_gives_two_keys_one() -> None:
    many = [bytes(size) for size in range(300)] + [b"%d" % number for number in range(20_000)]
    found: dict[int, set[tuple[int, int]]] = {}
    for hashed in (KeyHash(), KeyHash()):
        high, low = hashed.of(*spans(many))
        pairs = set(zip(high.tolist(), low.tolist(), strict=True))
        assert len(pairs) == len(many)
        found[len(found)] = pairs
        assert all(np.unique(half).size == len(many) for half in (high, low)), "64 bits do for so few"
    assert not found[0] & found[1]


@pytest.mark.parametrize("size", [1, 4, 5, LONGEST_MULTILINEAR, LONGEST_MULTILINEAR + 1])
def test_every_byte_of_a_key_counts(size: int) -> None:
    key = bytes(range(256)) * 2
    many = [key[:size]]
    for at in range(size):
        changed = bytearray(key[:size])
        changed[at] ^= 1
        many.append(bytes(changed))
    high, low = HASH.of(*spans(many))
    assert np.unique(high).size == np.unique(low).size == size + 1


def test_keys_are_spread_over_the_slots() -> None:
    """Linear probing at three quarters takes 1.5 steps to a key that is there (Knuth, 6.4)."""
    keys = KeyMap(SLOT_BYTES * 40_000, HASH)
    high, low = HASH.of(*spans([b"%016d" % number for number in range(30_000)]))
    keys.put(high, low, np.arange(30_000))
    home = keys._home(high)
    steps = keys._probed(home.copy(), high, low, np.arange(30_000)) - home
    assert (steps % 40_000).mean() < 4
