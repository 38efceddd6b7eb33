"""Offsets: what a transaction does to them, in any order of its messages, and when they go."""

from __future__ import annotations

import time

import pytest

from strandline.statemachine.groups.group_commands import DeleteOffsets, ForgetTopics, GroupTransactionEnded
from strandline.statemachine.groups.offsets import CommittedOffset
from strandline.statemachine.kafka_errors import KafkaError
from tests.statemachine.groups_harness import CLICKS, DAY, EVENTS, Groups, member, offsets


def test_a_commit_is_there_with_all_it_said() -> None:
    groups = Groups()
    groups.do(groups.commit(offsets(5, 0, 3, metadata="mine"), retention=50))
    row = CommittedOffset(5, 3, "mine", 1000, 1050, 2)
    for _ in range(2):
        assert groups.row(0) == groups.row(3) == row
        assert groups.row(1) is None
        groups.restart()


def test_a_topic_made_anew_under_a_name_has_none() -> None:
    groups = Groups()
    groups.do(groups.commit(offsets(5)))
    assert groups.committed(0, b"events" + b"\1" * 10) is None


# Transactions.


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_of_a_transaction_are_pending_until_its_end(commit: bool) -> None:
    groups = Groups()
    groups.do(groups.commit(offsets(1)))
    groups.do(groups.add(offsets(5, 0, 1)))
    groups.do(groups.add(offsets(6, 1), group="h"))
    groups.restart()
    assert (groups.committed(), groups.committed(1)) == (1, None)
    assert groups.pending()
    assert groups.pending(1)
    assert groups.pending(1, group="h")
    assert not groups.pending(2)
    assert groups.do(groups.end(commit=commit)) == GroupTransactionEnded(3 if commit else 0)
    assert not groups.pending()
    assert not groups.pending(1)
    assert not groups.pending(1, group="h")
    assert (groups.committed(), groups.committed(1)) == ((5, 5) if commit else (1, None))
    assert groups.committed(1, group="h") == (6 if commit else None)


def test_within_a_transaction_the_last_commit_counts() -> None:
    groups = Groups()
    groups.do(groups.add(offsets(5)))
    groups.do(groups.add(offsets(3)))
    groups.do(groups.end())
    assert groups.committed() == 3


def test_the_later_commit_wins_not_the_later_marker() -> None:
    groups = Groups()
    groups.do(groups.add(offsets(5), producer=1))
    groups.do(groups.add(offsets(6), producer=2))
    groups.do(groups.end(2))
    assert groups.pending()
    groups.do(groups.end(1))
    assert groups.committed() == 6
    groups.do(groups.add(offsets(7), number=2, producer=1))
    groups.do(groups.commit(offsets(8)))
    assert groups.do(groups.end(1, 2)) == GroupTransactionEnded(0)
    assert groups.committed() == 8


def test_a_commit_that_comes_after_its_marker_is_refused() -> None:
    groups = Groups()
    groups.do(groups.end(number=1))
    assert groups.refused(groups.add(offsets(5), number=1)) is KafkaError.INVALID_TXN_STATE
    groups.restart()
    assert groups.refused(groups.add(offsets(5), number=1)) is KafkaError.INVALID_TXN_STATE
    groups.do(groups.add(offsets(6), number=2))
    assert groups.refused(groups.add(offsets(5), number=1)) is KafkaError.INVALID_TXN_STATE
    groups.do(groups.end(number=2))
    assert groups.committed() == 6


def test_a_marker_of_an_earlier_transaction_is_ignored() -> None:
    groups = Groups()
    groups.do(groups.end(number=1))
    groups.do(groups.add(offsets(5), number=2))
    assert groups.do(groups.end(number=1, commit=True)) == GroupTransactionEnded(0, ignored=True)
    assert groups.do(groups.end(number=1, commit=False)) == GroupTransactionEnded(0, ignored=True)
    assert groups.pending()
    assert groups.committed() is None
    groups.do(groups.end(number=2))
    assert groups.do(groups.end(number=2, commit=False)) == GroupTransactionEnded(0, ignored=True)
    assert groups.committed() == 5


def test_a_marker_commits_nothing_of_a_transaction_before_its_own() -> None:
    groups = Groups()
    groups.do(groups.add(offsets(5), number=1))
    assert groups.refused(groups.add(offsets(6), number=2)) is KafkaError.CONCURRENT_TRANSACTIONS
    assert groups.do(groups.end(number=2, commit=True)) == GroupTransactionEnded(0)
    assert groups.committed() is None
    assert not groups.pending()


def test_a_commit_of_an_earlier_transaction_is_refused_while_a_later_is_open() -> None:
    groups = Groups()
    groups.do(groups.add(offsets(6), number=2))
    assert groups.refused(groups.add(offsets(5), number=1)) is KafkaError.INVALID_TXN_STATE


def test_a_former_incarnation_of_the_producer_is_fenced() -> None:
    groups = Groups()
    groups.do(groups.end(number=1, epoch=4, commit=False))
    groups.restart()
    assert groups.refused(groups.add(offsets(5), number=2, epoch=3)) is KafkaError.INVALID_PRODUCER_EPOCH
    groups.do(groups.add(offsets(5), number=2, epoch=4))
    # A marker of a lower epoch than the producer's takes nothing back from it.
    groups.do(groups.end(number=2, epoch=3))
    assert groups.refused(groups.add(offsets(5), number=3, epoch=3)) is KafkaError.INVALID_PRODUCER_EPOCH


