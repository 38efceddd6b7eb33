"""Idempotent producers: Kafka's rules one by one, and all of them against a plain model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from strandline.statemachine.partition.placeholder import InlineBatch
from strandline.statemachine.partition.producer_state import (
    MAX_SEQUENCE,
    NO_TRANSACTION,
    OpenTransaction,
    last_sequence,
)
from strandline.statemachine.partition.producers import Duplicate, ProducerDescription, Producers
from strandline.statemachine.partition.rejection import Rejected, Rejection

PRODUCER = 4000
TERM = 12


class Partition:
    """Producers with a counter for offsets, as a partition uses them."""

    def __init__(self) -> None:
        self.producers = Producers()
        self.next_offset = 0

    def write(
        self,
        first: int,
        count: int = 1,
        *,
        epoch: int = 0,
        producer: int = PRODUCER,
        time: int = 0,
        transaction: int = NO_TRANSACTION,
    ) -> Duplicate | Rejected | int:
        """The base offset of an appended batch, or why it was not."""
        batch = InlineBatch(count, time, b"", producer, epoch, first, transaction)
        refusal = self.producers.check(batch)
        if refusal is not None:
            return refusal
        base = self.next_offset
        self.next_offset += count
        self.producers.appended(batch, base, time)
        return base

    def end(
        self, transaction: int, *, epoch: int = 0, producer: int = PRODUCER, time: int = 0
    ) -> Rejected | OpenTransaction | None:
        """What a marker ended, or why it was passed over."""
        refusal = self.producers.check_end(producer, epoch, transaction)
        if refusal is not None:
            return refusal
        self.next_offset += 1
        return self.producers.end(producer, epoch, transaction, TERM, self.next_offset - 1, time)


@pytest.fixture
def partition() -> Partition:
    return Partition()


def test_sequences_follow_one_another(partition: Partition) -> None:
    assert [partition.write(0, 3), partition.write(3, 2), partition.write(5)] == [0, 3, 5]


def test_duplicate_gets_its_first_offset_back(partition: Partition) -> None:
    for batch in range(5):
        partition.write(batch * 10, 10)
    for batch in range(5):
        assert partition.write(batch * 10, 10) == Duplicate(batch * 10)
    assert partition.next_offset == 50


def test_five_batches_are_remembered_and_not_a_sixth(partition: Partition) -> None:
    for batch in range(6):
        partition.write(batch * 10, 10)
    assert partition.write(10, 10) == Duplicate(10)
    assert partition.write(0, 10) == Rejected(Rejection.OUT_OF_ORDER_SEQUENCE_NUMBER, 60)


def test_gap_is_out_of_order_and_names_the_next_sequence(partition: Partition) -> None:
    partition.write(0, 3)
    assert partition.write(4) == Rejected(Rejection.OUT_OF_ORDER_SEQUENCE_NUMBER, 3)


@pytest.mark.parametrize(("first", "count"), [(0, 2), (1, 2), (2, 1), (0, 4), (1, 3)])
def test_overlap_that_is_no_remembered_batch_is_out_of_order(
    partition: Partition, first: int, count: int
) -> None:
    partition.write(0, 3)
    assert partition.write(first, count) == Rejected(Rejection.OUT_OF_ORDER_SEQUENCE_NUMBER, 3)


def test_sequences_wrap_after_the_largest(partition: Partition) -> None:
    partition.write(MAX_SEQUENCE - 1, 2)
    assert partition.write(1) == Rejected(Rejection.OUT_OF_ORDER_SEQUENCE_NUMBER, 0)
    assert partition.write(0, 5) == 2
    assert partition.write(MAX_SEQUENCE - 1, 2) == Duplicate(0)


def test_a_batch_that_goes_on_after_a_whole_turn_of_the_sequences_is_no_duplicate(
    partition: Partition,
) -> None:
    """Not for the leader's first look either, which would lose it and say that it is there."""
    half = 2**30
    partition.write(0, half)
    partition.write(half, half)
    assert partition.producers.duplicate(PRODUCER, 0, 0, half) is None
    assert partition.write(0, half) == 2 * half


