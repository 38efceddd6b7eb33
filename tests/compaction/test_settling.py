"""Settled logs: aborted data is gone, committed data is plain, by the rows of the state and nothing else."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.node.compaction.bad_batch import BadBatch
from strandline.node.compaction.rewriting import settled
from strandline.snapshot.aborted import NOTHING_ABORTED, Aborted
from strandline.snapshot.extent_rows import aborted_rows
from strandline.statemachine.partition.aborted_transactions import AbortedTransactions
from tests.compaction.logs import Plan, bytes_of, plans, read

MARKER = Plan(())


def rows(*given: tuple[int, int, int]) -> Aborted:
    """Of (producer, first offset, marker)."""
    aborted = AbortedTransactions()
    for row in sorted(given, key=lambda row: row[2]):
        aborted.append(*row)
    return Aborted(aborted_rows(aborted.packed()).tobytes())


def transactional(data: bytes) -> bool:
    return bool(struct.unpack_from(">h", data, 21)[0] & 0x10)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(plans, st.sampled_from([None, 1, 2, 3]), st.booleans()), max_size=20))
def test_what_was_aborted_is_gone_and_the_rest_is_as_it_was(
    steps: list[tuple[Plan, int | None, bool]],
) -> None:
    """A step is a batch of no producer or of one of three's transactions, or the end of one."""
    log: list[bytes] = []
    owners: list[tuple[int, int]] = []
    opened: dict[int, int] = {}
    ended: list[tuple[int, int, int]] = []
    offset = 0
    for plan, producer, commit in [*steps, *((MARKER, one, False) for one in (1, 2, 3))]:
        if not plan.records and producer is None:
            continue
        if plan.records:
            plan = plan._replace(transactional=producer is not None)
            if producer is not None:
                opened.setdefault(producer, offset)
                owners.append((len(log), producer))
        elif producer in opened:
            first = opened.pop(producer)
            if not commit:
                ended.append((producer, first, offset))
        log.append(bytes_of(plan, offset, producer or -1, commit=commit))
        offset += max(len(plan.records), 1)
    gone = {
        number
        for number, producer in owners
        for pid, first, marker in ended
        if pid == producer and first <= struct.unpack_from(">q", log[number])[0] < marker
    }
    found = list(settled(b"".join(log), rows(*ended)))
    expected = [data for number, data in enumerate(log) if number not in gone]
    assert read([bytes(one.data) for one in found]) == read(expected)
    for one, data in zip(found, expected, strict=True):
        control = bool(data[22] & 0x20)
        assert control or not transactional(bytes(one.data))
        if control or not transactional(data):
            assert bytes(one.data) == data, "markers and plain batches are as they lie"
        else:
            assert bytes(one.data)[:17] == data[:17]
            assert bytes(one.data)[23:] == data[23:], "offsets, sequences and records stay"
        base, epoch = struct.unpack_from(">q4xi", data)
        assert (one.base_offset, one.leader_epoch) == (base, epoch)
        assert one.end_offset == base + struct.unpack_from(">i", data, 23)[0] + 1


def test_the_marker_of_another_transaction_decides_nothing() -> None:
    """A transaction committed, its producer's next one was aborted, and the COMMIT is gone (schedule 3)."""
    good = Plan(((b"good", b"v", 0),), transactional=True)
    log = b"".join([bytes_of(good, 20), bytes_of(good, 80), bytes_of(MARKER, 90, commit=False)])
    assert [one.base_offset for one in settled(log, rows((7, 80, 90)))] == [20, 90]
    assert [one.base_offset for one in settled(log, NOTHING_ABORTED)] == [20, 80, 90]


def test_damage_is_not_given_a_new_checksum() -> None:
    data = bytearray(bytes_of(Plan(((b"k", b"v", 0),), transactional=True), 3))
    data[-1] ^= 1
    with pytest.raises(BadBatch, match="checksum of the batch at byte 0"):
        list(settled(bytes(data), NOTHING_ABORTED))
