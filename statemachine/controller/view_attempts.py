"""Beginning the next version of a program: the rules for it, the topics it keeps, those it needs.

One entry checks all, creates the topics and begins the attempt, so what is refused leaves nothing behind.
"""

from __future__ import annotations

import re
from typing import Final

from strandline.statemachine.controller import controller_topics
from strandline.statemachine.controller.controller_commands import ApplyViews, CreateTopic
from strandline.statemachine.controller.controller_state import ControllerState, Topic, metric_name
from strandline.statemachine.controller.view_state import (
    ProgramVersion,
    ViewProgram,
    ViewTopic,
    hidden_name,
    is_hidden,
    reserved,
)
from strandline.statemachine.internal_topics import INTERNAL_TOPICS
from strandline.statemachine.kafka_errors import KafkaError, Refused

MAX_PROGRAMS: Final = 64
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}")
"""A program's name stands in names of objects, groups and transactional ids."""


def begin(state: ControllerState, index: int, command: ApplyViews) -> int | Refused:
    """Begin an attempt; gives its number, this entry's index, or that of the version that is the same."""
    program = state.view_programs.get(command.program)
    for version in program.versions() if program else ():
        if version.nonce == command.nonce:
            return version.attempt
    inputs = _inputs(state, command)
    if isinstance(inputs, Refused):
        return inputs
    live = program.live if program and not program.stopped else None
    if program and program.next:
        reason = (
            f"BOOTSTRAP_IN_PROGRESS: version {program.next.number} of program '{program.name}' is being "
            "filled: wait for it, or cancel it."
        )
        return Refused(KafkaError.INVALID_REQUEST, reason)
    kept = _kept(live, command)
    if program and live and live.inputs == inputs and _same(live, kept, command):
        state.put_program(program._replace(live=live._replace(text=command.text)), index)
        return live.attempt
    refused = _unnamed(state, command, program) or _untimely(state, command, kept)
    if refused:
        return refused
    created = program.created if program else index
    creations = [
        CreateTopic(
            topic_id, hidden_name(created, index, number), partitions, command.replication_factor, None,
            (("cleanup.policy", "compact"),), command.made_at,
        )
        for number, (_, _, topic_id, partitions, _) in enumerate(command.views)
        if kept[number] is None
    ]  # fmt: skip
    # Whether a topic can be created does not depend on the others: all are planned before one is made.
    for creation in creations:
        planned = controller_topics.planned_creation(state, index, creation)
        if isinstance(planned, Refused):
            return planned
    for creation in creations:
        made = controller_topics.planned_creation(state, index, creation)
        assert isinstance(made, Topic), made
        controller_topics.put(state, index, made)
    views = tuple(
        ViewTopic(view, topic, kept_id or topic_id, sink)
        for (view, topic, topic_id, _, sink), kept_id in zip(command.views, kept, strict=True)
    )
    number = program.live.number + 1 if program and program.live else 1
    following = ProgramVersion(number, index, command.nonce, command.text, views, inputs, "")
    if program is None:
        program = ViewProgram(command.program, index, None, None, 0, 0, 0, None, "", "")
    state.put_program(program._replace(next=following, next_worker=0, ended=""), index)
    return index


def _inputs(state: ControllerState, command: ApplyViews) -> tuple[tuple[str, bytes], ...] | Refused:
    own = {topic for _, topic, _, _, _ in command.views}
    found = []
    for name in dict.fromkeys(command.inputs):
        topic = state.by_name.get(name)
        if topic is None or name in INTERNAL_TOPICS or is_hidden(name):
            reason = f"TOPIC_MISSING: there is no topic '{name}': create it, or correct the table's topic."
            return Refused(KafkaError.UNKNOWN_TOPIC_OR_PARTITION, reason)
        if name in own or _reads_from(state, name, own):
            reason = f"RECURSIVE_VIEW: topic '{name}' is written from what this program writes."
            return Refused(KafkaError.INVALID_REQUEST, reason)
        found.append((name, topic.topic_id))
    return tuple(found)