def test_the_first_look_says_duplicate_only_where_the_log_would(partition: Partition) -> None:
    for batch in range(7):
        partition.write(MAX_SEQUENCE - 29 + batch * 10 & MAX_SEQUENCE, 10)
    first = partition.producers
    asked = [
        (epoch, (MAX_SEQUENCE - 29 + start) & MAX_SEQUENCE, count)
        for epoch in (0, 1)
        for start in range(-5, 80)
        for count in (1, 5, 9, 10, 11, 20)
    ]
    for epoch, sequence, count in asked:
        there = first.check(InlineBatch(count, 0, b"", PRODUCER, epoch, sequence))
        expected = there if isinstance(there, Duplicate) else None
        assert first.duplicate(PRODUCER, epoch, sequence, count) == expected
    assert sum(first.duplicate(PRODUCER, *each) is not None for each in asked) == 5
    partition.end(1, epoch=1)
    assert not any(first.duplicate(PRODUCER, *each) for each in asked), "another epoch, without batches"
    assert first.duplicate(PRODUCER + 1, 0, 0, 10) is None


def test_a_batch_may_lie_across_the_wrap(partition: Partition) -> None:
    assert last_sequence(MAX_SEQUENCE - 1, 5) == 2
    partition.write(MAX_SEQUENCE - 1, 5)
    assert partition.write(MAX_SEQUENCE - 1, 5) == Duplicate(0)
    assert partition.write(3) == 5


@pytest.mark.parametrize("first", [0, 7, MAX_SEQUENCE])
def test_unknown_producer_may_start_at_any_sequence(partition: Partition, first: int) -> None:
    assert partition.write(first) == 0


def test_older_epoch_is_fenced_even_with_the_right_sequence(partition: Partition) -> None:
    partition.write(0, epoch=2)
    assert partition.write(1, epoch=1) == Rejected(Rejection.INVALID_PRODUCER_EPOCH, 2)
    assert partition.write(0, epoch=1) == Rejected(Rejection.INVALID_PRODUCER_EPOCH, 2)


def test_new_epoch_starts_at_zero_and_forgets_the_old_batches(partition: Partition) -> None:
    partition.write(0, epoch=2)
    assert partition.write(1, epoch=3) == Rejected(Rejection.OUT_OF_ORDER_SEQUENCE_NUMBER, 0)
    assert partition.write(0, epoch=3) == 1
    assert partition.write(0, epoch=3) == Duplicate(1)
    assert partition.write(1, epoch=3) == 2


def test_refused_new_epoch_fences_nobody(partition: Partition) -> None:
    partition.write(0, epoch=2)
    partition.write(9, epoch=3)
    assert partition.write(1, epoch=2) == 1


def test_producers_do_not_disturb_each_other(partition: Partition) -> None:
    assert [partition.write(0, producer=1), partition.write(0, producer=2)] == [0, 1]
    assert partition.write(0, producer=1) == Duplicate(0)


def test_idle_producer_expires_and_may_then_start_anywhere(partition: Partition) -> None:
    partition.write(0, producer=1, time=100)
    partition.write(0, producer=2, time=200)
    assert partition.producers.expire(100) == 0
    assert partition.producers.expire(101) == 1
    assert partition.producers.get(1) is None
    assert partition.write(1, producer=2, time=300) == 2
    assert partition.write(77, producer=1, time=300) == 3


def test_activity_and_not_age_keeps_a_producer(partition: Partition) -> None:
    partition.write(0, producer=1, time=100)
    partition.write(0, producer=2, time=200)
    partition.write(1, producer=1, time=300)
    assert partition.producers.expire(250) == 1
    assert partition.producers.get(1) is not None


def test_duplicate_is_not_activity(partition: Partition) -> None:
    partition.write(0, time=100)
    assert partition.write(0, time=500) == Duplicate(0)
    assert partition.producers.expire(400) == 1


@pytest.mark.parametrize(("epoch", "first"), [(0, -1), (-1, 0), (0, MAX_SEQUENCE + 1)])
def test_numbers_no_batch_has_are_refused_loudly(partition: Partition, epoch: int, first: int) -> None:
    with pytest.raises(ValueError, match="has no sequence"):
        partition.write(first, epoch=epoch)


# Transactions.


def test_the_first_batch_opens_a_transaction_and_the_marker_ends_it(partition: Partition) -> None:
    partition.write(0, 5)
    partition.write(5, 2, transaction=3)
    partition.write(7, 2, transaction=3)
    assert partition.producers.open_transaction(PRODUCER) == OpenTransaction(3, 5, 0)
    assert partition.producers.first_open_offset == 5
    assert partition.end(3) == OpenTransaction(3, 5, 0)
    assert partition.producers.open_transaction(PRODUCER) is None
    assert partition.producers.first_open_offset is None


def test_the_earliest_open_transaction_counts_whoever_ends_first(partition: Partition) -> None:
    for producer in (1, 2, 3):
        partition.write(0, producer=producer, transaction=1)
    assert partition.producers.first_open_offset == 0
    assert partition.producers.first_open_producer == 1
    partition.end(1, producer=2)
    assert partition.producers.first_open_offset == 0
    partition.end(1, producer=1)
    assert partition.producers.first_open_offset == 2
    assert partition.producers.first_open_producer == 3


