"""Programs of views as the controller keeps them: values, their rows in a snapshot, and look-ups.

What a program means is not known here: its text is opaque, and a view is known by the digest of its sink.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

HIDDEN_PREFIX: Final = "__view."
"""Beginning of the names of topics that are filled out of sight. No client creates one, or is told of it."""


GROUP_PREFIX: Final = "view."
"""Beginning of the names of versions' groups and transactional ids."""


class ViewTopic(NamedTuple):
    """A view that has a topic."""

    view: str
    topic: str
    """The name that the topic has while the version is live."""
    topic_id: bytes
    sink: str
    """Digest of the view's sink, and so of all that the view depends on."""


class ProgramVersion(NamedTuple):
    """One version of a program."""

    number: int
    """From 1; attempts that ended without a cutover leave no gap."""
    attempt: int
    """Log index of the entry that began it."""
    nonce: int
    """Drawn by the proposer of that entry: it tells a retry from another request."""
    text: str
    views: tuple[ViewTopic, ...]
    inputs: tuple[tuple[str, bytes], ...]
    """Topics that it reads, by name and id."""
    checkpoint: str
    """Name of the state that it went live with; empty before."""


class Pause(NamedTuple):
    """The live version's pause, in which the next one comes to the very same cut."""

    number: int
    """Counts a program's pauses. A cutover names it, and so is void after the pause has ended."""
    wanted: bytes
    """The cut that the next version has come to, as its worker wrote it: the live one goes at least there."""
    reached: bytes | None
    """The cut at which the live version stopped, and its digests; None before it has."""


class ViewProgram(NamedTuple):
    """A program: the version that writes the views' topics, and the one that may take its place."""

    name: str
    created: int
    """Log index at which it came about: a later program of the same name is another one."""
    live: ProgramVersion | None
    next: ProgramVersion | None
    live_worker: int
    """Number of the process that runs the live version, drawn by itself; 0: none has said so."""
    next_worker: int
    pauses: int
    """Number of the last pause."""
    pause: Pause | None
    stopped: str
    """The reason why the live version does not go on; empty while it does."""
    ended: str
    """The reason why the last attempt ended without a cutover; empty after one."""

    def versions(self) -> tuple[ProgramVersion, ...]:
        """The live version and the next one, as far as they are there."""
        return tuple(one for one in (self.live, self.next) if one is not None)


Programs = Mapping[str, ViewProgram]


def is_hidden(topic: str) -> bool:
    """Whether a topic of this name is filled out of sight."""
    return topic.startswith(HIDDEN_PREFIX)


def group_name(program: str, created: int, attempt: int | None) -> str:
    """Name of a version's group, transactional id and holds; None for the live version, else its attempt."""
    live = f"{GROUP_PREFIX}{program}.{created}"
    return live if attempt is None else f"{live}.{attempt}"


def hidden_name(program: int, attempt: int, number: int) -> str:
    """Name of the topic of an attempt's view until the cutover; all are counts."""
    return f"{HIDDEN_PREFIX}{program}.{attempt}.{number}"


def owner_of(programs: Programs, topic_id: bytes) -> str | None:
    """The program that writes a topic, if one does."""
    for program in programs.values():
        for version in program.versions():
            if any(view.topic_id == topic_id for view in version.views):
                return program.name
    return None


def reserved(programs: Programs) -> dict[str, str]:
    """Names that topics of programs have or will have, with their programs."""
    return {
        view.topic: program.name
        for program in programs.values()
        for version in program.versions()
        for view in version.views
    }


def rows(programs: Programs) -> list[Any]:
    """Rows for a snapshot: named tuples are arrays to msgpack."""
    return list(programs.values())


def programs_from(found: Sequence[Sequence[Any]]) -> dict[str, ViewProgram]:
    """Read what `rows` gave."""
    programs = {}
    for name, created, live, following, live_worker, next_worker, pauses, pause, stopped, ended in found:
        programs[name] = ViewProgram(
            name,
            created,
            None if live is None else _version_from(live),
            None if following is None else _version_from(following),
            live_worker,
            next_worker,
            pauses,
            None if pause is None else Pause(*pause),
            stopped,
            ended,
        )
    return programs


def _version_from(row: Sequence[Any]) -> ProgramVersion:
    number, attempt, nonce, text, views, inputs, checkpoint = row
    topics = tuple(ViewTopic(*view) for view in views)
    return ProgramVersion(
        number, attempt, nonce, text, topics, tuple((name, topic) for name, topic in inputs), checkpoint
    )