def _reads_from(state: ControllerState, name: str, sources: set[str]) -> bool:
    """Whether a topic is that of a view which depends, also by other programs, on one of `sources`."""
    seen, left = {name}, [name]
    while left:
        topic = left.pop()
        for program in state.view_programs.values():
            for version in program.versions():
                if all(view.topic != topic for view in version.views):
                    continue
                read = {source for source, _ in version.inputs}
                if read & sources:
                    return True
                left += read - seen
                seen |= read
    return False


def _kept(live: ProgramVersion | None, command: ApplyViews) -> list[bytes | None]:
    """For each view the topic that the live version keeps up to date by the same operators, if there is one.

    A view of the same name comes first: otherwise two equal views could swap their topics without need.
    """
    left = {view.topic_id: view for view in live.views} if live else {}
    kept: list[bytes | None] = [None] * len(command.views)
    for by_name in (True, False):
        for number, (name, _, _, _, sink) in enumerate(command.views):
            for topic_id, view in left.items():
                if kept[number] is None and view.sink == sink and (view.view == name or not by_name):
                    kept[number] = topic_id
                    del left[topic_id]
                    break
    return kept


def _same(live: ProgramVersion, kept: list[bytes | None], command: ApplyViews) -> bool:
    """Whether the live version has these very views under these very names."""
    present = {view.topic_id: (view.view, view.topic) for view in live.views}
    wanted = {
        topic_id: (view, topic) for (view, topic, _, _, _), topic_id in zip(command.views, kept, strict=True)
    }
    return present == wanted


def _unnamed(state: ControllerState, command: ApplyViews, program: ViewProgram | None) -> Refused | None:
    """The refusal of a name, of the program or of a view's topic, that it cannot have."""
    if not _NAME.fullmatch(command.program):
        reason = f"A program's name has 1 to 63 letters, digits, _ and -: '{command.program}' is none."
        return Refused(KafkaError.INVALID_REQUEST, reason)
    if program is None and len(state.view_programs) >= MAX_PROGRAMS:
        reason = f"There are {MAX_PROGRAMS} programs of views: drop one."
        return Refused(KafkaError.POLICY_VIOLATION, reason)
    names = [topic for _, topic, _, _, _ in command.views]
    own = {view.topic for version in program.versions() for view in version.views} if program else set[str]()
    others = {
        name: owner for name, owner in reserved(state.view_programs).items() if owner != command.program
    }
    if len({metric_name(name) for name in names}) < len(names):
        return Refused(KafkaError.INVALID_REQUEST, "TOPIC_NAME_TAKEN: two views have the same topic.")
    for name in names:
        if invalid := controller_topics.invalid_name(name):
            return Refused(KafkaError.INVALID_TOPIC_EXCEPTION, invalid)
        taken = state.colliding.get(metric_name(name))
        if is_hidden(name) or name in INTERNAL_TOPICS or name in others or (taken and taken not in own):
            reason = f"TOPIC_NAME_TAKEN: topic '{taken or name}' is not a view's of this program."
            return Refused(KafkaError.TOPIC_ALREADY_EXISTS, reason)
    return None


def _untimely(state: ControllerState, command: ApplyViews, kept: list[bytes | None]) -> Refused | None:
    ids = [row[2] for row, kept_id in zip(command.views, kept, strict=True) if kept_id is None]
    if len(set(ids)) < len(ids) or any(one in state.topics or one in state.deleted for one in ids):
        return Refused(
            KafkaError.INCONSISTENT_TOPIC_ID, "An id of a topic was given to another: draw others."
        )
    if command.made_at < state.forgotten_index:
        return Refused(KafkaError.REQUEST_TIMED_OUT, "The request is too old to tell from a repeated one.")
    return None
