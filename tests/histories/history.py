"""What transactional clients did and saw, as they know it themselves: the input of the checker.

Nothing here knows the server. A history is made by clients on real sockets or in the simulator alike, with
times of one clock, and every value is sent once: whoever reads it knows who wrote it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class Place(NamedTuple):
    """A partition."""

    topic: str
    partition: int


class Ending(Enum):
    """How a transaction ended, as its client knows it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    """Or never could have been committed: nothing of it was, or a newer incarnation fenced it before."""
    UNKNOWN = "unknown"
    """A commit was asked for, and no answer came."""


class Sent(NamedTuple):
    """One record of a transaction; `offset` is None where no acknowledgement came."""

    place: Place
    value: str
    offset: int | None


class Read(NamedTuple):
    """One record that a poll gave."""

    place: Place
    offset: int
    value: str


@dataclass(slots=True, eq=False)
class Transaction:
    """What one client did between begin and end. Times are seconds of the history's clock."""

    client: str
    """Transactional id and incarnation: one after the other, its transactions never overlap."""
    began: float
    sent: list[Sent] = field(default_factory=list)
    consumed: list[Read] = field(default_factory=list)
    """The input whose offsets it commits."""
    ending: Ending = Ending.ABORTED
    commit_asked: float | None = None
    ended: float | None = None
    """When the answer to commit or abort came."""


@dataclass(slots=True, eq=False)
class Poll:
    """What one poll gave a consumer that reads committed records only.

    `run` names a stretch in which the consumer itself did not move: no rebalance, no seek, no restart. Only
    within one must its polls follow one another.
    """

    consumer: str
    run: int
    ended: float
    read: list[Read]


@dataclass(slots=True)
class History:
    """All of one test."""

    transactions: list[Transaction] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    committed: dict[Place, list[Read]] = field(default_factory=dict)
    """At the end, with nothing under way: what a consumer of committed records finds, in its order."""
    followed: list[str] = field(default_factory=list)
    """The consumers that polled everything, from the beginning to the end."""
    inputs: list[str] = field(default_factory=list)
    """Values that consume-transform-produce transactions had to consume, each exactly once."""
