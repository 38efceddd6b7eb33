"""Transactional batches and markers on one partition: whatever comes late, or twice, or in another order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from strandline.node.kafka.handlers.error_codes import code_of
from strandline.node.kafka.wire.record_batch import BatchLimits, InvalidBatch, read_header, validate_produced
from strandline.node.partition import partition, pending_acks
from strandline.node.partition.batch import Verification, Verified
from strandline.node.raft.outcome import NotLeader, Overloaded
from strandline.node.refusal import Reason, Refusal
from strandline.statemachine.partition.aborted_transactions import AbortedTransaction
from strandline.statemachine.partition.extent import InlineExtent
from strandline.statemachine.partition.partition_commands import (
    Appended,
    EndTransaction,
    PartitionOpcode,
    SetStartOffset,
)
from strandline.statemachine.partition.producer_state import OpenTransaction
from tests.partition.lone import Lone, unknown

P = 7
NOT_NOW = "not_enough_replicas"
AFTER = "not_enough_replicas_after_append"
ENDED = "invalid_txn_state"


def asked(lone: Lone) -> Verification:
    future: Verification = lone.loop.create_future()
    return future


def known(lone: Lone, number: int) -> Verification:
    verification = asked(lone)
    verification.set_result(Verified(number))
    return verification


def numbers(lone: Lone) -> list[int]:
    """Transaction of every batch in the log."""
    return [
        fields[9]
        for entry in lone.group.entries()
        for command in entry
        if command[0] == PartitionOpcode.APPEND
        for fields in command[3]
    ]


def markers(lone: Lone) -> list[tuple[int, int, bool]]:
    """Epoch, number and decision of every marker in the log."""
    return [
        (command[2], command[3], command[4])
        for entry in lone.group.entries()
        for command in entry
        if command[0] == PartitionOpcode.END_TRANSACTION
    ]


def begun(lone: Lone, number: int = 1, *, sequence: int = 0, epoch: int = 0) -> None:
    """A batch of a transaction is applied."""
    name = f"begun {number}"
    lone.append(name, producer=P, producer_epoch=epoch, sequence=sequence, verification=known(lone, number))
    lone.stored(name)
    lone.group.commit()
    assert lone.codes()[name].isdigit()


def opened(lone: Lone) -> OpenTransaction | None:
    return lone.partition.machine.open_transaction(P)


# How many aborted ones are remembered.


@pytest.mark.parametrize("bound", ["MAX_ABORTED", "MAX_ABORTED_BYTES"])
def test_a_partition_with_too_many_aborted_transactions_begins_none(
    bound: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is open goes on and ends; when the records go, others begin."""
    monkeypatch.setattr(partition, bound, 2 if bound == "MAX_ABORTED" else 16)
    with Lone() as lone:
        begun(lone, 1)
        for number, producer in ((1, 8), (1, 9)):
            lone.append(f"{producer}", producer=producer, sequence=0, verification=known(lone, number))
            lone.stored(f"{producer}")
            lone.group.commit()
            lone.loop.create_task(lone.partition.end_transaction(producer, 0, number, False, 1))
            lone.loop.run()
            lone.group.commit()
        for name, producer in (("late", 10), ("later", 11)):
            lone.append(name, producer=producer, sequence=0, verification=known(lone, 1))
        lone.append("behind", producer=10, sequence=1, verification=known(lone, 1))
        lone.loop.run()
        codes = lone.codes()
        assert (codes["late"], codes["later"]) == ("policy_violation", "policy_violation")
        assert not codes["behind"].isdigit()
        (record,) = [one for one in caplog.records if one.levelname == "WARNING"]
        assert record.message.startswith("orders-2 cannot begin a transaction: 2 aborted transactions")
        lone.append("more", producer=P, sequence=1, transaction=1)
        lone.append("plain", producer=20, sequence=0)
        lone.stored("more")
        lone.stored("plain")
        lone.group.commit()
        assert lone.codes()["more"].isdigit()
        assert lone.codes()["plain"].isdigit()
        lone.loop.create_task(lone.partition.execute(SetStartOffset(4)))
        lone.loop.run()
        lone.group.commit()
        lone.append("again", producer=12, sequence=0, verification=known(lone, 1))
        lone.stored("again")
        lone.group.commit()
        assert lone.codes()["again"].isdigit()


