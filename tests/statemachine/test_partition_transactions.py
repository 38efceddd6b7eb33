"""Transactions in a partition: what is stable, what was aborted, and late messages that must not land."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.snapshot.extent_rows import aborted_rows
from strandline.statemachine.partition import aborted_transactions as module
from strandline.statemachine.partition.aborted_transactions import AbortedTransaction, AbortedTransactions
from strandline.statemachine.partition.extent import InlineExtent
from strandline.statemachine.partition.partition_commands import (
    Appended,
    AppendInline,
    CommandResult,
    EndTransaction,
    SetStartOffset,
    Tick,
    Ticked,
    TransactionEnded,
)
from strandline.statemachine.partition.placeholder import InlineBatch, Placeholder
from strandline.statemachine.partition.producer_state import NO_TRANSACTION, OpenTransaction
from strandline.statemachine.partition.rejection import Rejected, Rejection
from tests.statemachine.partitions import NOW, Replica, placeholder

PRODUCER = 70


@pytest.fixture
def replica() -> Replica:
    return Replica()


def of(
    sequence: int, transaction: int = 1, *, count: int = 1, producer: int = PRODUCER, epoch: int = 0
) -> Placeholder:
    """A batch in a transaction."""
    return placeholder(
        count, producer=producer, producer_epoch=epoch, sequence=sequence, transaction=transaction
    )


def end(
    replica: Replica,
    transaction: int = 1,
    *,
    commit: bool = True,
    producer: int = PRODUCER,
    epoch: int = 0,
    time: int = NOW,
) -> CommandResult:
    marker = EndTransaction(producer, epoch, transaction, commit, 9, NOW + 1, b"marker")
    results = replica.apply(marker, time=time)
    assert isinstance(results, list)
    return results[0]


def test_a_marker_is_one_inline_record(replica: Replica) -> None:
    replica.append(of(0, count=4))
    assert end(replica) == TransactionEnded(4)
    assert replica.machine.next_offset == 5
    assert list(replica.machine.extents)[1] == InlineExtent(4, 1, 1, NOW + 1, 6, b"marker")


def test_stable_is_what_lies_below_the_earliest_open_transaction(replica: Replica) -> None:
    assert replica.machine.last_stable_offset == 0
    replica.append(placeholder(3), of(0), of(0, producer=71), placeholder(2))
    assert replica.machine.last_stable_offset == 3
    assert replica.machine.open_transaction(PRODUCER) == OpenTransaction(1, 3, 0)
    end(replica, producer=71)
    assert replica.machine.last_stable_offset == 3
    end(replica)
    assert replica.machine.last_stable_offset == replica.machine.high_watermark == 9


def test_what_was_deleted_is_stable(replica: Replica) -> None:
    replica.append(of(0), placeholder(3))
    replica.apply(SetStartOffset(2))
    assert replica.machine.last_stable_offset == 2
    assert end(replica, commit=False) == TransactionEnded(4)
    assert replica.machine.aborted_between(2, 5) == [AbortedTransaction(PRODUCER, 0, 4)]


def test_a_transaction_may_be_written_inline(replica: Replica) -> None:
    batch = InlineBatch(2, NOW, b"batch", PRODUCER, 0, 0, 1)
    assert replica.apply(AppendInline([batch])) == [[Appended(0)]]
    assert replica.machine.open_transaction(PRODUCER) == OpenTransaction(1, 0, 0)
    end(replica)
    late = batch._replace(base_sequence=2)
    assert replica.apply(AppendInline([late])) == [[Rejected(Rejection.TRANSACTION_ENDED, 1)]]


# Late messages.


@pytest.mark.parametrize("commit", [True, False])
def test_a_batch_that_was_staged_before_its_marker_does_not_land_after_it(
    replica: Replica, commit: bool
) -> None:
    """It would hold the stable offset for ever, or end in a later transaction."""
    replica.append(of(0))
    end(replica, commit=commit)
    assert replica.append(of(1)) == [Rejected(Rejection.TRANSACTION_ENDED, 1)]
    assert replica.machine.last_stable_offset == replica.machine.high_watermark


def test_the_marker_may_come_before_any_batch(replica: Replica) -> None:
    assert end(replica, commit=False) == TransactionEnded(0)
    assert replica.append(of(0)) == [Rejected(Rejection.TRANSACTION_ENDED, 1)]
    assert replica.machine.aborted_between(0, 1) == []


def test_a_late_batch_does_not_come_into_the_next_transaction(replica: Replica) -> None:
    replica.append(of(0))
    end(replica)
    replica.append(of(1, 2))
    assert replica.append(of(2, 1)) == [Rejected(Rejection.TRANSACTION_ENDED, 1)]
    assert replica.append(of(2, 2)) == [Appended(3)]


def test_a_batch_of_no_transaction_does_not_come_into_an_open_one(replica: Replica) -> None:
    replica.append(of(0, 4))
    assert replica.append(of(1, NO_TRANSACTION)) == [Rejected(Rejection.NOT_IN_TRANSACTION, 4)]
    assert replica.append(of(1, 5)) == [Rejected(Rejection.NOT_IN_TRANSACTION, 4)]
    assert replica.machine.next_offset == 1


def test_a_doubled_marker_leaves_no_record(replica: Replica) -> None:
    replica.append(of(0))
    end(replica, commit=False)
    assert end(replica, commit=True) == Rejected(Rejection.TRANSACTION_ENDED, 1)
    assert replica.machine.next_offset == 2
    assert replica.machine.aborted_between(0, 2) == [AbortedTransaction(PRODUCER, 0, 1)]


def test_a_late_marker_does_not_end_the_next_transaction(replica: Replica) -> None:
    replica.append(of(0))
    end(replica)
    replica.append(of(1, 3))
    assert end(replica, 1, commit=False) == Rejected(Rejection.TRANSACTION_ENDED, 2)
    assert end(replica, 2, commit=False) == Rejected(Rejection.TRANSACTION_ENDED, 2)
    assert replica.machine.last_stable_offset == 2
    assert end(replica, 3) == TransactionEnded(3)
    assert replica.machine.aborted_between(0, 4) == []


def test_a_retry_is_a_duplicate_whatever_became_of_its_transaction(replica: Replica) -> None:
    replica.append(of(0, count=2))
    end(replica)
    assert replica.append(of(0, count=2)) == [Appended(0, duplicate=True)]
    assert replica.machine.last_stable_offset == replica.machine.high_watermark == 3


def test_the_raised_epoch_of_a_marker_fences_the_earlier_incarnation(replica: Replica) -> None:
    replica.append(of(0, epoch=6))
    end(replica, epoch=7, commit=False)
    assert replica.append(of(1, 2, epoch=6)) == [Rejected(Rejection.INVALID_PRODUCER_EPOCH, 7)]
    assert replica.append(of(0, 1, epoch=7)) == [Rejected(Rejection.TRANSACTION_ENDED, 1)]
    assert replica.append(of(1, 2, epoch=7)) == [Rejected(Rejection.OUT_OF_ORDER_SEQUENCE_NUMBER, 0)]
    assert replica.append(of(0, 2, epoch=7)) == [Appended(2)]


def test_late_messages_are_told_after_a_restart_and_under_the_next_leader(replica: Replica) -> None:
    replica.append(of(0, 3), of(0, 1, producer=71))
    end(replica, 3, commit=False)
    replica = replica.restored()
    replica.begin_term(5)
    assert replica.append(of(1, 3)) == [Rejected(Rejection.TRANSACTION_ENDED, 3)]
    assert end(replica, 3) == Rejected(Rejection.TRANSACTION_ENDED, 3)
    assert replica.machine.last_stable_offset == 1
    assert replica.machine.aborted_between(0, 9) == [AbortedTransaction(PRODUCER, 0, 2)]


def test_a_producer_with_an_open_transaction_does_not_expire(replica: Replica) -> None:
    replica.append(of(0))
    replica.append(of(0, NO_TRANSACTION, producer=71))
    assert replica.apply(Tick(100), time=NOW + 1000) == [Ticked(NOW + 1000, 1)]
    assert end(replica, commit=False, time=NOW + 2000) == TransactionEnded(2)
    assert replica.apply(Tick(100), time=NOW + 2100) == [Ticked(NOW + 2100, 0)]
    assert replica.apply(Tick(100), time=NOW + 2101) == [Ticked(NOW + 2101, 1)]


# The aborted transactions.


def test_an_aborted_transaction_reaches_from_its_first_batch_to_its_marker(replica: Replica) -> None:
    replica.append(placeholder(), of(0), placeholder(2), of(1))
    end(replica, commit=False)
    one = AbortedTransaction(PRODUCER, 1, 5)
    assert replica.machine.aborted_between(5, 6) == [one]
    assert replica.machine.aborted_between(1, 2) == [one]
    assert replica.machine.aborted_between(0, 1) == []
    assert replica.machine.aborted_between(6, 9) == []


def test_an_aborted_transaction_goes_with_its_marker(replica: Replica) -> None:
    replica.append(of(0), placeholder(3))
    end(replica, commit=False)
    replica.append(placeholder(2))
    replica.apply(SetStartOffset(4))
    assert list(replica.machine.aborted) == [AbortedTransaction(PRODUCER, 0, 4)]
    replica.apply(SetStartOffset(5))
    assert list(replica.machine.aborted) == []
    replica.restored()


def many(rows: int, open_since: int | None = None) -> AbortedTransactions:
    """Transactions of two records and a marker, one after the other; one more that was open since a row, and
    is aborted at the end, and some behind it."""
    aborted = AbortedTransactions()
    for number in range(rows):
        aborted.append(1000 + number % 7, 3 * number, 3 * number + 2)
    if open_since is not None:
        aborted.append(999, 3 * open_since + 1, 3 * rows)
        for number in range(rows + 1, rows + 1000):
            aborted.append(1000, 3 * number, 3 * number + 2)
    return aborted


def test_a_lookup_looks_at_few_chunks_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also behind a transaction that was open for long: all that were aborted meanwhile end above it."""
    looked: list[bytes] = []
    read = module._rows

    def rows(chunk: bytes) -> list[AbortedTransaction]:
        looked.append(chunk)
        return read(chunk)

    monkeypatch.setattr(module, "_rows", rows)
    aborted = many(200_000, open_since=10)
    for first in (0, 40, 30_000, 599_000):
        looked.clear()
        found = aborted.between(first, first + 3)
        assert len(looked) <= 2
        assert [row.first_offset for row in found if row.producer_id != 999] == [
            first - first % 3,
            *([first - first % 3 + 3] if first % 3 else []),
        ]
        assert (found[-1].producer_id == 999) is (first > 10)
    assert len(list(aborted._that_begin_below(40, 500))) == 1, "the one that was open"


