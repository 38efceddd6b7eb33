"""A coordinator's replica on one node, over a log that a test commits by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

import msgpack
import pytest

from strandline.node.coordinator.replica import ANSWER_SECONDS, CoordinatorReplica
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.outcome import NotLeader, Overloaded, Unknown
from strandline.node.refusal import Cause, Reason, Refusal
from strandline.statemachine.controller.hosted_groups import PartitionGroup
from strandline.statemachine.coordinator_machine import CoordinatorCheckpoint, CoordinatorMachine
from strandline.statemachine.kafka_errors import KafkaError
from strandline.statemachine.machine import Captured
from tests.coordinator.recording import Recording
from tests.partition.lone import HandGroup, TaskLoop
from tests.statemachine.adding import Add

PLACE = PartitionGroup(64, b"t" * 16, "__consumer_offsets", 5, (1, 2, 3), 1)


class Counting(CoordinatorMachine):
    kind = "counting"

    def __init__(self, on_checkpoint: Callable[[int, Captured], None]) -> None:
        super().__init__(on_checkpoint)
        self.total = 0

    def _add(self, index: int, by: int) -> int:
        self.total += by
        return self.total

    HANDLERS: ClassVar[Mapping[int, Callable[..., Any]]] = {1: _add}

    def fields(self) -> dict[str, Any]:
        return {"total": self.total}

    def load(self, name: str, source: msgpack.Unpacker) -> None:
        self.total = source.unpack()


class Lone:
    """One replica, its log in the test's hands, and a runtime that notes what it is told."""

    def __init__(self) -> None:
        self.loop = TaskLoop()  # type: ignore[abstract]
        self.wall = 1000
        self.recorder = Recording()
        self.replica: CoordinatorReplica[Counting] = CoordinatorReplica(
            Counting, place=PLACE, loop=self.loop, wall_ms=lambda: self.wall, recorder=self.recorder
        )
        self.log = HandGroup(self.loop, cast(Any, self.replica))
        self.told: list[Any] = []
        self.replica.follow(self.told.append, lambda reason: self.told.append(reason))
        self.replica.attach(cast(RaftGroup, self.log))

    def execute(self, by: int = 1) -> asyncio.Task[Any]:
        task = self.loop.create_task(self.replica.execute(Add(by)))
        self.loop.run()
        return task


def refused(task: asyncio.Task[Any]) -> Cause:
    result = task.result()
    assert isinstance(result, Refusal)
    assert result.message
    return result.reason


@pytest.fixture
def lone() -> Lone:
    return Lone()


# Taking up.


def test_it_leads_once_it_has_applied_all_of_earlier_terms(lone: Lone) -> None:
    lone.log.catches_up = False
    assert not lone.replica.loading
    lone.log.lead(3)
    assert (lone.replica.leads, lone.replica.loading, lone.replica.term) == (False, True, 0)
    assert lone.told == []
    assert refused(lone.execute()) is KafkaError.NOT_COORDINATOR
    assert lone.log.proposed == []
    lone.log.catch_up()
    assert (lone.replica.leads, lone.replica.loading, lone.replica.term) == (True, False, 3)
    assert lone.told == [3]


def test_a_term_that_ends_while_it_is_taken_up_never_began(lone: Lone) -> None:
    lone.log.catches_up = False
    lone.log.lead(3)
    lone.log.lose()
    assert (lone.replica.leads, lone.replica.loading, lone.told) == (False, False, [])
    lone.log.catches_up = True
    lone.log.lead(5)
    assert lone.told == [5]


def test_each_term_is_told_once_and_its_end_too(lone: Lone) -> None:
    lone.log.lead(3)
    lone.log.lose()
    lone.log.lead(4)
    lone.replica.close()
    lone.replica.close()
    assert lone.told == [
        3,
        "this node does not lead the coordinator any more",
        4,
        "the replica is leaving this node",
    ]
    assert not lone.replica.leads
    assert not lone.replica.loading
    lone.log.lead(6)
    assert len(lone.told) == 4


def test_who_follows_late_hears_of_the_present_term(lone: Lone) -> None:
    lone.log.lead(3)
    late: list[Any] = []
    lone.replica.follow(late.append, late.append)
    assert late == [3]


def test_who_is_leader_when_it_is_attached_takes_up_at_once() -> None:
    lone = Lone()
    lone.log.lead(3)
    second: CoordinatorReplica[Counting] = CoordinatorReplica(
        Counting, place=PLACE, loop=lone.loop, wall_ms=lambda: 0, recorder=Recording()
    )
    second.attach(cast(RaftGroup, lone.log))
    lone.loop.run()
    assert second.term == 3


# Commands.


def test_a_command_gives_what_its_apply_gives(lone: Lone) -> None:
    lone.log.lead(3)
    first, second = lone.execute(4), lone.execute(5)
    assert not first.done()
    lone.log.commit()
    assert (first.result(), second.result()) == (4, 9)
    assert lone.replica.machine.time == 1000
    assert lone.recorder.told == [("term", 3), ("applied", 2), ("applied", 3)]