# What is known of a producer's transaction.


def test_the_number_of_an_open_transaction_is_used_without_asking() -> None:
    with Lone() as lone:
        assert lone.partition.transaction_of(P, 0) is None
        begun(lone, 4)
        assert lone.partition.transaction_of(P, 0) == 4
        assert lone.partition.transaction_of(P, 1) is None, "another incarnation's is not this one's"
        assert lone.partition.transaction_of(8, 0) is None
        lone.append("next", producer=P, sequence=1, transaction=4)
        lone.stored("next")
        assert numbers(lone) == [4, 4]
        assert lone.partition.last_stable_offset == 0
        lone.group.commit()
        assert lone.codes()["next"] == "1"


def test_a_batch_is_uploaded_while_it_is_verified_and_keeps_its_turn() -> None:
    with Lone() as lone:
        verification = asked(lone)
        lone.append("0", producer=P, sequence=0, verification=verification)
        lone.append("1", producer=P, sequence=1, verification=verification)
        lone.append("other", producer=8, sequence=0)
        assert len(lone.batcher.staged) == 3
        lone.stored("1", "0", "other")
        assert numbers(lone) == [-1], "the other producer's only"
        verification.set_result(Verified(9))
        lone.loop.run()
        assert numbers(lone) == [-1, 9, 9]
        lone.group.commit()
        assert lone.codes() == {"other": "0", "0": "1", "1": "2"}
        assert opened(lone) == OpenTransaction(9, 1, 0)


def test_batches_that_come_meanwhile_share_what_is_asked() -> None:
    with Lone() as lone:
        verification = asked(lone)
        lone.append("0", producer=P, sequence=0, verification=verification)
        assert lone.partition.transaction_of(P, 0) is verification
        assert lone.partition.transaction_of(P, 1) is None, "of another epoch"
        lone.stored("0")
        verification.set_result(Verified(1))
        lone.loop.run()
        assert lone.partition.transaction_of(P, 0) is verification, "in the log, and not yet applied"
        lone.group.commit()
        assert lone.partition.transaction_of(P, 0) == 1
        assert len(lone.partition.writer.acks.verifications) == 0


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_verification_that_failed_is_not_shared(cancelled: bool) -> None:
    with Lone() as lone:
        verification = asked(lone)
        lone.append("late", producer=P, sequence=0, verification=known(lone, 1))
        lone.append("0", producer=P, sequence=1, verification=verification)
        assert lone.partition.transaction_of(P, 0) is verification
        if cancelled:
            verification.cancel()
        else:
            verification.set_result(Refusal(Reason.NOT_NOW, "busy"))
        assert lone.partition.transaction_of(P, 0) is None
        again = asked(lone)
        lone.append("1", producer=P, sequence=2, verification=again)
        assert lone.partition.transaction_of(P, 0) is again


def test_the_number_of_a_transaction_that_ended_meanwhile_is_not_shared() -> None:
    with Lone() as lone:
        lone.append("slow", producer=P, sequence=0, verification=known(lone, 1))
        lone.end(1)
        assert lone.partition.transaction_of(P, 0) is not None
        lone.group.commit()
        assert lone.partition.transaction_of(P, 0) is None, "the producer is in its next one by now"


def test_a_retry_is_answered_by_the_coordinators_word_once_its_transaction_is_over_here() -> None:
    """While it is open here the state knows all; after its end another node may know the producer fenced."""
    with Lone() as lone:
        begun(lone)
        lone.append("open", producer=P, sequence=0, transaction=1)
        assert lone.answers[-1] == ("open", Appended(0, duplicate=True))
        lone.end(1, commit=False)
        lone.group.commit()
        verification = asked(lone)
        lone.append("over", producer=P, sequence=0, verification=verification)
        assert "over" not in lone.codes()
        lone.stored("over")
        verification.set_result(Refusal(Reason.NOT_IN_TRANSACTION, "not part of it"))
        lone.loop.run()
        assert lone.codes()["over"] == ENDED