def test_a_batch_of_a_transaction_that_ended_is_refused(partition: Partition) -> None:
    partition.write(0, transaction=3)
    partition.end(3)
    assert partition.write(1, transaction=3) == Rejected(Rejection.TRANSACTION_ENDED, 3)
    assert partition.write(1, transaction=2) == Rejected(Rejection.TRANSACTION_ENDED, 3)
    assert partition.write(1, transaction=4) == 2


def test_a_retry_of_what_is_in_the_log_is_a_duplicate_also_after_the_marker(partition: Partition) -> None:
    """It is there, and the marker decided on it: a refusal would say that it is not."""
    partition.write(0, 2, transaction=3)
    assert partition.write(0, 2, transaction=3) == Duplicate(0)
    partition.end(3)
    assert partition.write(0, 2, transaction=3) == Duplicate(0)
    partition.write(2, 2, transaction=4)
    assert partition.write(0, 2, transaction=3) == Duplicate(0)


def test_while_a_transaction_is_open_nothing_else_of_the_producer_comes_in(partition: Partition) -> None:
    partition.write(0, transaction=3)
    assert partition.write(1) == Rejected(Rejection.NOT_IN_TRANSACTION, 3)
    assert partition.write(1, transaction=2) == Rejected(Rejection.NOT_IN_TRANSACTION, 3)
    assert partition.write(1, transaction=4) == Rejected(Rejection.NOT_IN_TRANSACTION, 3)
    assert partition.write(0, epoch=1) == Rejected(Rejection.NOT_IN_TRANSACTION, 3)
    assert partition.write(0, epoch=1, transaction=3) == Rejected(Rejection.NOT_IN_TRANSACTION, 3)
    assert partition.write(0, producer=PRODUCER + 1) == 1
    assert partition.write(1, transaction=3) == 2


def test_a_gap_within_a_transaction_is_out_of_order(partition: Partition) -> None:
    partition.write(0, transaction=3)
    assert partition.write(2, transaction=3) == Rejected(Rejection.OUT_OF_ORDER_SEQUENCE_NUMBER, 1)


def test_a_marker_that_is_not_newer_is_passed_over(partition: Partition) -> None:
    assert partition.end(3) is None
    assert partition.end(3) == Rejected(Rejection.TRANSACTION_ENDED, 3)
    assert partition.end(2) == Rejected(Rejection.TRANSACTION_ENDED, 3)
    assert partition.write(0, transaction=3) == Rejected(Rejection.TRANSACTION_ENDED, 3)


def test_a_marker_of_an_earlier_transaction_does_not_come_into_an_open_one(partition: Partition) -> None:
    partition.write(0, transaction=5)
    assert partition.end(4) == Rejected(Rejection.TRANSACTION_ENDED, 4)
    assert partition.producers.open_transaction(PRODUCER) == OpenTransaction(5, 0, 0)
    assert partition.end(7) == OpenTransaction(5, 0, 0)
    assert partition.write(1, transaction=6) == Rejected(Rejection.TRANSACTION_ENDED, 7)


def test_a_marker_with_a_higher_epoch_fences_and_starts_the_sequences_anew(partition: Partition) -> None:
    partition.write(0, 3, epoch=4, transaction=1)
    partition.end(1, epoch=5)
    assert partition.write(3, epoch=4, transaction=2) == Rejected(Rejection.INVALID_PRODUCER_EPOCH, 5)
    assert partition.write(0, 3, epoch=4, transaction=1) == Rejected(Rejection.INVALID_PRODUCER_EPOCH, 5)
    assert partition.write(3, epoch=5, transaction=2) == Rejected(Rejection.OUT_OF_ORDER_SEQUENCE_NUMBER, 0)
    assert partition.write(0, epoch=5, transaction=2) == 4


def test_a_marker_with_the_present_epoch_goes_on_with_the_sequences(partition: Partition) -> None:
    partition.write(0, 3, epoch=4, transaction=1)
    partition.end(1, epoch=4)
    assert partition.write(3, epoch=4, transaction=2) == 4


def test_a_marker_with_a_lower_epoch_ends_and_fences_nobody(partition: Partition) -> None:
    partition.write(0, 3, epoch=4, transaction=1)
    assert partition.end(1, epoch=3) == OpenTransaction(1, 0, 4)
    assert partition.write(3, epoch=4, transaction=2) == 4


