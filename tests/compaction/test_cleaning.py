"""Rounds of cleaning beside a plain dict of the whole history: C1 to C3 of docs/compaction.md, after each."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.node.compaction import chunk as chunk_module
from strandline.node.compaction.bad_batch import BadBatch
from strandline.node.compaction.chunk import chunks
from strandline.node.compaction.filter import Ripe, kept, map_keys
from strandline.node.compaction.key_map import SLOT_BYTES, KeyHash, KeyMap
from strandline.node.compaction.rewriting import rewritten
from tests.compaction.logs import Plan, Written, log_of, plans, read

HASH = KeyHash()


class Log:
    """A settled log and its history; `slots` bound the map of a round."""

    def __init__(self, batches: Sequence[bytes], *, slots: int = 400, key_hash: KeyHash = HASH) -> None:
        self.batches = list(batches)
        self.history = read(batches)
        self.clean_end = 0
        self.ripe = Ripe(0, 0)
        self._memory, self._hash = slots * SLOT_BYTES, key_hash

    @property
    def bases(self) -> list[int]:
        return [struct.unpack_from(">q", one)[0] for one in self.batches]

    def between(self, first: int, end: int) -> bytes:
        pairs = zip(self.bases, self.batches, strict=True)
        return b"".join(batch for base, batch in pairs if first <= base < end)

    def round(self, bound: int) -> None:
        keys = KeyMap(self._memory, self._hash)
        for chunk in chunks(self.between(self.clean_end, bound)):
            reached = map_keys(chunk, keys, bound)
            if reached < bound:
                bound = reached
                break
        found = []
        for chunk in chunks(self.between(0, bound)):
            for one in rewritten(chunk, kept(chunk, keys, self.ripe)):
                data = bytes(one.data)
                base, epoch = struct.unpack_from(">q4xi", data)
                last, newest, records = (
                    *struct.unpack_from(">i8xq", data, 23),
                    *struct.unpack_from(">i", data, 57),
                )
                assert one[1:] == (base, base + last + 1, epoch, newest, records)
                found.append(data)
        self.batches = found + [
            batch for base, batch in zip(self.bases, self.batches, strict=True) if base >= bound
        ]
        self.clean_end = max(self.clean_end, bound)

    def check(self) -> None:
        """C1 to C3 by brute force, and that nothing else has changed."""
        there, end = read(self.batches), self.clean_end
        assert [one for one in there if one.offset >= end] == [
            one for one in self.history if one.offset >= end
        ]
        assert there == sorted(there, key=lambda one: one.offset)
        assert set(there) <= set(self.history), "what is left is as it was written"
        records = [one for one in there if one.offset < end and not one.marker]
        assert len({one.key for one in records}) == len(records), "C1"
        assert None not in {one.key for one in records}, "C2"
        last = {one.key: one for one in self.history if one.offset < end and not one.marker}
        for key, one in last.items():
            if key is not None and not (one.value is None and one.offset < self.ripe.tombstones):
                assert one in there, "C3"
        for one in self.history:
            if one.marker and one.offset >= self.ripe.markers:
                assert one in there, "a marker waits until it is ripe"


@settings(max_examples=150, deadline=None)
@given(st.lists(plans, min_size=1, max_size=14), st.sampled_from([8, 20, 400]), st.booleans(), st.data())
def test_after_every_round_the_log_is_clean_up_to_its_bound(
    drawn: list[Plan], slots: int, small_chunks: bool, data: st.DataObject
) -> None:
    log = Log(log_of(drawn), slots=slots)
    with pytest.MonkeyPatch.context() as patch:
        if small_chunks:
            patch.setattr(chunk_module, "CHUNK_BYTES", 100)
        for _ in range(data.draw(st.integers(1, 4), label="rounds")):
            log.ripe = Ripe(
                *(
                    data.draw(st.integers(before, max(before, log.clean_end)), label="ripe")
                    for before in log.ripe
                )
            )
            bounds = [one for one in log.bases if one >= log.clean_end]
            if not bounds:
                break
            bound = data.draw(st.sampled_from(bounds), label="bound")
            before = log.clean_end
            log.round(bound)
            log.check()
            assert before <= log.clean_end <= max(bound, before)


def test_a_map_that_is_full_ends_the_round_at_a_batch() -> None:
    """A thousand keys and room for a hundred: each round is complete up to where it came."""
    batches = [Plan(tuple((b"key %d" % (7 * n + m), b"v", 0) for m in range(7))) for n in range(150)]
    log = Log(log_of([*batches, *batches, Plan(((b"end", b"", 0),))]), slots=140)
    ends = []
    while log.clean_end < log.bases[-1]:
        log.round(log.bases[-1])
        log.check()
        ends.append(log.clean_end)
    assert ends[0] == 7 * (105 // 7)
    assert all(later > earlier for earlier, later in itertools.pairwise(ends))
    assert len(read(log.batches)) == 1051


def test_a_batch_with_more_keys_than_the_map_takes_stops_it() -> None:
    log = Log(
        log_of([Plan(tuple((b"key %d" % n, b"v", 0) for n in range(7))), Plan(((b"end", b"", 0),))]), slots=8
    )
    log.round(7)
    assert log.clean_end == 0
    log.check()


def test_with_two_bits_of_the_hash_records_go_missing() -> None:
    """So the hash is what C3 stands on, and these tests would tell."""
    log = Log(log_of([Plan(((b"key %d" % n, b"v", 0),)) for n in range(20)]), key_hash=KeyHash(bits=2))
    log.round(19)
    with pytest.raises(AssertionError, match="C3"):
        log.check()
    assert len(read(log.batches)) <= 5
    log = Log(log_of([Plan(((b"key %d" % n, b"v", 0),)) for n in range(20)]))
    log.round(19)
    log.check()
    assert len(read(log.batches)) == 20


def test_a_tombstone_supersedes_and_goes_once_it_is_ripe() -> None:
    log = Log(
        log_of([Plan(((b"k", b"v", 0),)), Plan(((b"k", None, 0), (b"l", b"w", 1))), Plan(((b"m", b"", 0),))])
    )
    log.round(3)
    assert [one.offset for one in read(log.batches)] == [1, 2, 3]
    log.ripe = Ripe(1, 3)
    log.round(3)
    assert [one.offset for one in read(log.batches)] == [1, 2, 3], "ripe is what lies below"
    log.ripe = Ripe(2, 3)
    log.round(3)
    assert read(log.batches)[0] == Written(2, 1_700_000_000_001, b"l", b"w", False)
    log.check()


def test_a_batch_of_which_all_stays_is_the_same_bytes() -> None:
    batches = log_of([Plan(((b"a", b"v", 3), (b"b", b"v", 1))), Plan(((b"c", None, 0),)), Plan(())])
    log = Log(batches)
    log.round(3)
    assert log.batches == batches


def test_damage_is_told() -> None:
    [batch] = log_of([Plan(((b"a", b"v", 3), (b"b", b"v", 1)))])
    for at in range(16, len(batch)):
        damaged = bytearray(batch)
        damaged[at] ^= 0x10
        with pytest.raises(BadBatch):
            list(chunks(bytes(damaged)))
    for wrong in (batch[:-1], batch[:40], batch + b"x"):
        with pytest.raises(BadBatch, match="no batch begins at byte"):
            list(chunks(wrong))