def test_what_the_coordinator_refuses_fails_with_those_behind_it_and_reaches_no_log() -> None:
    with Lone() as lone:
        verification = asked(lone)
        lone.append("0", producer=P, sequence=0, verification=verification)
        lone.append("1", producer=P, sequence=1, verification=verification)
        lone.stored("0")
        verification.set_result(Refusal(Reason.NOT_IN_TRANSACTION, "not part of it"))
        lone.loop.run()
        assert lone.codes() == {"0": ENDED, "1": NOT_NOW}
        assert lone.group.proposed == []
        assert lone.batcher.staged[1][1].cancelled()
        assert lone.partition.writer.acks.batches == len(lone.partition.writer.acks.verifications) == 0
        lone.append("1 again", producer=P, sequence=1, verification=known(lone, 2))
        assert lone.codes()["1 again"] == NOT_NOW, "the first has not come again"


@pytest.mark.parametrize("lost", ["cancelled", "an error"])
def test_an_answer_that_never_comes_is_no_refusal(lost: str) -> None:
    with Lone() as lone:
        verification = asked(lone)
        lone.append("0", producer=P, sequence=0, verification=verification)
        lone.stored("0")
        if lost == "cancelled":
            verification.cancel()
        else:
            verification.set_exception(OSError("no"))
        lone.loop.run()
        assert lone.codes() == {"0": NOT_NOW}


@pytest.mark.parametrize("first", ["records", "transaction"])
@pytest.mark.parametrize("bad", ["records", "transaction", "both", "nothing"])
def test_records_and_transaction_are_looked_at_together_and_either_fails_it(first: str, bad: str) -> None:
    with Lone() as lone:
        verification, validation = asked(lone), lone.loop.create_future()
        lone.append("0", producer=P, sequence=0, validation=validation, verification=verification)
        lone.stored("0")

        def records() -> None:
            wrong = Refusal(Reason.INVALID_RECORD, "no") if bad in ("records", "both") else None
            validation.set_result(wrong)

        def transaction() -> None:
            wrong = Refusal(Reason.NOT_IN_TRANSACTION, "no")
            verification.set_result(wrong if bad in ("transaction", "both") else Verified(5))

        steps = [records, transaction] if first == "records" else [transaction, records]
        steps[0]()
        lone.loop.run()
        assert not lone.answers
        assert numbers(lone) == []
        steps[1]()
        lone.loop.run()
        lone.group.commit()
        expected = {"records": "invalid_record", "transaction": ENDED, "nothing": "0"}
        assert lone.codes()["0"] == expected.get(bad, "invalid_record" if first == "records" else ENDED)
        assert numbers(lone) == ([5] if bad == "nothing" else [])


# Markers.


def test_a_marker_ends_the_transaction_and_is_a_batch_of_the_log() -> None:
    with Lone() as lone:
        begun(lone, 3)
        assert lone.partition.last_stable_offset == 0
        ended = lone.end(3, commit=False, term=11)
        assert not ended.done()
        lone.group.commit()
        assert ended.result() is None
        assert opened(lone) is None
        assert lone.partition.high_watermark == lone.partition.last_stable_offset == 2
        assert lone.partition.machine.aborted_between(0, 2) == [AbortedTransaction(P, 0, 1)]
        (extent,) = lone.partition.machine.extents_between(1, 2, 1000)
        assert isinstance(extent, InlineExtent)
        head = read_header(extent.data)
        assert (head.producer_id, head.producer_epoch, head.base_sequence) == (P, 0, -1)
        assert head.is_control
        assert head.is_transactional
        assert head.max_timestamp == extent.max_timestamp == lone.wall


def test_watchers_hear_of_a_marker() -> None:
    with Lone() as lone:
        begun(lone)
        seen: list[int] = []
        lone.partition.watch(lambda: seen.append(lone.partition.last_stable_offset))
        lone.end(1)
        lone.group.commit()
        assert seen == [2]


def test_a_marker_that_comes_again_is_done_and_writes_nothing() -> None:
    with Lone() as lone:
        begun(lone)
        lone.end(1)
        lone.group.commit()
        again = lone.end(1)
        assert again.done()
        assert again.result() is None
        assert markers(lone) == [(0, 1, True)]