def test_a_producer_known_by_a_marker_alone_starts_at_zero(partition: Partition) -> None:
    partition.end(1, epoch=2)
    assert partition.write(7, epoch=2, transaction=2) == Rejected(Rejection.OUT_OF_ORDER_SEQUENCE_NUMBER, 0)
    assert partition.write(0, epoch=1, transaction=2) == Rejected(Rejection.INVALID_PRODUCER_EPOCH, 2)
    assert partition.write(0, epoch=2, transaction=2) == 1


def test_since_when_the_newest_wrote_is_in_the_order_of_their_last_batch_or_marker(
    partition: Partition,
) -> None:
    for number, time in ((1, 100), (2, 200), (3, 300)):
        partition.write(0, producer=number, time=time)
    partition.end(1, producer=1, time=400)
    newest_since = partition.producers.newest_since
    assert [newest_since(count) for count in (1, 2, 3, 4)] == [400, 300, None, None]


def test_a_producer_with_an_open_transaction_does_not_expire(partition: Partition) -> None:
    partition.write(0, producer=1, time=100, transaction=1)
    partition.write(0, producer=2, time=100)
    assert partition.producers.expire(101) == 1
    assert partition.producers.expire(9999) == 0
    partition.end(1, producer=1, time=200)
    assert partition.producers.expire(200) == 0
    assert partition.producers.expire(201) == 1
    assert len(partition.producers) == 0


def test_what_ended_is_remembered_with_the_producer(partition: Partition) -> None:
    partition.write(0, transaction=3, time=100)
    partition.end(3, time=200)
    partition.write(0, producer=1, time=300)
    partition.producers.expire(200)
    assert partition.write(1, transaction=3) == Rejected(Rejection.TRANSACTION_ENDED, 3)


def test_producers_are_described(partition: Partition) -> None:
    partition.write(0, 3, producer=1, epoch=7, time=5)
    partition.write(0, 2, producer=2, epoch=8, time=6, transaction=4)
    partition.end(9, producer=3, epoch=1, time=8)
    assert list(partition.producers) == [
        ProducerDescription(1, 7, 2, 5, -1, -1),
        ProducerDescription(2, 8, 1, 6, -1, 3),
        ProducerDescription(3, 1, -1, 8, TERM, -1),
    ]
    assert partition.producers.last_offset == 5
    assert Producers().last_offset == -1


@pytest.mark.parametrize("transaction", [0, -2])
def test_transactions_nobody_numbered_are_refused_loudly(partition: Partition, transaction: int) -> None:
    with pytest.raises(ValueError, match=f"has no transaction {transaction}"):
        partition.write(0, transaction=transaction)
    with pytest.raises(ValueError, match=f"has no transaction {transaction}"):
        partition.end(transaction)


def rows(producers: Producers) -> list[Any]:
    """As a snapshot has them."""
    size, given = producers.rows()
    made = [*given()]
    assert len(made) == size
    return made


def test_restored_producers_answer_alike(partition: Partition) -> None:
    for batch in range(7):
        partition.write(batch, producer=1, time=batch)
    partition.write(0, producer=2, epoch=5, time=9)
    partition.write(0, producer=4, time=10, transaction=2)
    partition.write(0, producer=3, time=10, transaction=8)
    partition.write(1, producer=4, time=10, transaction=2)
    partition.end(6, producer=5, time=10)
    captured = rows(partition.producers)
    partition.producers = Producers.restored(captured)
    assert rows(partition.producers) == captured
    assert partition.write(2, producer=1) == Duplicate(2)
    assert partition.write(1, producer=1) == Rejected(Rejection.OUT_OF_ORDER_SEQUENCE_NUMBER, 7)
    assert partition.write(1, producer=2, epoch=4) == Rejected(Rejection.INVALID_PRODUCER_EPOCH, 5)
    assert partition.write(0, producer=5, transaction=6) == Rejected(Rejection.TRANSACTION_ENDED, 6)
    assert partition.producers.first_open_offset == 8
    assert partition.end(2, producer=4) == OpenTransaction(2, 8, 0)
    assert partition.producers.first_open_offset == 9