def test_a_lookup_takes_a_moment_behind_many_aborts() -> None:
    aborted = many(200_000, open_since=10)
    began = time.process_time()
    for _ in range(20):
        aborted.between(300_000, 300_003)
    assert (time.process_time() - began) / 20 < 0.002, "some hundredths of a millisecond"


def test_an_aborted_transaction_costs_a_few_bytes() -> None:
    aborted = many(100_000)
    assert aborted.size / len(aborted) < 6
    assert len(aborted.packed()) == pytest.approx(aborted.size, rel=0.01)
    wide = AbortedTransactions()
    for number in range(1_000):
        wide.append((number * 7919) % 1_000_000, 5_000 * number, 5_000 * number + 100_000)
    assert wide.size / len(wide) < 13


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_many_aborted_transactions_are_found_trimmed_and_restored(data: st.DataObject) -> None:
    """Enough for several chunks, of which the first is trimmed within; against a list."""
    rng = data.draw(st.randoms(use_true_random=False))
    aborted, expected = AbortedTransactions(), list[AbortedTransaction]()
    twin, marker, start = AbortedTransactions(), 0, 0
    kept: list[tuple[AbortedTransactions, list[AbortedTransaction]]] = []
    for _ in range(data.draw(st.integers(1, 8))):
        if rng.random() < 0.7:
            kept.append((aborted.frozen(), list(expected)))
        for _ in range(rng.choice([3, 60, 127, 128, 300])):
            marker += rng.choice([1, 2, 900, 70_000])
            begin = max(marker - rng.choice([1, 5, 300, 10**6]), 0)
            if begin == marker:
                continue
            row = AbortedTransaction(rng.choice([0, 7, 300, 10**10]), begin, marker)
            expected.append(row)
            for one in (aborted, twin):
                one.append(*row)
        if rng.random() < 0.5:
            start = max(start, rng.randrange(marker + 2))
            expected = [row for row in expected if row.last_offset >= start]
            for one in (aborted, twin):
                one.trim(start)
        if rng.random() < 0.5:
            twin = AbortedTransactions.restored(twin.packed())
        assert twin.packed() == aborted.packed()
        assert (list(aborted), len(aborted)) == (expected, len(expected))
        first_last = (expected[0].last_offset, expected[-1].last_offset) if expected else (None, None)
        assert (aborted.first_marker, aborted.last_marker) == first_last
        assert aborted_rows(aborted.packed()).tolist() == [tuple(row) for row in expected]
        for _ in range(20):
            first = rng.randrange(start, marker + 2)
            end = first + rng.choice([1, 10, 5_000, 10**7])
            for one in (aborted, twin):
                assert one.between(first, end) == [
                    row for row in expected if row.last_offset >= first and row.first_offset < end
                ]
    for frozen, then in kept:
        assert (list(frozen), len(frozen)) == (then, len(then)), "what was taken stays as it was"
        assert frozen.between(0, marker + 2) == then


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.booleans()), max_size=40), st.data())
def test_lookups_find_what_a_search_through_all_finds(
    steps: list[tuple[int, bool, bool]], data: st.DataObject
) -> None:
    """A step is a batch of one of five producers, or the end of its transaction, aborted or not."""
    replica = Replica()
    sequences, numbers = [0] * 5, [1] * 5
    expected: list[AbortedTransaction] = []
    for producer, writes, commit in steps:
        if writes:
            replica.append(of(sequences[producer], numbers[producer], producer=producer))
            sequences[producer] += 1
        else:
            opened = replica.machine.open_transaction(producer)
            ended = end(replica, numbers[producer], commit=commit, producer=producer)
            numbers[producer] += 1
            assert isinstance(ended, TransactionEnded)
            if opened is not None and not commit:
                expected.append(AbortedTransaction(producer, opened.first_offset, ended.base_offset))
    start = data.draw(st.integers(0, replica.machine.next_offset), label="start offset")
    replica.apply(SetStartOffset(start))
    expected = [one for one in expected if one.last_offset >= start]
    for machine in (replica.machine, replica.restored().machine):
        assert list(machine.aborted) == expected
        assert len(machine.aborted) == len(expected)
        for first in range(start, machine.next_offset):
            for upto in range(first + 1, machine.next_offset + 1):
                assert machine.aborted_between(first, upto) == [
                    one for one in expected if one.last_offset >= first and one.first_offset < upto
                ]