def test_a_marker_that_comes_twice_before_either_is_applied_is_in_the_log_of_records_once() -> None:
    with Lone() as lone:
        begun(lone)
        both = [lone.end(1), lone.end(1)]
        lone.group.commit()
        assert [one.result() for one in both] == [None, None]
        assert len(markers(lone)) == 2
        assert lone.partition.high_watermark == 2


def test_a_marker_without_a_batch_shuts_its_transaction_out_all_the_same() -> None:
    with Lone() as lone:
        lone.append("late", producer=P, sequence=0, verification=known(lone, 1))
        ended = lone.end(1, commit=False)
        lone.group.commit()
        assert ended.result() is None
        lone.stored("late")
        lone.group.commit()
        assert lone.codes() == {"late": ENDED}
        assert lone.partition.last_stable_offset == lone.partition.high_watermark == 1


def test_a_late_marker_of_an_earlier_transaction_leaves_the_open_one_open() -> None:
    with Lone() as lone:
        begun(lone, 1)
        lone.end(1)
        lone.group.commit()
        begun(lone, 2, sequence=1)
        late = lone.end(1, commit=False)
        assert late.result() is None
        assert opened(lone) == OpenTransaction(2, 2, 0)
        # One that this partition never heard of is not newer either.
        lone.end(2)
        lone.group.commit()
        begun(lone, 5, sequence=2)
        late = lone.end(4, commit=False)
        lone.group.commit()
        assert late.result() is None
        assert opened(lone) == OpenTransaction(5, 4, 0)
        assert lone.partition.machine.aborted_between(0, 5) == []


def test_who_does_not_lead_puts_no_marker_and_knows_what_it_has_applied() -> None:
    with Lone() as lone:
        begun(lone, 1)
        lone.end(1)
        lone.group.commit()
        begun(lone, 2, sequence=1)
        lone.group.lose()
        failed = lone.end(2).result()
        assert failed is not None
        assert failed.reason is Reason.NOT_LEADER
        assert lone.end(1).result() is None
        assert len(markers(lone)) == 1


@pytest.mark.parametrize("refusal", [NotLeader(2), Overloaded("full")])
def test_a_marker_that_the_log_refuses_is_not_done(refusal: NotLeader | Overloaded) -> None:
    with Lone() as lone:
        begun(lone)
        lone.group.refusal = refusal
        failed = lone.end(1).result()
        assert failed is not None
        assert failed.reason is not Reason.UNDECIDED
        assert opened(lone) is not None


def test_a_marker_whose_fate_nobody_knows_is_neither_done_nor_refused() -> None:
    with Lone() as lone:
        begun(lone)
        ended = lone.end(1)
        lone.group.drop(unknown())
        failed = ended.result()
        assert failed is not None
        assert code_of(failed).name == AFTER
        assert opened(lone) is not None
        again = lone.end(1)
        lone.group.commit()
        assert again.result() is None
        assert opened(lone) is None


def test_a_marker_of_a_deposed_leader_changes_nothing_and_comes_again() -> None:
    with Lone() as lone:
        begun(lone)
        lone.end(1, commit=False)
        entry = lone.group.proposed[-1]
        lone.group.drop(NotLeader(2))
        lone.group.lose()
        lone.group.lead(2)
        # The entry comes to this log after all, under the term it was made in.
        lone.group.proposed.append(entry._replace(future=lone.loop.create_future()))
        lone.group.commit()
        assert opened(lone) is not None
        again = lone.end(1, commit=False)
        lone.group.commit()
        assert again.result() is None
        assert lone.partition.machine.aborted_between(0, 9) == [AbortedTransaction(P, 0, 1)]


def test_markers_come_by_their_own_way() -> None:
    with Lone() as lone:
        command = EndTransaction(P, 0, 1, True, 1, 0, b"")
        task: asyncio.Task[Any] = lone.run(lone.partition.execute(command))
        with pytest.raises(ValueError, match="end_transaction"):
            task.result()