@pytest.mark.parametrize(
    "captured",
    [
        [(1, 0, 0, [], 0, -1, -1, None)],
        [(1, 0, 0, [(n, n, n) for n in range(6)], 0, -1, -1, None)],
        [(1, 0, 0, [(0, 0, 5)], 0, -1, -1, None), (2, 0, 0, [(0, 0, 4)], 0, -1, -1, None)],
        [(1, 0, 0, [], 3, 5, 1, None), (2, 0, 0, [(0, 0, 4)], 0, -1, -1, None)],
        [(1, 0, 9, [(0, 0, 4)], 0, -1, -1, None), (2, 0, 8, [(0, 0, 5)], 0, -1, -1, None)],
        [(1, 0, 0, [(0, 0, 5)], 3, -1, -1, None)],
        [(1, 0, 0, [(0, 0, 5)], 0, 4, -1, None)],
        [(1, 0, 0, [(0, 0, 5)], -1, -1, -1, None)],
        [(1, 0, 0, [(0, 0, 5)], 3, 4, 1, (3, 5))],
        [(1, 0, 0, [(0, 0, 5)], 3, 4, 1, (4, 4))],
        [(1, 0, 0, [(0, 0, 5)], 3, 4, 1, (4, 6))],
    ],
    ids=[
        "no batches",
        "six batches",
        "offsets out of order",
        "offset of a marker out of order",
        "times out of order",
        "ended without a marker",
        "marker that ended nothing",
        "ended less than nothing",
        "open after it ended",
        "open before the marker",
        "open without a batch",
    ],
)
def test_producers_that_cannot_be_are_not_restored(captured: list[object]) -> None:
    with pytest.raises(ValueError, match="producer"):
        Producers.restored(captured)


class ProducersAgainstPlainModel(RuleBasedStateMachine):
    """The model keeps every accepted batch of all time, and searches."""

    def __init__(self) -> None:
        super().__init__()
        self.partition = Partition()
        self.accepted: list[tuple[int, int, int, int, int, int]] = []
        """(producer, epoch, first, count, base offset, time), in log order; expired ones removed."""
        self.time = 0

    @rule(
        producer=st.integers(1, 3),
        epoch_step=st.sampled_from([0, 0, 0, 0, 1, -1]),
        step=st.sampled_from([0, 0, 0, 1, -1, -2]),
        count=st.integers(1, 3),
    )
    def write_near(self, producer: int, epoch_step: int, step: int, count: int) -> None:
        mine = [batch for batch in self.accepted if batch[0] == producer]
        epoch = max(0, mine[-1][1] + epoch_step) if mine else 1
        first = 0
        if mine and epoch == mine[-1][1]:
            first = (mine[-1][2] + mine[-1][3] + step) % 2**31
        elif not mine:
            first = (step - 2) % 2**31
        self.write(producer, epoch, first, count)

    @rule(back=st.integers(1, 8))
    def retry(self, back: int) -> None:
        if len(self.accepted) >= back:
            producer, epoch, first, count, _, _ = self.accepted[-back]
            self.write(producer, epoch, first, count)

    def write(self, producer: int, epoch: int, first: int, count: int) -> None:
        base = self.partition.next_offset
        expected = self.judged(producer, epoch, first, count)
        got = self.partition.write(first, count, epoch=epoch, producer=producer, time=self.time)
        assert got == (base if expected is None else expected)
        if expected is None:
            self.accepted.append((producer, epoch, first, count, base, self.time))

    def judged(self, producer: int, epoch: int, first: int, count: int) -> Duplicate | Rejected | None:
        mine = [batch for batch in self.accepted if batch[0] == producer]
        if not mine:
            return None
        if epoch < mine[-1][1]:
            return Rejected(Rejection.INVALID_PRODUCER_EPOCH, mine[-1][1])
        same = [batch for batch in mine if batch[1] == epoch]
        following = (same[-1][2] + same[-1][3]) % 2**31 if same else 0
        if first == following:
            return None
        for batch in same[-5:]:
            if batch[2:4] == (first, count):
                return Duplicate(batch[4])
        return Rejected(Rejection.OUT_OF_ORDER_SEQUENCE_NUMBER, following)

    @rule(milliseconds=st.integers(0, 50))
    def wait(self, milliseconds: int) -> None:
        self.time += milliseconds

    @rule(idle=st.integers(0, 100))
    def expire(self, idle: int) -> None:
        last = {batch[0]: batch[5] for batch in self.accepted}
        gone = {producer for producer, time in last.items() if time < self.time - idle}
        self.accepted = [batch for batch in self.accepted if batch[0] not in gone]
        assert self.partition.producers.expire(self.time - idle) == len(gone)

    @rule()
    def restore(self) -> None:
        self.partition.producers = Producers.restored(rows(self.partition.producers))

    @invariant()
    def knows_exactly_the_producers_that_did_not_expire(self) -> None:
        assert len(self.partition.producers) == len({batch[0] for batch in self.accepted})


TestProducersAgainstPlainModel = ProducersAgainstPlainModel.TestCase
TestProducersAgainstPlainModel.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
