"""The write path: order, shared entries, the fence, and how each failure ends."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.node.partition import admission, gaps, pending_acks, writer
from strandline.node.partition.fence import Permit
from strandline.node.raft.outcome import NotLeader, Overloaded
from strandline.node.refusal import Reason, Refusal
from strandline.statemachine.partition.partition_commands import Appended, PartitionOpcode
from tests.partition.lone import CREATION_EPOCH, Lone, unknown

NOT_NOW = "not_enough_replicas"
NOT_LEADER = "not_leader_or_follower"
STORAGE = "kafka_storage_error"
AFTER = "not_enough_replicas_after_append"


def windows(lone: Lone) -> list[tuple[int, int]]:
    """Of every entry of batches proposed."""
    return [(c[1], c[2]) for entry in lone.group.entries() for c in entry if c[0] == PartitionOpcode.APPEND]


def logged(lone: Lone) -> list[list[Any]]:
    """Epoch and sequence of every batch, by entry."""
    return [
        [(fields[3], fields[8]) for fields in command[3]]
        for entry in lone.group.entries()
        for command in entry
        if command[0] == PartitionOpcode.APPEND
    ]


def test_a_batch_is_uploaded_logged_applied_and_answered() -> None:
    with Lone() as lone:
        future = lone.append("a", count=3)
        lone.stored("a")
        assert not future.done()
        lone.group.commit()
        assert future.result() == Appended(0)
        assert (lone.partition.high_watermark, lone.partition.writer.acks.batches) == (3, 0)
        assert lone.loop.tasks == 0, "the hot path makes none"


def test_a_batch_is_in_memory_before_anybody_can_hear_of_it() -> None:
    with Lone() as lone:
        lone.append("a")
        lone.stored("a")
        seen: list[int] = []
        lone.partition.watch(lambda: seen.append(len(lone.written)))
        lone.group.commit()
        assert seen == [1]


def test_what_is_ready_in_one_turn_shares_an_entry() -> None:
    with Lone() as lone:
        for number in range(4):
            lone.append(f"p{number}", producer=number, sequence=0)
        lone.stored("p2", "p0", "p3")
        lone.stored("p1")
        assert [len(entry) for entry in logged(lone)] == [3, 1]
        lone.group.commit()
        assert lone.codes() == {"p2": "0", "p0": "1", "p3": "2", "p1": "3"}


def test_an_entry_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "MAX_ENTRY_BATCHES", 2)
    with Lone() as lone:
        for number in range(5):
            lone.append(f"p{number}", producer=number, sequence=0)
        lone.stored(*(f"p{number}" for number in range(5)))
        assert [len(entry) for entry in logged(lone)] == [2, 2, 1]
        lone.group.commit()
        assert len(lone.answers) == 5


@pytest.mark.parametrize("by", ["producer", "connection"])
def test_order_is_kept_whatever_the_order_of_uploads(by: str) -> None:
    with Lone() as lone:
        for number in range(3):
            if by == "producer":
                # On connections of their own: it is the producer that counts.
                lone.append(f"{number}", producer=7, sequence=number, connection=number)
            else:
                lone.append(f"{number}", connection=7)
        lone.append("other", connection=8)
        lone.stored("2", "1")
        assert logged(lone) == []
        lone.stored("other")
        assert len(logged(lone)) == 1, "only those behind wait"
        lone.stored("0")
        lone.group.commit()
        assert lone.codes() == {"other": "0", "0": "1", "1": "2", "2": "3"}


def test_a_failed_upload_fails_those_behind_it_in_order() -> None:
    with Lone() as lone:
        for number in range(3):
            lone.append(f"{number}", producer=7, sequence=number)
        lone.stored("2")
        lone.failed("0")
        assert [name for name, _ in lone.answers] == ["0", "1", "2"]
        assert set(lone.codes().values()) == {STORAGE}
        assert lone.batcher.staged[1][1].cancelled(), "no upload for what is given up"
        assert logged(lone) == []
        assert lone.partition.writer.acks.batches == lone.partition.writer.acks.bytes == 0


def test_a_batch_whose_records_are_looked_at_is_uploaded_meanwhile_and_keeps_its_turn() -> None:
    with Lone() as lone:
        validation = lone.loop.create_future()
        lone.append("0", producer=7, sequence=0, validation=validation)
        lone.append("1", producer=7, sequence=1)
        lone.append("other", producer=8, sequence=0)
        lone.stored("1", "0", "other")
        assert logged(lone) == [[(CREATION_EPOCH, 0)]], "the other producer's only"
        validation.set_result(None)
        lone.loop.run()
        lone.group.commit()
        assert lone.codes() == {"other": "0", "0": "1", "1": "2"}


@pytest.mark.parametrize("stored_first", [True, False])
def test_bad_records_found_late_fail_before_the_log(stored_first: bool) -> None:
    with Lone() as lone:
        validation = lone.loop.create_future()
        lone.append("0", producer=7, sequence=0, validation=validation)
        lone.append("1", producer=7, sequence=1)
        lone.stored("1")
        if stored_first:
            lone.stored("0")
        validation.set_result(Refusal(Reason.INVALID_RECORD, "no records"))
        lone.loop.run()
        lone.group.commit()
        assert lone.codes() == {"0": "invalid_record", "1": NOT_NOW}
        assert logged(lone) == []
        assert lone.partition.writer.acks.batches == 0


def test_records_nobody_could_look_at_are_no_verdict() -> None:
    with Lone() as lone:
        validation = lone.loop.create_future()
        lone.append("0", producer=7, sequence=0, validation=validation)
        lone.stored("0")
        validation.set_exception(RuntimeError("no threads"))
        lone.loop.run()
        assert lone.codes() == {"0": NOT_NOW}


def test_after_a_failure_nothing_passes_until_the_failed_sequence_comes_again() -> None:
    with Lone() as lone:
        lone.append("0", producer=7, sequence=0)
        lone.failed("0")
        lone.append("1", producer=7, sequence=1)
        lone.append("other", producer=8, sequence=5)
        assert lone.codes() == {"0": STORAGE, "1": STORAGE}
        lone.append("0 again", producer=7, sequence=0)
        lone.append("1 again", producer=7, sequence=1)
        lone.stored("other", "0 again", "1 again")
        lone.group.commit()
        assert lone.codes()["1 again"] == "2"
        assert len(lone.partition.writer.acks.gaps) == 0


def test_after_a_failure_a_new_producer_epoch_passes() -> None:
    with Lone() as lone:
        lone.append("0", producer=7, sequence=3)
        lone.failed("0")
        lone.append("new", producer=7, sequence=0, producer_epoch=1)
        lone.stored("new")
        lone.group.commit()
        assert lone.codes()["new"] == "0"


def test_after_a_failure_what_is_before_it_passes_for_it_may_be_a_retry() -> None:
    with Lone() as lone:
        lone.append("0", producer=7, sequence=0)
        lone.append("1", producer=7, sequence=1)
        lone.stored("0")
        lone.failed("1")
        lone.append("0 again", producer=7, sequence=0)
        lone.append("2", producer=7, sequence=2)
        lone.stored("0 again")
        lone.group.commit()
        assert lone.codes() == {"1": STORAGE, "2": STORAGE, "0": "0", "0 again": "0"}


def test_a_gap_that_another_leader_closed_is_none() -> None:
    with Lone() as lone:
        lone.append("0", producer=7, sequence=0)
        lone.stored("0")
        lone.group.lose()
        lone.group.proposed[-1].future.set_result(unknown())
        lone.loop.run()
        assert lone.codes() == {"0": AFTER}
        lone.append("early", producer=7, sequence=1)
        assert lone.codes()["early"] == NOT_LEADER
        # It was committed all the same.
        lone.group.lead(2)
        lone.append("1", producer=7, sequence=1)
        lone.stored("1")
        lone.group.commit()
        assert lone.codes()["1"] == "1"


def test_an_unknown_outcome_leaves_a_gap_too() -> None:
    """The entry is lost after all: without it the state machine, which never heard of the producer, would
    take the batch behind it."""
    with Lone() as lone:
        lone.append("0", producer=7, sequence=0)
        lone.stored("0")
        lone.group.lose()
        lone.group.drop(unknown())
        lone.group.lead(2)
        lone.append("1", producer=7, sequence=1)
        assert lone.codes() == {"0": AFTER, "1": NOT_NOW}


def test_a_leader_cut_off_does_not_keep_a_producer_that_may_send_again() -> None:
    """The log would wait on to learn what becomes of the entry, while another leader takes it already."""
    with Lone() as lone:
        lone.append("0", producer=7, sequence=0)
        lone.append("1", producer=7, sequence=1)
        lone.append("no id")
        for label in ("0", "1", "no id"):
            lone.stored(label)
        lone.group.lose()
        assert lone.codes() == {}
        lone.loop.advance(pending_acks.ANSWER_SECONDS)
        assert lone.codes() == {"0": AFTER, "1": AFTER}, "one without an id would be there twice"
        assert lone.partition.writer.acks.batches == 3, "they count for as long as the log has them"
        lone.group.lead(2)
        assert lone.codes()["no id"] == "2"
        assert not lone.partition.writer.acks.batches
        lone.append("2", producer=7, sequence=2)
        lone.stored("2")
        lone.group.commit()
        assert lone.codes()["2"] == "3", "the gap is closed: they were committed all the same"


def test_a_leader_that_handed_over_answers_what_became_of_its_entries() -> None:
    with Lone() as lone:
        lone.append("0", producer=7, sequence=0)
        lone.stored("0")
        lone.group.lose()
        lone.loop.advance(pending_acks.ANSWER_SECONDS / 2)
        lone.group.commit()
        lone.loop.advance(pending_acks.ANSWER_SECONDS)
        assert lone.codes() == {"0": "0"}


def test_a_gap_is_not_kept_for_ever() -> None:
    with Lone() as lone:
        lone.append("0", producer=7, sequence=0)
        lone.failed("0")
        lone.loop.advance(gaps.KEPT_SECONDS + 1)
        lone.append("1", producer=7, sequence=1)
        lone.stored("1")
        lone.group.commit()
        assert lone.codes()["1"] == "0"


def test_a_retry_of_what_is_in_the_log_is_answered_without_an_upload() -> None:
    """With a store slower than its producer waits, each attempt would be uploaded, and none be answered."""
    with Lone() as lone:
        lone.append("0", producer=7, sequence=0, count=3)
        lone.stored("0")
        lone.append("before it is applied", producer=7, sequence=0, count=3)
        assert len(lone.batcher.staged) == 2, "only what is applied is known to be in the log"
        lone.group.commit()
        lone.append("again", producer=7, sequence=0, count=3)
        assert lone.answers[-1] == ("again", Appended(0, duplicate=True))
        assert len(lone.batcher.staged) == 2
        assert lone.partition.writer.duplicates == 1
        others = (
            {"sequence": 0, "count": 2}, {"sequence": 1, "count": 2}, {"sequence": 3, "count": 3},
            {"sequence": 0, "count": 3, "producer_epoch": 1}, {"sequence": 0, "count": 3, "replicas": 3},
        )  # fmt: skip
        for number, other in enumerate(others):
            lone.append(f"another {number}", producer=7, **other)  # type: ignore[arg-type]
        assert len(lone.batcher.staged) == 2 + len(others)
        lone.group.is_leader = False
        lone.group.lose()
        lone.append("to a node that does not lead", producer=7, sequence=0, count=3)
        assert lone.codes()["to a node that does not lead"] == "not_leader_or_follower"


def test_a_batch_that_was_faster_than_those_before_it_is_asked_to_come_again() -> None:
    """Those are under way to the former leader still: out of order, librdkafka would take another epoch and
    send under it what is in the log already."""
    with Lone() as lone:
        lone.append("0", producer=7, sequence=0)
        lone.append("3", producer=7, sequence=3)
        lone.stored("0", "3")
        lone.group.commit()
        assert lone.codes() == {"0": "0", "3": NOT_NOW}
        lone.append("4", producer=7, sequence=4)
        assert lone.codes()["4"] == NOT_NOW, "refused at once: not uploaded, not in the log"
        lone.append("0 again", producer=7, sequence=0)
        for sequence in (1, 2, 3, 4):
            lone.append(f"{sequence} again", producer=7, sequence=sequence)
            lone.stored(f"{sequence} again")
        lone.group.commit()
        assert [lone.codes()[f"{sequence} again"] for sequence in (0, 1, 2, 3, 4)] == [
            "0",
            "1",
            "2",
            "3",
            "4",
        ]
        assert len(lone.partition.writer.acks.gaps) == 0


def test_a_batch_that_comes_too_early_for_too_long_is_out_of_order() -> None:
    with Lone() as lone:
        lone.append("0", producer=7, sequence=0)
        lone.append("3", producer=7, sequence=3)
        lone.stored("0", "3")
        lone.group.commit()
        lone.loop.advance(gaps.EARLY_SECONDS + 1)
        for label in ("3 again", "3 for the last time"):
            lone.append(label, producer=7, sequence=3)
            lone.stored(label)
            lone.group.commit()
            assert lone.codes()[label] == "out_of_order_sequence_number"
        lone.append("1", producer=7, sequence=1)
        lone.stored("1")
        lone.group.commit()
        assert lone.codes()["1"] == "1"


def test_in_a_transaction_a_batch_is_not_too_early_until_the_transaction_takes_too_long() -> None:
    """Of a producer that was forgotten a marker alone may be known, which expects sequence 0: what is before
    the batch will never come. Told so, the client aborts; told to wait beyond its timeout, it is fenced."""
    with Lone() as lone:
        lone.append("0", producer=7, sequence=0, transaction=1)
        lone.append("10", producer=7, sequence=10, transaction=1)
        lone.stored("0", "10")
        lone.group.commit()
        assert lone.codes()["10"] == NOT_NOW
        lone.loop.advance(gaps.EARLY_IN_TRANSACTION_SECONDS + 1)
        lone.append("10 again", producer=7, sequence=10, transaction=1)
        lone.stored("10 again")
        lone.group.commit()
        assert lone.codes()["10 again"] == "out_of_order_sequence_number"


def test_a_batch_behind_its_producers_last_is_out_of_order_at_once() -> None:
    with Lone() as lone:
        for sequence in range(8):
            lone.append(f"{sequence}", producer=7, sequence=sequence)
            lone.stored(f"{sequence}")
        lone.append("1 again", producer=7, sequence=1)
        lone.stored("1 again")
        lone.group.commit()
        assert lone.codes()["1 again"] == "out_of_order_sequence_number"


def test_gaps_are_bounded_and_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaps, "MAX_GAPS", 2)
    with Lone() as lone:
        for producer in range(3):
            lone.append(f"{producer}", producer=producer, sequence=0)
            lone.failed(f"{producer}")
        assert len(lone.partition.writer.acks.gaps) == 2
        lone.append("kept", producer=1, sequence=1)
        lone.append("gone", producer=0, sequence=1)
        assert "kept" in lone.codes()
        assert "gone" not in lone.codes()


def test_sequences_behind_a_gap_are_told_across_the_wrap() -> None:
    last = 2**31 - 1
    with Lone() as lone:
        lone.append("last", producer=7, sequence=last)
        lone.failed("last")
        lone.append("first", producer=7, sequence=0)
        lone.append("before", producer=7, sequence=last - 5)
        assert lone.codes() == {"last": STORAGE, "first": STORAGE}


def test_without_a_producer_id_a_failure_is_its_own() -> None:
    with Lone() as lone:
        for number in range(3):
            lone.append(f"{number}", connection=7)
        lone.stored("1", "2")
        lone.failed("0")
        lone.group.commit()
        assert lone.codes() == {"0": STORAGE, "1": "0", "2": "1"}


# The fence.


def test_a_stale_epoch_is_uploaded_again_under_the_newest_one() -> None:
    with Lone() as lone:
        lone.append("slider", producer=1, sequence=0)
        lone.stored("slider", epoch=9)
        lone.append("next", producer=1, sequence=1)
        lone.stored("next", epoch=10)
        lone.append("late", producer=2, sequence=0)
        lone.append("behind", producer=2, sequence=1)
        lone.stored("late", "behind", epoch=8)
        assert lone.epoch.known == 10
        assert [len(entry) for entry in logged(lone)] == [1, 1], "what is behind keeps its turn"
        lone.batcher.stored(4, epoch=10)
        lone.loop.run()
        # The second one turns out stale only now that it has its turn.
        lone.batcher.stored(5, epoch=10)
        lone.loop.run()
        lone.group.commit()
        assert lone.codes() == {"slider": "0", "next": "1", "late": "2", "behind": "3"}
        assert lone.partition.writer.restaged == 2


def test_a_batch_stale_twice_is_refused_and_may_come_again() -> None:
    with Lone() as lone:
        for number, epoch in enumerate((9, 10)):
            lone.append(f"{number}", producer=1, sequence=number)
            lone.stored(f"{number}", epoch=epoch)
        lone.append("late", producer=2, sequence=0)
        lone.append("behind", producer=2, sequence=1)
        lone.stored("late", epoch=8)
        lone.batcher.stored(4, epoch=8)
        lone.loop.run()
        assert lone.codes() == {"late": NOT_NOW, "behind": NOT_NOW}


def test_an_entry_never_holds_batches_of_two_windows() -> None:
    with Lone() as lone:
        for number in range(6):
            lone.append(f"{number}", producer=number, sequence=0)
        for number, epoch in enumerate((5, 6, 6, 5, 9, 6)):
            lone.batcher.stored(number, epoch)
        lone.loop.run()
        assert windows(lone) == [(5, 5), (5, 6), (6, 9)]
        assert logged(lone) == [[(5, 0)], [(6, 0), (6, 0), (5, 0)], [(9, 0), (6, 0)]]
        lone.group.commit()
        assert len(lone.answers) == 6


def test_a_new_epoch_waits_for_a_hold_and_goes_on_with_its_lane() -> None:
    with Lone() as lone:
        permit = lone.partition.fence.try_acquire(5)
        assert isinstance(permit, Permit)
        lone.append("0", producer=1, sequence=0)
        lone.append("1", producer=1, sequence=1)
        lone.append("old", producer=2, sequence=0)
        lone.stored("1", epoch=6)
        lone.stored("0", epoch=6)
        lone.stored("old")
        assert logged(lone) == []
        permit.release()
        lone.loop.run()
        lone.group.commit()
        assert lone.codes() == {"0": "0", "1": "1", "old": "2"}
        assert lone.partition.fence.permits == 0


def test_leadership_lost_while_waiting_for_the_fence() -> None:
    with Lone() as lone:
        permit = lone.partition.fence.try_acquire(5)
        assert isinstance(permit, Permit)
        lone.append("0", producer=1, sequence=0)
        lone.stored("0", epoch=6)
        lone.group.lose()
        assert lone.codes() == {"0": NOT_LEADER}
        permit.release()
        lone.group.lead(2)
        lone.append("again", producer=1, sequence=0)
        lone.stored("again", epoch=6)
        lone.group.commit()
        assert lone.codes()["again"] == "0"
        assert lone.partition.fence.permits == 0


def test_trap_7_turn_first_then_the_fence_then_the_log() -> None:
    """B is uploaded before A, which is to go first. Did B hold the fence while it waits for its turn, C could
    not slide the window, A would queue behind C, and B waits for A: nobody would ever go on."""
    with Lone() as lone:
        lone.append("A", producer=1, sequence=0)
        lone.append("B", producer=1, sequence=1)
        lone.append("C", producer=2, sequence=0)
        lone.stored("B", epoch=6)
        assert lone.partition.fence.permits == 0
        lone.stored("C", epoch=7)
        lone.stored("A", epoch=5)
        lone.group.commit()
        assert lone.codes() == {"C": "0", "A": "1", "B": "2"}


# The log.


@pytest.mark.parametrize(
    ("refusal", "code"), [(NotLeader(2, "handing over"), NOT_LEADER), (Overloaded("full"), NOT_NOW)]
)
def test_a_refusal_by_the_log_fails_the_entry_and_those_behind(
    refusal: NotLeader | Overloaded, code: str
) -> None:
    with Lone() as lone:
        for number in range(3):
            lone.append(f"{number}", producer=1, sequence=number)
        lone.append("lone", connection=1)
        lone.append("next", connection=1)
        lone.group.refusal = refusal
        lone.stored("0", "1", "lone")
        assert lone.codes() == {"0": code, "1": code, "lone": code, "2": code}
        assert lone.partition.fence.permits == 0
        lone.group.refusal = None
        lone.stored("next")
        lone.group.commit()
        assert lone.codes()["next"] == "0"


def test_nothing_is_uploaded_for_a_log_that_takes_nothing() -> None:
    """A producer tries ten times a second; each object would be garbage for as long as the disk is full."""
    with Lone() as lone:
        lone.group.full = True
        lone.append("refused", producer=1, sequence=0)
        lone.append("behind", producer=1, sequence=1)
        assert lone.codes() == {"refused": NOT_NOW, "behind": NOT_NOW}
        assert lone.batcher.staged == []
        lone.group.full = False
        lone.append("again", producer=1, sequence=0)
        lone.stored("again")
        lone.group.commit()
        assert lone.codes()["again"] == "0"


def test_a_refused_entry_fails_the_lane_that_is_being_taken_in() -> None:
    """Sequence 0 is in the entry, 1 needs a slide, so the entry is written first, and refused."""
    with Lone() as lone:
        lone.append("0", producer=1, sequence=0)
        lone.append("1", producer=1, sequence=1)
        lone.append("other", producer=2, sequence=0)
        lone.batcher.stored(1, 6)
        lone.batcher.stored(0, 5)
        lone.group.refusal = Overloaded("full")
        lone.loop.run()
        lone.group.refusal = None
        lone.stored("other", epoch=6)
        lone.group.commit()
        assert lone.codes() == {"0": NOT_NOW, "1": NOT_NOW, "other": "0"}


def test_an_unknown_outcome_is_never_a_refusal() -> None:
    with Lone() as lone:
        lone.append("in", connection=1)
        lone.stored("in")
        lone.append("out", connection=1)
        lone.group.lose()
        assert lone.codes() == {"out": NOT_LEADER}
        lone.group.drop(unknown())
        assert lone.codes()["in"] == AFTER


def test_loss_of_leadership_fails_what_is_not_in_the_log_in_order() -> None:
    with Lone() as lone:
        for number in range(3):
            lone.append(f"{number}", producer=1, sequence=number)
        lone.stored("1")
        lone.group.lose()
        assert lone.answers[0][0] == "0"
        assert lone.codes() == dict.fromkeys(("0", "1", "2"), NOT_LEADER)
        lone.append("late", connection=1)
        assert lone.codes()["late"] == NOT_LEADER


def test_refusals_of_the_state_machine_go_to_the_producer() -> None:
    with Lone() as lone:
        lone.append("0", producer=1, sequence=0, producer_epoch=2)
        lone.append("gap", producer=1, sequence=5, producer_epoch=2)
        lone.append("old", producer=1, sequence=0, producer_epoch=1)
        lone.append("again", producer=1, sequence=0, producer_epoch=2)
        lone.stored("0", "gap", "old", "again")
        lone.group.commit()
        assert lone.codes() == {
            "0": "0",
            "gap": NOT_NOW,
            "old": "invalid_producer_epoch",
            "again": "0",
        }
        assert lone.answers[-1][1] == Appended(0, duplicate=True)


# Bounds and ends.


def test_cancelling_the_answer_does_not_take_the_batch_back() -> None:
    with Lone() as lone:
        first = lone.append("0", producer=1, sequence=0)
        lone.append("1", producer=1, sequence=1)
        first.cancel()
        lone.stored("1", "0")
        lone.group.commit()
        assert lone.codes() == {"1": "1"}
        assert lone.partition.writer.acks.batches == 0


def test_a_full_partition_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_BATCHES", 2)
    monkeypatch.setattr(admission, "MAX_BYTES", 250)
    with Lone() as lone:
        lone.append("0", connection=1, size=200)
        lone.append("large", connection=1)
        lone.append("1", connection=1, size=10)
        lone.append("third", connection=1, size=10)
        assert lone.codes() == {"large": NOT_NOW, "third": NOT_NOW}
        lone.stored("0", "1")
        lone.group.commit()
        lone.append("2", connection=1)
        assert "2" not in lone.codes()


def test_a_full_batcher_refuses_in_order() -> None:
    with Lone() as lone:
        lone.append("0", producer=1, sequence=0)
        lone.batcher.refusing = "too much waits for the store"
        lone.append("1", producer=1, sequence=1)
        assert lone.codes() == {}
        lone.stored("0")
        assert lone.codes() == {"1": NOT_NOW}
        lone.group.commit()
        assert lone.codes()["0"] == "0"


def test_a_batch_that_fits_no_object_says_so_and_those_behind_may_come_again() -> None:
    with Lone() as lone:
        lone.append("large", producer=1, sequence=0, size=2000)
        lone.append("1", producer=1, sequence=1)
        assert lone.codes() == {"large": "message_too_large", "1": NOT_NOW}


def test_closing_ends_everything() -> None:
    with Lone() as lone:
        lone.append("logged", producer=1, sequence=0)
        lone.stored("logged")
        lone.append("staged", producer=1, sequence=1)
        lone.partition.close()
        lone.loop.run()
        assert lone.codes() == {"staged": NOT_LEADER, "logged": AFTER}
        lone.group.drop(unknown())
        lone.append("late", producer=1, sequence=2)
        assert lone.codes()["late"] == NOT_LEADER
        assert lone.partition.writer.acks.batches == 0