# What comes late.


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("by", ["number", "verification"])
def test_a_batch_staged_before_its_transaction_ended_never_lands_behind_the_marker(
    commit: bool, by: str
) -> None:
    with Lone() as lone:
        begun(lone, 1)
        if by == "number":
            lone.append("late", producer=P, sequence=1, transaction=1)
        else:
            lone.append("late", producer=P, sequence=1, verification=known(lone, 1))
        lone.end(1, commit=commit)
        lone.group.commit()
        lone.stored("late")
        assert numbers(lone) == [1, 1]
        lone.group.commit()
        assert lone.codes()["late"] == ENDED
        assert lone.partition.high_watermark == lone.partition.last_stable_offset == 2


def test_a_verification_that_is_answered_after_the_marker_opens_nothing() -> None:
    with Lone() as lone:
        verification = asked(lone)
        lone.append("late", producer=P, sequence=0, verification=verification)
        lone.stored("late")
        lone.end(1, commit=False)
        lone.group.commit()
        verification.set_result(Verified(1))
        lone.loop.run()
        assert numbers(lone) == [1]
        lone.group.commit()
        assert lone.codes() == {"late": ENDED}
        assert opened(lone) is None


@pytest.mark.parametrize("marker_first", [True, False])
def test_in_the_log_the_order_decides(marker_first: bool) -> None:
    with Lone() as lone:
        begun(lone, 1)
        lone.append("b", producer=P, sequence=1, transaction=1)
        if marker_first:
            lone.end(1, commit=False)
        lone.stored("b")
        if not marker_first:
            lone.end(1, commit=False)
        lone.group.commit()
        assert lone.codes()["b"] == (ENDED if marker_first else "1")
        last = 1 if marker_first else 2
        assert lone.partition.machine.aborted_between(0, 9) == [AbortedTransaction(P, 0, last)]
        assert lone.partition.last_stable_offset == last + 1


def test_all_of_a_late_run_is_refused_in_order() -> None:
    with Lone() as lone:
        begun(lone, 1)
        for sequence in range(1, 4):
            lone.append(f"late {sequence}", producer=P, sequence=sequence, transaction=1)
        lone.end(1)
        lone.stored("late 3", "late 1", "late 2")
        lone.group.commit()
        assert [name for name, _ in lone.answers[1:]] == ["late 1", "late 2", "late 3"]
        assert {lone.codes()[f"late {n}"] for n in (1, 2, 3)} == {ENDED}
        # The next transaction goes on where the records are, not where the late ones would have been.
        begun(lone, 2, sequence=1)


def test_a_batch_of_the_next_transaction_waits_behind_a_late_one_and_only_that_is_refused() -> None:
    # An older client's: the epoch is the same in both, and only the number tells them apart.
    with Lone() as lone:
        begun(lone, 1)
        lone.append("late", producer=P, sequence=1, transaction=1)
        lone.end(1)
        lone.group.commit()
        lone.append("next", producer=P, sequence=1, count=2, verification=known(lone, 2))
        lone.stored("next")
        assert numbers(lone) == [1]
        lone.stored("late")
        assert numbers(lone) == [1, 1, 2]
        lone.group.commit()
        assert (lone.codes()["late"], lone.codes()["next"]) == (ENDED, "2")
        assert opened(lone) == OpenTransaction(2, 2, 0)


def test_a_retry_of_a_batch_that_is_there_gets_its_offset_again_open_or_ended() -> None:
    with Lone() as lone:
        begun(lone, 1)
        lone.append("open", producer=P, sequence=0, transaction=1)
        lone.end(1)
        lone.group.commit()
        lone.append("ended", producer=P, sequence=0, transaction=1)
        assert (lone.codes()["open"], lone.codes()["ended"]) == ("0", "0")
        assert lone.partition.high_watermark == 2


def test_a_retry_that_overtakes_its_batch_gets_its_offset_from_the_log() -> None:
    with Lone() as lone:
        begun(lone, 1)
        lone.append("1", producer=P, sequence=1, transaction=1)
        lone.append("1 again", producer=P, sequence=1, transaction=1)
        lone.stored("1")
        lone.end(1)
        lone.stored("1 again")
        lone.group.commit()
        assert (lone.codes()["1"], lone.codes()["1 again"]) == ("1", "1")
        assert lone.partition.high_watermark == 3


