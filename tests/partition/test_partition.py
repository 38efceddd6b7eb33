"""A partition on one node: leadership, reads, commands, watchers, and what its recorder hears."""

from __future__ import annotations

import pytest

from strandline.node.partition import producer_expiry
from strandline.node.partition.fence import Permit
from strandline.node.partition.partition import TICK_SECONDS
from strandline.node.raft.outcome import NotLeader
from strandline.node.refusal import Reason, Refusal
from strandline.statemachine.partition.epoch_window import EpochWindow
from strandline.statemachine.partition.level_one import LevelOneExtent
from strandline.statemachine.partition.partition_commands import (
    AdvanceEpoch,
    AdvanceReconciled,
    AdvanceRemoval,
    Append,
    Checkpoint,
    CheckpointTaken,
    Command,
    EpochAdvanced,
    PartitionOpcode,
    RemovalAdvanced,
    SetStartOffset,
    Ticked,
)
from strandline.statemachine.partition.rejection import Rejected, Rejection
from tests.partition.lone import CREATION_EPOCH, Lone, filled


def ends(lone: Lone) -> tuple[int, int | None, int | None] | None:
    """Term and ends of the present window."""
    window = lone.partition.fence.window
    return None if window is None else (window.term, window.oldest, window.newest)


# Leadership.


def test_leads_only_once_all_of_earlier_terms_is_applied() -> None:
    with Lone(leading=False) as lone:
        lone.group.catches_up = False
        lone.group.lead(1)
        assert not lone.partition.leads
        lone.append("early", producer=1, sequence=0)
        assert lone.codes() == {"early": "not_leader_or_follower"}
        lone.append("behind", producer=1, sequence=1)
        lone.group.catch_up()
        assert (lone.partition.leads, lone.partition.leader_epoch) == (True, 1)
        lone.append("gap", producer=1, sequence=1)
        assert lone.codes()["gap"] == "not_leader_or_follower", "the first one is still missing"


def test_a_term_that_ends_before_its_leader_has_caught_up_opens_nothing() -> None:
    with Lone(leading=False) as lone:
        lone.group.catches_up = False
        lone.group.lead(1)
        lone.group.lose()
        assert not lone.partition.leads
        lone.group.catches_up = True
        lone.group.lead(2)
        assert lone.partition.leader_epoch == 2


def test_a_leader_at_the_time_it_is_attached_leads() -> None:
    with Lone(leading=False) as lone:
        lone.group._ready_callbacks.clear()
        lone.group.lead(1)
        assert not lone.partition.leads
        lone.partition.attach(lone.partition.group)
        lone.loop.run()
        assert lone.partition.leads


def test_trap_3_a_leader_elected_again_starts_from_what_is_applied() -> None:
    with Lone() as lone:
        filled(lone, 6)
        lone.append("lost", connection=1)
        lone.stored("lost", epoch=9)
        assert ends(lone) == (1, 6, 9)
        lone.group.lose()
        assert ends(lone) is None
        lone.group.drop(NotLeader(2))
        lone.group.lead(3)
        assert ends(lone) == (3, 6, 6)


def test_a_leader_whose_slide_was_applied_keeps_its_upper_end() -> None:
    with Lone() as lone:
        filled(lone, 6, 9)
        lone.group.lose()
        lone.group.lead(2)
        assert ends(lone) == (2, 9, 9)


def test_who_does_not_lead_does_not_confirm() -> None:
    with Lone() as lone:
        assert lone.run(lone.partition.confirm()).result()
        lone.group.lose()
        assert not lone.run(lone.partition.confirm()).result()
        lone.partition.close()
        assert not lone.run(lone.partition.confirm()).result()


# Watchers.


def test_watchers_hear_once_a_turn_of_records_and_leadership() -> None:
    with Lone() as lone:
        heard: list[int] = []

        def watcher() -> None:
            heard.append(lone.partition.high_watermark)

        lone.partition.watch(watcher)
        for number in range(3):
            lone.append(f"{number}", connection=number)
            lone.stored(f"{number}")
        assert heard == []
        lone.group.commit()
        assert heard == [3]
        lone.group.lose()
        lone.group.lead(2)
        assert heard == [3, 3, 3]
        lone.partition.close()
        lone.loop.run()
        assert len(heard) == 4
        lone.partition.unwatch(watcher)
        lone.partition.unwatch(watcher)


