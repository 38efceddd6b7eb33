"""The three ways a command can end; there is no fourth, and none ends silently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Applied:
    """The command is committed and applied here; `value` is the state machine's answer."""

    value: Any
    index: int
    term: int


@dataclass(frozen=True, slots=True)
class NotLeader:
    """Definitely rejected: the command was never, and will never be, applied.

    `hint` is the node believed to lead, or None. `reason` is one clause for people.
    """

    hint: int | None
    reason: str = "not the leader"


@dataclass(frozen=True, slots=True)
class Overloaded:
    """Definitely rejected because of a bound; try again after the commands in progress have ended."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The command may or may not be applied, now or later; never to be taken for a rejection."""

    reason: str


Outcome = Applied | NotLeader | Overloaded | Unknown
