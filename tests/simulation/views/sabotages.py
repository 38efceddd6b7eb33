"""Rules of views taken out one at a time: each schedule must find its own.

What each takes is told in docs/simulation.md. Nothing here is ever imported by the product.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from strandline.cluster.view_worker import fetched, phases, process
from strandline.cluster.view_worker.fetched import Cut, Place
from strandline.cluster.view_worker.laps import Laps
from strandline.cluster.view_worker.node_link import HoldLost
from strandline.cluster.view_worker.state_objects import StateObjects
from strandline.cluster.view_worker.version_task import VersionTask
from strandline.node.views import view_host, view_process
from strandline.snapshot.views.operator import StateManifest
from strandline.snapshot.views.sink import Changes, Phase, Sink
from strandline.snapshot.views.spine import Level, Merge, Spine
from strandline.snapshot.views.zset import ZSet
from strandline.statemachine.controller import view_programs
from strandline.statemachine.controller.controller_commands import (
    CancelViews,
    CutOverViews,
    StartViewWorker,
    StopViews,
)
from strandline.statemachine.controller.controller_state import ControllerState
from strandline.statemachine.controller.view_state import Pause
from strandline.statemachine.views import expressions, identity
from tests.simulation.sabotage import Sabotage, by_name, expecting
from tests.simulation.views.found_by import FOUND_BY, FOUND_WITH
from tests.snapshot.views import sabotages as operators

# What a state is of.

_save = StateObjects.save


def _one_late(self: StateObjects, states: Mapping[str, StateManifest], cut: Cut) -> Any:
    return _save(self, states, {place: offset + (offset > 0) for place, offset in cut.items()})


_step = VersionTask._step


def _aloud(self: VersionTask, bounds: Mapping[Place, int] | None = None) -> Any:
    """Replays with the sinks speaking, and writes what they say."""
    if self.status["phase"] == "replaying":
        self.sinks.follow(all_sinks=True)
        count, said = _step(self, bounds)
        self.commit(said)
        return count, said
    return _step(self, bounds)


# Holds.

_hold = VersionTask._hold


def _holds_what_is_committed(self: VersionTask, cut: Cut | None) -> None:
    _hold(self, cut if cut is None or not hasattr(self, "inputs") else self.cut())


_go_on = VersionTask.go_on


def _holds_as_it_goes(self: VersionTask) -> int:
    count = _go_on(self)
    if count:
        _hold(self, self.committed)
    return count


def _hold_is_not_looked_at(self: VersionTask, cut: Cut | None) -> None:
    try:
        _hold(self, cut)
    except HoldLost:
        return


# The cutover.

_cut_over = view_programs._cut_over


def _any_pause(state: ControllerState, index: int, command: CutOverViews) -> Any:
    program = state.view_programs.get(command.program)
    if program and program.next and program.next.attempt == command.attempt:
        state.put_program(program._replace(pause=Pause(command.pause, b"", b"")), index)
    return _cut_over(state, index, command)


def _unknown_is_refused(result: Any) -> tuple[str, int | str]:
    kind, value = _answer_of(result)
    return "refused" if kind == "unavailable" else kind, value


_answer_of = view_process.answer_of


def _says_no_more(self: VersionTask, bounds: Mapping[Place, int]) -> dict[str, Changes]:
    """What the last round brings is not written."""
    _step(self, bounds)
    return {}


def _attempt_is_live(self: VersionTask) -> bool:
    live = self.link.known.program.live
    return live is not None and live.attempt == self.attempt


_cancel = view_programs._cancel


def _cancels_what_is_live(state: ControllerState, index: int, command: CancelViews) -> Any:
    program = state.view_programs.get(command.program)
    if program and program.live and program.live.attempt == command.attempt:
        view_programs._remove(state, index, view_programs._topics(program.live))
        return 0
    return _cancel(state, index, command)


# Objects.


def _forgets_what_it_has(self: StateObjects, states: Mapping[str, StateManifest], cut: Cut) -> Any:
    """Of the objects that a state needs only those are known that were written for it."""
    before = {one for _, one in self._kept.values()}
    name, needed = _save(self, states, cut)
    return name, needed - before


def _any_neighbours(self: Spine, merge: Merge, made: Level) -> Spine:
    """A merge takes the place of the two newest runs, whatever they are by then."""
    return Spine(self.layout, (*self.runs[:-2], *made)) if made else self


# The content.

_dump = phases._dump


def _goes_on_between(task: VersionTask) -> None:
    """Takes records between the parts: what they change in parts that are written is lost."""
    task.tell(phase="dumping")
    parts = min(phases.PARTS, 1 + sum(task.cut().values()) // phases.ROWS_OF_A_PART)
    for _ in task.dump(parts):
        _step(task)
    task.phase = "following"
    task.commit()


_emit = Sink.emit


def _quiet_in_a_dump(self: Sink, delta: ZSet) -> Changes | None:
    return None if self.phase is Phase.DUMPING else _emit(self, delta)


def _from_the_first_part(self: VersionTask, parts: int) -> Iterator[None]:
    self.part = 0
    return _dump_parts(self, parts)


_dump_parts = VersionTask.dump

# Failures.

_say = process._say


def _stops_the_program(link: Any, command: StopViews | CancelViews) -> int:
    live = link.known.program.live
    if isinstance(command, CancelViews) and live is not None:
        return _say(
            link, StopViews(command.program, live.attempt, link.known.program.live_worker, command.reason)
        )
    return _say(link, command)


@contextmanager
def _order_counts() -> Iterator[None]:
    identity.digest.cache_clear()
    with patch.object(expressions, "COMMUTATIVE", frozenset()):
        yield
    identity.digest.cache_clear()


_cut = phases._cut_over


def _without_pause(task: VersionTask, laps: Laps) -> bool:
    """Cuts over without a pause where no topic stays; but both versions write topics of the same names."""
    if task.kept:
        return _cut(task, laps)
    task.store_state()
    task.link.submit(CutOverViews(task.program, task.attempt, task.worker, 0, task.state))
    while True:
        task.around.sleep(phases.LOOK_SECONDS)
        task.present_version()


def _no_pause_is_needed(state: ControllerState, index: int, command: CutOverViews) -> Any:
    program = state.view_programs.get(command.program)
    if program and program.live and not command.pause:
        state.put_program(program._replace(stopped="no pause is needed"), index)
    return _cut_over(state, index, command)


def _any_decision(state: ControllerState, index: int, command: CutOverViews) -> Any:
    """A version that was stopped is not asked whether the cutover knew it."""
    program = state.view_programs.get(command.program)
    known = program and program.live and program.stopped and program.live.attempt != command.attempt
    return _cut_over(state, index, replace(command, pause=0) if known else command)


_start = view_programs._start


def _of_any_process(state: ControllerState, index: int, command: StartViewWorker) -> Any:
    """A process is not asked in whose place it begins."""
    return _start(state, index, replace(command, before=None))


def _holds_nothing(self: VersionTask) -> None:
    """A process that has cut over ends the holds of its filling, and has none of its own."""
    self._release_filling()
    self._states.look_again()
    self._states.remove_older()


def _releases_first(self: VersionTask) -> None:
    self._release_filling()
    _settle(self)


_settle = VersionTask.settle


def _of_operators(name: str) -> AbstractContextManager[Any]:
    [found] = [one for one in operators.SABOTAGES if one.name == name]
    return found.opened()


HOLES: Final = (
    Sabotage(
        "state-one-late",
        "S1: a stored state is of a cut that is one record later than its records",
        lambda: (patch.object(StateObjects, "save", _one_late),),
    ),
    Sabotage(
        "replay-aloud",
        "S2: what is replayed is written again",
        lambda: (patch.object(VersionTask, "_step", _aloud),),
    ),
    Sabotage(
        "hold-at-the-commit",
        "S3: inputs are held from what is committed, and not from what is stored",
        lambda: (patch.object(VersionTask, "go_on", _holds_as_it_goes),),
    ),
    Sabotage(
        "lost-hold-passes",
        "S4: a process begins although its hold was lost",
        lambda: (patch.object(VersionTask, "_hold", _hold_is_not_looked_at),),
    ),
    Sabotage(
        "any-pause",
        "S5: a cutover is not asked for the pause that it was decided in",
        lambda: (patch.object(view_programs, "_cut_over", _any_pause),),
    ),
    Sabotage(
        "unknown-is-refused",
        "S6: a command whose outcome is unknown counts as refused",
        lambda: (patch.object(view_process, "answer_of", _unknown_is_refused),),
    ),
    Sabotage(
        "takes-anothers-cutover",
        "S6: a process goes live by the cutover of another process that filled the same version",
        lambda: (patch.object(VersionTask, "has_cut_over", _attempt_is_live),),
    ),
    Sabotage(
        "state-forgets-a-value",
        "S7: an operator's state leaves its small value out",
        lambda: (_of_operators("state-forgets-a-value"),),
    ),
    Sabotage(
        "silent-last-round",
        "S8: what the last round before the cutover changes is not written",
        lambda: (patch.object(VersionTask, "take", _says_no_more),),
    ),
    Sabotage(
        "merge-anywhere",
        "S9: a merge is installed without a look whether its runs are still there",
        lambda: (patch.object(Spine, "replaced", _any_neighbours),),
    ),
    Sabotage(
        "shared-runs-deleted",
        "S9: objects are deleted that a newer state has from the one before",
        lambda: (patch.object(StateObjects, "save", _forgets_what_it_has),),
    ),
    Sabotage(
        "hash-is-proof", "S10: keys of one hash count as equal", lambda: (_of_operators("hash-is-proof"),)
    ),
    Sabotage(
        "every-change-of-a-key",
        "S11: of several changes of a key in one step all count",
        lambda: (_of_operators("every-change-of-a-key"),),
    ),
    Sabotage("float-accumulator", "S12: a sum is a float", lambda: (_of_operators("float-accumulator"),)),
    Sabotage(
        "reads-uncommitted",
        "S13: what is not decided is read",
        lambda: (patch.object(fetched, "ISOLATION", 0),),
    ),
    Sabotage(
        "gone-is-passed-over",
        "S14: records that are gone are passed over",
        lambda: (patch.object(fetched, "check", lambda *_: None),),
    ),
    Sabotage(
        "content-moves",
        "S15: the content is written from a state that goes on meanwhile",
        lambda: (
            patch.object(phases, "_dump", _goes_on_between),
            patch.object(Sink, "emit", _quiet_in_a_dump),
        ),
    ),
    Sabotage(
        "parts-again",
        "S15: a process that goes on with the content begins with its first part",
        lambda: (patch.object(VersionTask, "dump", _from_the_first_part),),
    ),
    Sabotage(
        "cancel-after-cutover",
        "S16: an attempt that is live is cancelled all the same",
        lambda: (patch.object(view_programs, "_cancel", _cancels_what_is_live),),
    ),
    Sabotage(
        "failure-spreads",
        "S17: what ends a version that is filled stops the live one",
        lambda: (patch.object(process, "_say", _stops_the_program),),
    ),
    Sabotage(
        "order-counts",
        "S18: the order of operands is part of an operator's identity",
        lambda: (_order_counts(),),
    ),
    Sabotage(
        "names-without-pause",
        "S19: a version that keeps no topic cuts over while the live one writes",
        lambda: (
            patch.object(phases, "_cut_over", _without_pause),
            patch.object(view_programs, "_cut_over", _no_pause_is_needed),
        ),
    ),
    Sabotage(
        "holds-stay",
        "S20: what is held for a version stays held when it is gone",
        lambda: (patch.object(view_host, "is_gone", lambda *_: False),),
    ),
    Sabotage(
        "stopped-is-not-shut-out",
        "S22: a version that was stopped by an operator is replaced while a process of it may still write",
        lambda: (patch.object(VersionTask, "shut_out_live", lambda _: None),),
    ),
    Sabotage(
        "stop-lets-all-pass",
        "S23: a cutover that was decided before the live version was stopped passes",
        lambda: (patch.object(view_programs, "_cut_over", _any_decision),),
    ),
    Sabotage(
        "takes-over-what-went-on",
        "S24: a process goes live in the state of its cutover, whatever another has committed since",
        lambda: (patch.object(VersionTask, "_went_on", lambda *_: False),),
    ),
    Sabotage(
        "stops-within-a-second",
        "S25: the live version has no longer to come to the cut than the next one to come to its",
        lambda: (patch.object(phases, "STOP_SECONDS", phases.PAUSE_SECONDS),),
    ),
    Sabotage(
        "in-any-place",
        "S26: a process that says it has begun is not asked in whose place",
        lambda: (patch.object(view_programs, "_start", _of_any_process),),
    ),
    Sabotage(
        "goes-live-without-holds",
        "S27: a version that goes live holds nothing until it stores a state",
        lambda: (patch.object(VersionTask, "settle", _holds_nothing),),
    ),
    Sabotage(
        "lets-go-before-it-holds",
        "S27: a version that goes live ends the holds of its filling before it has its own",
        lambda: (patch.object(VersionTask, "settle", _releases_first),),
    ),
)
SABOTAGES: Final = expecting(by_name(HOLES, FOUND_WITH).values(), FOUND_BY)
"""All of them, by name."""
