"""The cutover against a world of processes that die, hang, wake up late, and whose words come late or twice.

A cut is one number.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strandline.statemachine.controller.controller_commands import (
    ApplyViews,
    CutOverViews,
    PauseViews,
    ResumeViews,
    StartViewWorker,
    ViewsPaused,
)
from strandline.statemachine.controller.view_state import ViewProgram
from tests.statemachine.controller_harness import Log, topic_id

steps = st.integers(0, 3)


@dataclass
class Worker:
    """A process that runs one version; `seen` is the program as it last looked, which may be long ago."""

    number: int
    attempt: int
    cut: int
    seen: ViewProgram
    started: bool = False
    paused: int = 0
    asked: int = 0
    proposed: int = 0


class Cutovers(RuleBasedStateMachine):
    """One program. View `kept` is the same in all versions, `changed` another in each."""

    @initialize()
    def start(self) -> None:
        self.log = Log(nodes=3)
        self.log.topic(self.log.creation(1, "in"))
        self.numbers = itertools.count(10)
        self.cuts: dict[bytes, int] = {}
        self.late: list[Any] = []
        self.live: list[Worker] = []
        self.next: list[Worker] = []
        self.version = 0
        self.committed = 0
        """The cut that the live version's group has committed, with the outputs."""
        self.begin()
        self.a_next_worker_starts()
        self.the_next_worker_cuts_over()
        self.a_live_worker_starts()

    @property
    def program(self) -> ViewProgram:
        return self.log.machine.view_programs["p"]

    def say(self, command: Any, *, lost: bool = False) -> Any:
        """Propose; what was said may come once more, or, if it seemed lost, only later."""
        if lost:
            self.late.append(command)
            return None
        before = self.program.live if self.log.machine.view_programs else None
        result = self.log.do(command)
        if isinstance(command, CutOverViews) and self.program.live is not before:
            self.cut_over(command)
        return result

    def cut_over(self, command: CutOverViews) -> None:
        self.version += 1
        assert self.program.live is not None
        reached = int(command.checkpoint)
        for view in self.program.live.views:
            assert self.cuts[view.topic_id] == reached, "a topic is not at the cut of the state that goes on"
        self.committed = reached

    @rule()
    @precondition(lambda self: self.program.next is None)
    def begin(self) -> None:
        fresh = [topic_id(next(self.numbers)) for _ in range(2)]
        sink = f"{next(self.numbers):064d}"
        rows = (("kept", "kept", fresh[0], 1, "k" * 64), ("changed", "changed", fresh[1], 1, sink))
        result = self.log.do(ApplyViews("p", next(self.numbers), "", rows, ("in",), 3, 0))
        assert isinstance(result, int)
        self.cuts.update(dict.fromkeys(fresh, 0))
        self.hidden_committed = 0

    @rule()
    @precondition(lambda self: self.program.live is not None)
    def a_live_worker_starts(self) -> None:
        """It takes the transactional id, which shuts the one before out, then says so."""
        assert self.program.live is not None
        worker = Worker(next(self.numbers), self.program.live.attempt, self.committed, self.program)
        self.live.append(worker)
        worker.started = isinstance(self.say(StartViewWorker("p", worker.attempt, True, worker.number)), int)

    @rule()
    @precondition(lambda self: self.program.next is not None)
    def a_next_worker_starts(self) -> None:
        assert self.program.next is not None
        worker = Worker(next(self.numbers), self.program.next.attempt, self.hidden_committed, self.program)
        self.next.append(worker)
        worker.started = isinstance(self.say(StartViewWorker("p", worker.attempt, False, worker.number)), int)

    @rule(at=st.integers(0, 30), next=st.booleans())
    def a_worker_looks(self, at: int, next: bool) -> None:
        workers = self.next if next else self.live
        if workers:
            workers[-1 - at % len(workers)].seen = self.program

    # The live version.

    def commit_live(self, worker: Worker, cut: int) -> bool:
        """Its transaction succeeds only for the last process that took the transactional id."""
        if worker is not self.live[-1]:
            return False
        worker.cut = self.committed = cut
        version = next(one for one in worker.seen.versions() if one.attempt == worker.attempt)
        for view in version.views:
            if view.topic_id in self.cuts:
                self.cuts[view.topic_id] = cut
        return True

    def may_commit(self, worker: Worker) -> bool:
        live, pause = worker.seen.live, worker.seen.pause
        if not worker.started or live is None or live.attempt != worker.attempt:
            return False
        return worker.paused == 0 or worker.paused != (pause.number if pause else 0)

    @rule(at=steps, by=st.integers(1, 5))
    def a_live_worker_goes_on(self, at: int, by: int) -> None:
        worker = self.live[-1 - at % len(self.live)]
        if self.may_commit(worker):
            worker.paused = 0
            self.commit_live(worker, worker.cut + by)

    @rule(at=steps, lost=st.booleans())
    def a_live_worker_pauses(self, at: int, lost: bool) -> None:
        worker = self.live[-1 - at % len(self.live)]
        pause = worker.seen.pause
        if not self.may_commit(worker) or pause is None:
            return
        if self.commit_live(worker, max(worker.cut, int(pause.wanted))):
            worker.paused = pause.number
            said = ViewsPaused("p", worker.attempt, worker.number, pause.number, str(worker.cut).encode())
            self.say(said, lost=lost)

    @rule(lost=st.booleans())
    @precondition(lambda self: self.program.pause is not None)
    def the_pause_takes_too_long(self, lost: bool) -> None:
        assert self.program.pause is not None
        assert self.program.next is not None
        self.say(ResumeViews("p", self.program.next.attempt, self.program.pause.number), lost=lost)

    # The next version.

    def filling(self, at: int) -> Worker | None:
        """A process that fills what it believes to be the next version still."""
        if not self.next:
            return None
        worker = self.next[-1 - at % len(self.next)]
        there = worker.seen.next is not None and worker.seen.next.attempt == worker.attempt
        return worker if worker.started and there else None

    def commit_next(self, worker: Worker, cut: int) -> bool:
        if worker is not self.next[-1] or worker.seen.next is None:
            return False
        worker.cut = self.hidden_committed = cut
        kept = {view.topic_id for view in worker.seen.live.views} if worker.seen.live else set()
        for view in worker.seen.next.views:
            if view.topic_id not in kept:
                self.cuts[view.topic_id] = cut
        return True

    @rule(at=steps, by=st.integers(1, 9))
    def a_next_worker_goes_on(self, at: int, by: int) -> None:
        worker = self.filling(at)
        pause = worker.seen.pause if worker else None
        # After it asked for a cutover without a pause it waits for the outcome, whatever comes.
        if worker is not None and worker.asked >= 0 and worker.asked != (pause.number if pause else -1):
            worker.asked = 0
            self.commit_next(worker, worker.cut + by)

    @rule(at=steps, lost=st.booleans())
    def a_next_worker_asks_for_a_pause(self, at: int, lost: bool) -> None:
        worker = self.filling(at)
        if worker is not None and worker.asked == 0 and self.program.live is not None:
            wanted = str(worker.cut).encode()
            answer = self.say(PauseViews("p", worker.attempt, worker.number, wanted), lost=lost)
            worker.asked = answer if isinstance(answer, int) else 0
            worker.seen = self.program

    @rule(at=steps, lost=st.booleans())
    def a_next_worker_cuts_over(self, at: int, lost: bool) -> None:
        worker = self.filling(at)
        pause = worker.seen.pause if worker else None
        if worker is None or pause is None or pause.reached is None or worker.asked != pause.number:
            return
        # What it proposed it may propose again, but it writes nothing before it knows the outcome.
        if worker.proposed == pause.number or self.commit_next(worker, int(pause.reached)):
            worker.proposed = pause.number
            checkpoint = str(worker.cut)
            self.say(CutOverViews("p", worker.attempt, worker.number, pause.number, checkpoint), lost=lost)

    def the_next_worker_cuts_over(self) -> None:
        worker = self.next[-1]
        worker.seen = self.program
        self.commit_next(worker, 1)
        worker.asked = -1
        self.say(CutOverViews("p", worker.attempt, worker.number, 0, "1"))

    @rule(at=st.integers(0, 9), again=st.booleans())
    @precondition(lambda self: self.late)
    def something_comes_late(self, at: int, again: bool) -> None:
        at %= len(self.late)
        self.say(self.late[at] if again else self.late.pop(at))

    @rule()
    @precondition(lambda self: self.next and self.program.pause is not None)
    def all_goes_well(self) -> None:
        """Without this, random steps come to a cutover too rarely."""
        self.a_worker_looks(0, False)
        self.a_live_worker_pauses(0, False)
        self.a_worker_looks(0, True)
        self.a_next_worker_cuts_over(0, False)
        self.a_live_worker_starts()

    @invariant()
    def the_live_versions_topics_are_at_one_cut(self) -> None:
        live = self.program.live
        if live is not None:
            assert {self.cuts[view.topic_id] for view in live.views} == {self.committed}
            for view in live.views:
                assert self.log.machine.topic(view.topic) is self.log.machine.topic_by_id(view.topic_id)


Cutovers.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
test_cutovers = Cutovers.TestCase