def test_a_watcher_that_fails_does_not_keep_it_from_the_others() -> None:
    with Lone() as lone:
        problems: list[str] = []
        lone.loop.call_exception_handler = lambda context: problems.append(context["message"])  # type: ignore[method-assign]
        heard: list[int] = []

        def bad() -> None:
            raise RuntimeError("no")

        lone.partition.watch(bad)
        lone.partition.watch(lambda: heard.append(1))
        filled(lone, 5)
        assert heard == [1]
        assert problems == ["a watcher of orders-2 failed"]


# Commands.


def test_commands_are_carried_out_by_the_leader_only() -> None:
    with Lone() as lone:
        filled(lone, 5)
        task = lone.run(lone.partition.execute(Checkpoint(1000)))
        lone.group.commit()
        result = task.result()
        assert isinstance(result, CheckpointTaken)
        too_high = lone.run(lone.partition.execute(SetStartOffset(2))).result()
        assert isinstance(too_high, Refusal)
        assert too_high.reason is Reason.ABOVE_HIGH_WATERMARK
        waiting = lone.run(lone.partition.execute(SetStartOffset(1)))
        lone.group.lose()
        lone.group.drop(NotLeader(2))
        for refused in (waiting, lone.run(lone.partition.execute(SetStartOffset(1)))):
            answer = refused.result()
            assert isinstance(answer, Refusal)
            assert answer.reason is Reason.NOT_LEADER


def test_batches_do_not_come_as_commands() -> None:
    with Lone() as lone:
        window = lone.partition.fence.window
        assert window is not None
        with pytest.raises(ValueError, match="append"):
            lone.run(lone.partition.execute(Append(window, []))).result()


def test_an_epoch_is_advanced_under_the_fence() -> None:
    with Lone() as lone:
        permit = lone.partition.fence.try_acquire(CREATION_EPOCH)
        assert isinstance(permit, Permit)
        task = lone.run(lone.partition.execute(AdvanceEpoch(EpochWindow(0, 8, 8))))
        lone.append("0", connection=1)
        lone.stored("0", epoch=8)
        assert lone.group.proposed == [], "the slide waits for the permit, and the batch behind the slide"
        permit.release()
        lone.loop.run()
        assert [entry[0][:3] for entry in lone.group.entries()] == [
            [PartitionOpcode.ADVANCE_EPOCH, 5, 8],
            [PartitionOpcode.APPEND, 5, 8],
        ]
        lone.group.commit()
        assert task.result() == EpochAdvanced(5, 8)
        assert lone.partition.fence.permits == 0
        lower = lone.run(lone.partition.execute(AdvanceEpoch(EpochWindow(0, 4, 4)))).result()
        assert lower == Rejected(Rejection.LOWER_EPOCH, 8)


def test_an_epoch_that_waits_when_leadership_goes() -> None:
    with Lone() as lone:
        permit = lone.partition.fence.try_acquire(CREATION_EPOCH)
        assert isinstance(permit, Permit)
        task = lone.run(lone.partition.execute(AdvanceEpoch(EpochWindow(0, 8, 8))))
        lone.group.lose()
        answer = task.result()
        assert isinstance(answer, Refusal)
        permit.release()


def test_a_leader_ticks_for_producers_that_expire() -> None:
    with Lone() as lone:
        lone.loop.advance(3 * TICK_SECONDS)
        assert lone.group.proposed == [], "nobody to forget"
        lone.append("0", producer=1, sequence=0)
        lone.stored("0")
        lone.group.commit()
        lone.wall += 8 * 24 * 3600 * 1000
        lone.loop.advance(TICK_SECONDS)
        lone.group.commit()
        assert lone.group.proposed[-1].future.result().value == [Ticked(lone.wall, 1)]  # type: ignore[union-attr]
        lone.group.lose()
        before = len(lone.group.proposed)
        lone.loop.advance(3 * TICK_SECONDS)
        assert len(lone.group.proposed) == before


def test_a_leader_ticks_for_removed_objects_so_that_the_lease_that_keeps_them_ends() -> None:
    """Nothing else may be written for days: in the state time stands still then."""
    with Lone() as lone:

        def write(command: Command) -> None:
            task = lone.run(lone.partition.execute(command))
            lone.group.commit()
            assert not isinstance(task.result(), (Refusal, Rejected))

        machine = lone.partition.machine
        filled(lone, 5)
        end = machine.next_offset
        write(AdvanceReconciled(0, [LevelOneExtent(0, end, lone.wall, 500, 1, 1, bytes(16))]))
        write(Checkpoint(1000))
        before = len(lone.group.proposed)
        lone.loop.advance(3 * TICK_SECONDS)
        assert len(lone.group.proposed) == before, "nothing waits for that lease"
        write(SetStartOffset(end))
        assert (len(machine.removed), machine.removable()) == (1, [])
        lone.wall += 2000
        lone.loop.advance(2 * TICK_SECONDS)
        lone.group.commit()
        assert machine.removable() == machine.removed
        assert len(machine.removed) == 1