def test_a_marker_of_a_raised_epoch_fences_and_starts_sequences_anew() -> None:
    with Lone() as lone:
        begun(lone, 1)
        lone.append("zombie", producer=P, sequence=1, transaction=1)
        lone.end(1, epoch=1, commit=False)
        lone.stored("zombie")
        lone.group.commit()
        assert lone.codes()["zombie"] == "invalid_producer_epoch"
        begun(lone, 2, epoch=1, sequence=0)
        assert opened(lone) == OpenTransaction(2, 2, 1)
        lone.append("zombie again", producer=P, sequence=1, verification=known(lone, 1))
        lone.stored("zombie again")
        lone.group.commit()
        assert lone.codes()["zombie again"] == "invalid_producer_epoch"


def test_a_batch_outside_its_producers_open_transaction_is_refused() -> None:
    with Lone() as lone:
        begun(lone, 1)
        lone.append("plain", producer=P, sequence=1)
        lone.stored("plain")
        lone.group.commit()
        assert lone.codes()["plain"] == ENDED
        assert opened(lone) == OpenTransaction(1, 0, 0)


def test_a_batch_that_is_uploaded_again_keeps_its_transaction() -> None:
    with Lone() as lone:
        lone.append("a")
        lone.stored("a", epoch=9)
        lone.group.commit()
        lone.append("b", connection=1)
        lone.stored("b", epoch=10)
        lone.group.commit()
        lone.append("slow", producer=P, sequence=0, verification=known(lone, 6))
        lone.stored("slow", epoch=6)
        assert lone.partition.writer.restaged == 1
        lone.batcher.stored(len(lone.batcher.staged) - 1, 10)
        lone.loop.run()
        lone.group.commit()
        assert opened(lone) == OpenTransaction(6, 2, 0)


# Leadership.


def test_leadership_lost_while_a_batch_is_verified() -> None:
    with Lone() as lone:
        verification = asked(lone)
        lone.append("0", producer=P, sequence=0, verification=verification)
        lone.stored("0")
        lone.group.lose()
        assert lone.codes() == {"0": "not_leader_or_follower"}
        assert len(lone.partition.writer.acks.verifications) == 0
        lone.group.lead(2)
        verification.set_result(Verified(1))
        lone.loop.run()
        assert lone.group.proposed == [], "an answer to a question of an earlier term writes nothing"
        assert lone.partition.transaction_of(P, 0) is None


def test_a_batch_in_the_log_when_leadership_is_lost_is_answered_as_unknown_and_comes_again() -> None:
    with Lone() as lone:
        lone.append("0", producer=P, sequence=0, verification=known(lone, 1))
        lone.stored("0")
        lone.group.is_leader = False
        lone.group.lose()
        lone.loop.advance(pending_acks.ANSWER_SECONDS)
        assert lone.codes() == {"0": AFTER}
        lone.group.lead(2)
        assert lone.partition.transaction_of(P, 0) == 1, "it was committed, and opened the transaction"
        lone.append("0 again", producer=P, sequence=0, transaction=1)
        assert lone.codes()["0 again"] == "0"
        assert len(lone.partition.writer.acks.verifications) == 0


def test_a_replica_that_goes_ends_what_is_verified_and_what_is_marked() -> None:
    with Lone() as lone:
        begun(lone)
        lone.append("0", producer=P, sequence=1, verification=asked(lone))
        lone.partition.close()
        lone.loop.run()
        assert lone.codes()["0"] == "not_leader_or_follower"
        failed = lone.end(1).result()
        assert failed is not None
        assert failed.reason is Reason.NOT_LEADER
        assert len(lone.partition.writer.acks.verifications) == 0


def test_nobody_may_write_a_marker_as_a_producer() -> None:
    with Lone() as lone:
        begun(lone)
        lone.end(1)
        lone.group.commit()
        (extent,) = lone.partition.machine.extents_between(1, 2, 1000)
        assert isinstance(extent, InlineExtent)
        with pytest.raises(InvalidBatch, match="control"):
            validate_produced(extent.data, version=12, limits=BatchLimits())
