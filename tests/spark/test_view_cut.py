"""The cut of a program at a restore point: its coordinator's decision counts, with or without a marker."""

from __future__ import annotations

import json
from typing import Final

import pytest

from strandline.snapshot.spark.audits.view_cut import (
    Cut,
    UnknownOutcome,
    committed_end,
    lacks_records,
    own_offsets,
)
from strandline.statemachine.groups.offsets import CommittedOffset, Offsets
from strandline.statemachine.partition.placeholder import InlineBatch
from strandline.statemachine.partition.producers import Producers
from strandline.statemachine.transactions.transaction_state import Transaction, TransactionState

TOPIC: Final = b"\1" * 16
ATTEMPT: Final = 40
LIVE: Final = 7
"""Producer ids: of the live version's process, and of the one that filled it."""
FILLING: Final = 8
UNDECIDED: Final = [state for state in TransactionState if state is not TransactionState.PREPARE_COMMIT]


class Partition:
    """Producers of a view's topic, and its end."""

    def __init__(self) -> None:
        self.producers = Producers()
        self.next_offset = 0

    def write(self, first: int, count: int, *, producer: int, transaction: int) -> None:
        batch = InlineBatch(count, 0, b"", producer, 0, first, transaction)
        assert self.producers.check(batch) is None
        self.producers.appended(batch, self.next_offset, 0)
        self.next_offset += count

    def end(self, transaction: int, *, producer: int) -> None:
        assert self.producers.end(producer, 0, transaction, 1, self.next_offset, 0) is not None
        self.next_offset += 1


def transaction(state: TransactionState, number: int, producer: int = LIVE) -> Transaction:
    return Transaction(
        "view.p.1", producer, 0, 60_000, state=state, number=number, marker_producer_id=producer
    )


def offset(value: int, attempt: int, log_index: int) -> CommittedOffset:
    # librdkafka sends metadata with the 0 behind it.
    return CommittedOffset(value, 0, json.dumps(["", attempt, "following", 0]) + "\0", 0, 0, log_index)


def offsets(committed: int, pending: int | None) -> Offsets:
    made = Offsets()
    made.commit(TOPIC, "sales", 0, offset(committed, ATTEMPT, 1))
    made.commit(TOPIC, "sales", 1, offset(5, ATTEMPT, 1))
    if pending is not None:
        made.add_pending(LIVE, TOPIC, "sales", 0, offset(pending, ATTEMPT, 2))
    return made


def cut_of(found: Offsets | None, newest: Transaction | None, attempt: int) -> Cut | None:
    return {place: one.offset for place, one in own_offsets(found, newest, attempt).items()} or None


def at(first: int) -> Cut:
    return {(TOPIC, 0): first, (TOPIC, 1): 5}


def test_offsets_of_a_transaction_that_is_decided_count_before_their_marker_has_come() -> None:
    decided = transaction(TransactionState.PREPARE_COMMIT, 3)
    assert cut_of(offsets(10, 20), decided, ATTEMPT) == at(20)
    assert cut_of(offsets(20, None), decided, ATTEMPT) == at(20), "the marker has come"


@pytest.mark.parametrize("state", UNDECIDED)
def test_offsets_of_any_other_transaction_do_not(state: TransactionState) -> None:
    assert cut_of(offsets(10, 20), transaction(state, 3), ATTEMPT) == at(10)
    assert cut_of(offsets(10, 20), None, ATTEMPT) == at(10)


def test_offsets_of_the_version_before_are_no_cut_of_this_one() -> None:
    assert cut_of(offsets(10, None), None, ATTEMPT + 1) is None
    assert cut_of(None, None, ATTEMPT) is None


def topic() -> Partition:
    """Two committed records of the first transaction, then one of the second, which is open."""
    made = Partition()
    made.write(0, 2, producer=LIVE, transaction=1)
    made.end(1, producer=LIVE)
    made.write(2, 1, producer=LIVE, transaction=2)
    return made


def end_of(partition: Partition, *transactions: Transaction) -> int:
    return committed_end(partition.producers, 0, partition.next_offset, transactions)


def test_a_topic_has_what_is_decided_before_its_marker_has_come() -> None:
    assert end_of(topic(), transaction(TransactionState.PREPARE_COMMIT, 2)) == 4
    ended = topic()
    ended.end(2, producer=LIVE)
    assert end_of(ended, transaction(TransactionState.PREPARE_COMMIT, 2)) == 5
    assert end_of(ended) == 5


@pytest.mark.parametrize("state", UNDECIDED)
def test_a_topic_ends_where_a_transaction_is_open_that_is_not_committed(state: TransactionState) -> None:
    assert end_of(topic(), transaction(state, 2)) == 3


def test_a_later_transaction_that_is_decided_does_not_commit_an_earlier_one() -> None:
    assert end_of(topic(), transaction(TransactionState.PREPARE_COMMIT, 3)) == 3


def test_what_the_filling_has_committed_counts_while_the_live_process_has_begun_another() -> None:
    partition = Partition()
    partition.write(0, 2, producer=FILLING, transaction=9)
    partition.write(0, 2, producer=LIVE, transaction=1)
    filled = transaction(TransactionState.PREPARE_COMMIT, 9, FILLING)
    assert end_of(partition, transaction(TransactionState.ONGOING, 1), filled) == 2


def test_an_outcome_that_the_point_does_not_tell_is_not_guessed() -> None:
    with pytest.raises(UnknownOutcome, match="producer 7, from offset 3 on, is none of the program's"):
        end_of(topic(), transaction(TransactionState.ONGOING, 1, FILLING))
    behind = topic()
    behind.write(0, 1, producer=FILLING, transaction=9)
    filled = transaction(TransactionState.PREPARE_COMMIT, 9, FILLING)
    with pytest.raises(UnknownOutcome, match="that from offset 3 on is not committed, and one behind it is"):
        end_of(behind, transaction(TransactionState.ONGOING, 2), filled)


@pytest.mark.parametrize(
    ("start", "clean", "of_a_table_without_key", "of_one_with"),
    [(0, 0, False, False), (0, 7, True, False), (3, 3, True, True), (3, 9, True, True)],
)
def test_records_that_retention_or_cleaning_took_are_told(
    start: int, clean: int, of_a_table_without_key: bool, of_one_with: bool
) -> None:
    fields = {"start_offset": start, "removals": {"level_one_clean": clean}}
    assert lacks_records(fields, keyed=False) == of_a_table_without_key
    assert lacks_records(fields, keyed=True) == of_one_with