def test_removal_advances_by_a_time_that_the_nodes_agree_on() -> None:
    """Behind a Tick in its entry: what a wrong clock pushed ahead lets no row ripen."""
    hour = 3_600_000
    with Lone() as lone:

        def advance(mtro: int) -> object:
            task = lone.run(lone.partition.execute(AdvanceRemoval(mtro, mtro, hour)))
            lone.group.commit()
            return task.result()

        filled(lone, 5, 5)
        assert lone.partition.machine.next_offset == 2
        start = lone.run(lone.partition.execute(SetStartOffset(2)))
        lone.group.commit()
        assert not isinstance(start.result(), Refusal)
        right = lone.wall
        assert advance(1) == RemovalAdvanced(1, 1, 0, 0)
        lone.wall += 30 * 24 * hour
        filled(lone, 5)
        lone.wall = right + 1000
        assert lone.partition.machine.time == right + 30 * 24 * hour
        assert advance(2) == RemovalAdvanced(2, 2, 0, 0)
        assert lone.partition.machine.time == right + 1000
        lone.wall = right + hour
        assert advance(2) == RemovalAdvanced(2, 2, 1, 1)
        lone.clock_is_trusted = False
        before = len(lone.group.proposed)
        refused = advance(2)
        assert isinstance(refused, Refusal)
        assert refused.reason is Reason.NOT_NOW
        assert len(lone.group.proposed) == before


@pytest.mark.parametrize(("quiet_minutes", "left"), [(10, 6), (20, 3), (70, 3)])
def test_too_many_producers_are_not_remembered_for_a_week(
    monkeypatch: pytest.MonkeyPatch, quiet_minutes: int, left: int
) -> None:
    """A client with a producer for each message: those idle for longest go, but none that may try again."""
    monkeypatch.setattr(producer_expiry, "MAX_PRODUCERS", 3)
    with Lone() as lone:
        for number in range(6):
            lone.append(str(number), producer=number, sequence=0)
            lone.stored(str(number))
            lone.group.commit()
            lone.wall += 1000
        lone.wall += quiet_minutes * 60 * 1000
        lone.append("6", producer=5, sequence=1)
        lone.stored("6")
        lone.group.commit()
        lone.loop.advance(2 * TICK_SECONDS)
        lone.group.commit()
        assert len(lone.partition.machine.producers) == left


def test_no_producer_goes_by_a_clock_that_the_others_do_not_agree_with() -> None:
    """Nor do they stay for as long as that clock was ahead, once there is one that most agree on."""
    with Lone() as lone:

        def write(name: str, producer: int) -> None:
            lone.append(name, producer=producer, sequence=0)
            lone.stored(name)
            lone.group.commit()

        write("0", 1)
        lone.clock_is_trusted = False
        lone.wall += 8 * 24 * 3600 * 1000
        lone.loop.advance(3 * TICK_SECONDS)
        assert len(lone.group.proposed) == 1, "no Tick"
        write("1", 2)
        lone.wall -= 8 * 24 * 3600 * 1000
        lone.clock_is_trusted = True
        lone.loop.advance(TICK_SECONDS)
        lone.group.commit()
        assert lone.partition.machine.time == lone.wall
        write("2", 3)
        lone.wall += 7 * 24 * 3600 * 1000 + 1
        lone.loop.advance(TICK_SECONDS)
        lone.group.commit()
        assert len(lone.partition.machine.producers) == 0


def test_the_recorder_hears_of_an_entry_before_it_is_applied() -> None:
    with Lone() as lone:
        filled(lone, 5)
        lone.run(lone.partition.execute(Checkpoint(1000)))
        lone.group.commit()
        machine = lone.partition.machine_for_group
        machine.restore(machine.snapshot())
        assert lone.records.heard == [
            ("begin_term", 1, 1, 1),
            ("applied", 2, 1),
            ("applied", 3, 1),
            ("checkpoint", 3),
            ("restored",),
        ]