def test_producers_do_not_touch_one_another() -> None:
    groups = Groups()
    groups.do(groups.add(offsets(5, 0), producer=1))
    groups.do(groups.add(offsets(6, 1), producer=2))
    groups.do(groups.end(1, commit=False))
    assert not groups.pending(0)
    assert groups.pending(1)
    groups.do(groups.end(2))
    assert (groups.committed(0), groups.committed(1)) == (None, 6)


def test_a_producer_is_forgotten_by_time_but_never_with_something_open() -> None:
    groups = Groups()
    groups.do(groups.add(offsets(5), producer=1))
    groups.do(groups.end(2))
    groups.time += 100
    groups.do(groups.end(3))
    assert groups.expire(DAY, 99).producers == 1
    assert [producer_id for producer_id, _ in groups.machine.producers] == [1, 3]
    groups.do(groups.end(1))
    groups.time += 200
    assert groups.expire(DAY, 200).producers == 0
    groups.time += 1
    assert groups.expire(DAY, 200).producers == 2
    assert len(groups.machine.producers) == 0


def test_since_when_the_newest_producers_were_there_is_known_in_whatever_order_that_was() -> None:
    groups = Groups()
    for producer in (1, 2, 3, 4):
        groups.do(groups.end(producer))
        groups.time += 10
    groups.do(groups.end(2, number=2))
    # By what they did last: 1, 3, 4, 2.
    begin = groups.time - 40
    for _ in range(2):
        since = [groups.machine.producers.newest_since(count) for count in (1, 2, 3, 4, 5)]
        assert since == [begin + 40, begin + 30, begin + 20, None, None]
        groups.restart()


# Deletion and expiry.


def test_a_deleted_offset_does_not_come_back_with_a_marker() -> None:
    groups = Groups()
    groups.do(groups.commit(offsets(1, 0, 1)))
    groups.do(groups.add(offsets(5, 0, 1, 2)))
    assert groups.do(DeleteOffsets("g", [(EVENTS, "events", [0, 2])])) == (2, [])
    assert groups.do(groups.end()) == GroupTransactionEnded(1)
    assert [groups.committed(partition) for partition in range(3)] == [None, 5, None]


def test_a_deleted_topic_takes_its_offsets_along() -> None:
    groups = Groups()
    both = offsets(1, 0, 1) + offsets(2, 0, topic=CLICKS)
    groups.do(groups.commit(both))
    groups.do(groups.commit(both, group="h"))
    groups.do(groups.add(offsets(5, 1, 2)))
    assert groups.machine.topic_ids() == [EVENTS, CLICKS]
    assert groups.do(ForgetTopics([*groups.machine.groups], [EVENTS, b"unknown"])) == (5,)
    assert groups.machine.topic_ids() == [CLICKS]
    groups.do(groups.end())
    assert groups.committed(1) is None
    assert groups.committed(2) is None
    assert groups.committed(0, CLICKS, "h") == 2
    groups.restart()


def test_a_large_topic_goes_at_the_cost_of_its_partitions() -> None:
    groups = Groups()
    many = range(5_000)
    groups.do(groups.commit(offsets(1, *many)))
    groups.do(groups.add(offsets(5, *many, topic=CLICKS)))
    began = time.process_time()
    assert groups.do(DeleteOffsets("g", [(EVENTS, "events", [*range(2_500), 0])])) == (2_500, [])
    assert groups.do(ForgetTopics([*groups.machine.groups], [EVENTS])) == (2_500,)
    assert time.process_time() - began < 0.5, "some hundredths"
    assert groups.machine.topic_ids() == [CLICKS]


def test_offsets_of_a_group_without_members_go_by_time() -> None:
    groups = Groups()
    groups.do(groups.commit(offsets(1, 0)))
    groups.time += 10
    groups.do(groups.commit(offsets(1, 1)))
    groups.time += 89
    assert groups.expire(100, DAY).offsets == 0
    groups.time += 1
    assert groups.expire(100, DAY) == (1, [], 0)
    assert groups.committed(0) is None
    assert groups.committed(1) == 1
    groups.time += 10
    assert groups.expire(100, DAY) == (1, ["g"], 0)


def test_the_time_counts_from_when_the_last_member_left() -> None:
    groups = Groups()
    groups.generation(member("a"))
    groups.do(groups.commit(offsets(1), "a", 1))
    groups.time += 1000
    assert groups.expire(100, DAY).offsets == 0
    groups.generation(generation=2)
    groups.restart()
    groups.time += 99
    assert groups.expire(100, DAY).offsets == 0
    groups.time += 1
    assert groups.expire(100, DAY).offsets == 1


def test_what_is_pending_and_what_it_would_replace_stays() -> None:
    groups = Groups()
    groups.do(groups.commit(offsets(1, 0, 1)))
    groups.do(groups.add(offsets(5, 0)))
    groups.time += 1000
    assert groups.expire(100, DAY) == (1, [], 0)
    assert groups.committed(0) == 1
    groups.do(groups.end(commit=False))
    assert groups.expire(100, DAY) == (1, ["g"], 0)


def test_a_commit_may_have_a_retention_of_its_own() -> None:
    groups = Groups()
    groups.do(groups.commit(offsets(1, 0), retention=50))
    groups.do(groups.commit(offsets(1, 1), retention=5000))
    groups.do(groups.commit(offsets(1, 2)))
    groups.time += 50
    assert groups.expire(1000, DAY).offsets == 1
    assert groups.committed(0) is None
    groups.time += 1000
    assert groups.expire(1000, DAY).offsets == 1
    assert groups.committed(1) == 1