def test_commands_are_logged_in_the_order_of_the_calls(lone: Lone) -> None:
    lone.log.lead(3)
    coroutines = [lone.replica.execute(Add(by)) for by in (1, 2, 4)]
    tasks = [lone.loop.create_task(one) for one in reversed(coroutines)]
    lone.loop.run()
    lone.log.commit()
    assert [task.result() for task in tasks] == [4, 6, 7]


def test_a_checkpoint_gives_its_index_and_reaches_the_recorder(lone: Lone) -> None:
    lone.log.lead(3)
    task = lone.loop.create_task(lone.replica.execute(CoordinatorCheckpoint()))
    lone.loop.run()
    lone.log.commit()
    assert task.result() == 2
    assert lone.recorder.told[-2:] == [("applied", 2), ("checkpoint", 2)]


def test_what_the_log_refuses_was_not_done(lone: Lone) -> None:
    lone.log.lead(3)
    lone.log.refusal = Overloaded("too much waits")
    assert refused(lone.execute()) is KafkaError.COORDINATOR_LOAD_IN_PROGRESS
    lone.log.refusal = NotLeader(2)
    assert refused(lone.execute()) is KafkaError.NOT_COORDINATOR
    lone.log.refusal = None
    task = lone.execute()
    lone.log.drop(NotLeader(2, "another leader's entry took its place"))
    assert refused(task) is KafkaError.NOT_COORDINATOR


def test_what_may_yet_be_applied_is_never_called_refused(lone: Lone) -> None:
    lone.log.lead(3)
    task = lone.execute()
    lone.log.drop(Unknown("leadership was lost"))
    assert refused(task) is Reason.COORDINATOR_UNDECIDED


def test_an_entry_of_an_earlier_term_was_not_done(lone: Lone) -> None:
    lone.log.lead(3)
    task = lone.execute()
    # The log keeps it; the machine is in a later term when it comes to it.
    lone.replica.machine.begin_term(2, 4, 2)
    lone.log.term = 4
    lone.log.commit()
    assert refused(task) is KafkaError.NOT_COORDINATOR
    assert lone.replica.machine.total == 0


def test_a_lost_leader_says_soon_that_nobody_knows(lone: Lone) -> None:
    lone.log.lead(3)
    task = lone.execute()
    lone.log.lose()
    lone.loop.advance(ANSWER_SECONDS / 2)
    assert not task.done()
    lone.loop.advance(ANSWER_SECONDS)
    assert refused(task) is Reason.COORDINATOR_UNDECIDED
    # What becomes of it later is nobody's any more, and does no harm.
    lone.log.term = 3
    lone.log.apply()
    assert lone.replica.machine.total == 1


def test_a_lost_leader_that_learns_in_time_says_what_it_learnt(lone: Lone) -> None:
    lone.log.lead(3)
    task = lone.execute()
    lone.log.lose()
    lone.log.commit()
    assert task.result() == 1
    lone.loop.advance(10 * ANSWER_SECONDS)


def test_cancelling_who_waits_cancels_no_command(lone: Lone) -> None:
    lone.log.lead(3)
    gone, stays = lone.execute(4), lone.execute(5)
    gone.cancel()
    lone.loop.run()
    assert gone.cancelled()
    lone.log.commit()
    assert (lone.replica.machine.total, stays.result()) == (9, 9)


def test_a_command_that_no_entry_holds_is_refused(lone: Lone, monkeypatch: pytest.MonkeyPatch) -> None:
    lone.log.lead(3)

    def too_large(command: bytes, term: int) -> Any:
        raise ValueError("split it")

    monkeypatch.setattr(lone.log, "replicate", too_large)
    assert refused(lone.execute()) is KafkaError.MESSAGE_TOO_LARGE


# Reading and watching.


def test_confirm_is_the_logs_word(lone: Lone) -> None:
    def confirmed() -> bool:
        task = lone.loop.create_task(lone.replica.confirm())
        lone.loop.run()
        return task.result()

    assert not confirmed()
    lone.log.lead(3)
    assert confirmed()
    lone.replica.close()
    assert not confirmed()


def test_watchers_hear_of_every_change_once_a_turn(lone: Lone, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []

    def good() -> None:
        heard.append("good")

    def bad() -> None:
        heard.append("bad")
        raise RuntimeError("a watcher's own fault")

    faults: list[dict[str, Any]] = []
    monkeypatch.setattr(lone.loop, "call_exception_handler", faults.append)
    lone.replica.watch(bad)
    lone.replica.watch(good)
    lone.log.lead(3)
    assert heard == ["bad", "good"]
    lone.execute()
    lone.execute()
    assert len(heard) == 2
    lone.log.commit()
    assert heard == ["bad", "good"] * 2
    lone.replica.unwatch(bad)
    lone.log.lose()
    assert heard[4:] == ["good"]
    lone.replica.close()
    lone.loop.run()
    assert heard[5:] == ["good"]
    assert [fault["message"] for fault in faults] == ["a watcher of __consumer_offsets-5 failed"] * 2
