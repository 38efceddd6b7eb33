"""Programs of views: which version is live, which is being filled, and the one entry that cuts over.

A version is filled into topics that have hidden names. The cutover gives these topics their names, takes them
from those that the version before had, and makes the version live: one entry, so no reader ever sees half of
it. Each command names the attempt, the process and the pause that it was decided in, and is refused once that
has ended. docs/views.md tells the protocol.
"""

from __future__ import annotations

from strandline.statemachine.controller import controller_topics, view_attempts
from strandline.statemachine.controller.controller_commands import (
    ApplyViews,
    CancelViews,
    CutOverViews,
    DropViews,
    PauseViews,
    ResumeViews,
    StartViewWorker,
    StopViews,
    ViewCommand,
    ViewsPaused,
)
from strandline.statemachine.controller.controller_state import ControllerState
from strandline.statemachine.controller.feature_levels import PLACEMENT
from strandline.statemachine.controller.view_state import Pause, ProgramVersion, ViewProgram
from strandline.statemachine.kafka_errors import KafkaError, Refused


def apply(state: ControllerState, index: int, command: ViewCommand) -> int | Refused:
    """Do what a command says, or refuse it and change nothing."""
    match command:
        case ApplyViews():
            return view_attempts.begin(state, index, command)
        case DropViews():
            return _drop(state, index, command)
        case CancelViews():
            return _cancel(state, index, command)
        case StartViewWorker():
            return _start(state, index, command)
        case StopViews():
            return _stop(state, index, command)
        case PauseViews():
            return _pause(state, index, command)
        case ViewsPaused():
            return _paused(state, index, command)
        case ResumeViews():
            return _resume(state, index, command)
        case CutOverViews():
            return _cut_over(state, index, command)


def _drop(state: ControllerState, index: int, command: DropViews) -> int | Refused:
    program = state.view_programs.get(command.program)
    if program is None or program.created != command.created:
        return 0
    removed = _remove(state, index, _topics(program.live) | _topics(program.next))
    del state.view_programs[program.name]
    state.version = index
    return removed


def _cancel(state: ControllerState, index: int, command: CancelViews) -> int | Refused:
    program = state.view_programs.get(command.program)
    if program is None:
        return 0
    if program.live and program.live.attempt == command.attempt:
        return _void(f"version {program.live.number} is live already")
    if program.next is None or program.next.attempt != command.attempt:
        return 0
    return _end(state, index, program, command.reason)


def _end(state: ControllerState, index: int, program: ViewProgram, reason: str) -> int:
    """End the attempt of a program. One that never was live stays, to say why."""
    removed = _remove(state, index, _topics(program.next) - _topics(program.live))
    ended = program._replace(next=None, next_worker=0, pause=None, ended=reason or "it was cancelled")
    state.put_program(ended, index)
    return removed


# What processes say.


def _start(state: ControllerState, index: int, command: StartViewWorker) -> int | Refused:
    program = state.view_programs.get(command.program)
    version = None if program is None else program.live if command.live else program.next
    if program is None or version is None or version.attempt != command.attempt:
        return _void("that version is gone, or has gone live")
    if command.live and program.stopped and state.feature_level >= PLACEMENT:
        return _void("the version was stopped")
    present = program.live_worker if command.live else program.next_worker
    if present == command.worker:
        return program.pauses
    if command.before not in (None, present):
        return _void("another process has begun since")
    if command.live:
        changed = program._replace(live_worker=command.worker)
    else:
        changed = program._replace(next_worker=command.worker)
    state.put_program(changed._replace(pause=None), index)
    return program.pauses


def _stop(state: ControllerState, index: int, command: StopViews) -> int | Refused:
    program = state.view_programs.get(command.program)
    if program is None or program.live is None or program.live.attempt != command.attempt:
        return _void("that version is not live")
    if program.live_worker != command.worker:
        return _void("another process runs it")
    stopped = program._replace(stopped=command.reason or "no reason was given", pause=None)
    state.put_program(stopped, index)
    if _topics(program.live) & _topics(program.next):
        _end(state, index, stopped, "the live version stopped, whose topics it was to keep")
    return program.live.number


def _pause(state: ControllerState, index: int, command: PauseViews) -> int | Refused:
    program = state.view_programs.get(command.program)
    if program is None or program.next is None or program.next.attempt != command.attempt:
        return _void("that attempt has ended")
    if program.next_worker != command.worker:
        return _void("another process fills it")
    if program.live is None or program.stopped:
        return _void("there is no live version to wait for")
    if program.pause is None or program.pause.wanted != command.wanted:
        pause = Pause(program.pauses + 1, command.wanted, None)
        state.put_program(program._replace(pause=pause, pauses=pause.number), index)
        return pause.number
    return program.pause.number


def _paused(state: ControllerState, index: int, command: ViewsPaused) -> int | Refused:
    program = state.view_programs.get(command.program)
    if program is None or program.live is None or program.live.attempt != command.attempt:
        return _void("that version is not live")
    if program.live_worker != command.worker:
        return _void("another process runs it")
    if program.pause is None or program.pause.number != command.pause:
        return _void(f"pause {command.pause} has ended")
    if program.pause.reached is None:
        state.put_program(program._replace(pause=program.pause._replace(reached=command.reached)), index)
    return command.pause


def _resume(state: ControllerState, index: int, command: ResumeViews) -> int | Refused:
    program = state.view_programs.get(command.program)
    if program is None:
        return _void("the program is gone")
    if program.pause and program.pause.number == command.pause:
        state.put_program(program._replace(pause=None), index)
    return program.pauses


def _cut_over(state: ControllerState, index: int, command: CutOverViews) -> int | Refused:
    program = state.view_programs.get(command.program)
    if program and program.live and program.live.attempt == command.attempt:
        return program.live.number  # a retry whose first attempt was applied
    if program is None or program.next is None or program.next.attempt != command.attempt:
        return _void("that attempt has ended")
    if program.next_worker != command.worker:
        return _void("another process fills it")
    before, after = _topics(program.live), _topics(program.next)
    if program.live and not program.stopped:
        # Also where no topic stays: what the live version writes to a name would come into the new topic.
        pause = program.pause
        if pause is None or pause.number != command.pause or pause.reached is None:
            return _void(f"pause {command.pause} has ended, or the live version has not stopped in it")
    elif program.live and command.pause and state.feature_level >= PLACEMENT:
        # Its decision is older than the stop: what still runs of the live version was not shut out for it.
        return _void(f"pause {command.pause} has ended, for the live version was stopped")
    _remove(state, index, before - after)
    names = {view.topic_id: view.topic for view in program.next.views if view.topic_id in state.topics}
    state.rename_topics({one: name for one, name in names.items() if state.topics[one].name != name})
    live = program.next._replace(checkpoint=command.checkpoint)
    after_it = program._replace(live=live, next=None, live_worker=0, next_worker=0, pause=None)
    state.put_program(after_it._replace(stopped="", ended=""), index)
    return live.number


def _topics(version: ProgramVersion | None) -> set[bytes]:
    return {view.topic_id for view in version.views} if version else set()


def _remove(state: ControllerState, index: int, topics: set[bytes]) -> int:
    """Remove those of some topics that are there: one may be gone with the nodes that had it."""
    there = [state.topics[one] for one in sorted(topics) if one in state.topics]
    for topic in there:
        controller_topics.remove(state, index, topic)
    return len(there)


def _void(why: str) -> Refused:
    return Refused(KafkaError.INVALID_REQUEST, f"It came too late: {why}.")