def chunk(*rows: tuple[int, int, int]) -> bytes:
    return module._sealed([AbortedTransaction(*row) for row in rows])


FULL = [(1, 2 * number, 2 * number + 1) for number in range(module.CHUNK_ROWS)]


@pytest.mark.parametrize(
    "packed",
    [
        b"x",
        chunk((1, 0, 4))[:-1],
        chunk((1, 0, 4)).replace(b"\x01\x00\x01", b"\x01\x00\x03", 1),
        module.CHUNK_HEADER.pack(1, 1, 1, 1, 4, -1) + b"\0\4\0",
        module.CHUNK_HEADER.pack(1, 1, 1, 1, 4, 1) + b"\0\0\0",
        module.CHUNK_HEADER.pack(1, 1, 1, 1, 4, 1) + b"\0\5\0",
        module.CHUNK_HEADER.pack(2, 1, 1, 1, 4, 1) + b"\0\0\4\4\0\0",
        module.CHUNK_HEADER.pack(1, 2, 1, 1, 4, 1) + b"\0\0\4\0",
        module.CHUNK_HEADER.pack(1, 1, 1, 1, 4, 1) + b"\0\4\1",
        module.CHUNK_HEADER.pack(0, 1, 1, 1, 4, 1),
        chunk(*FULL) + chunk((1, 0, 200)),
        chunk((1, 0, 4)) + chunk((1, 5, 6)) + chunk((1, 7, 8)),
    ],
    ids=[
        "no header",
        "cut short",
        "a width that there is not",
        "no producer",
        "empty",
        "before the log",
        "markers out of order",
        "wider than need be",
        "not the lowest producer",
        "no rows",
        "chunks out of order",
        "a chunk that is not full",
    ],
)
def test_aborted_transactions_that_cannot_be_are_not_restored(packed: bytes) -> None:
    with pytest.raises(ValueError, match=r"aborted|producers|marker"):
        AbortedTransactions.restored(packed)
