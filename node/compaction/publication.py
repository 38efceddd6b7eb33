"""State of publications of compacted logs: the one that is under way, and what is known from those before."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from strandline.node.compaction.manifest import Manifest
from strandline.node.compaction.publication_plan import Prospect, PublishedState
from strandline.node.level_one.retry_backoff import RetryBackoff

FIRST_RETRY_SECONDS: Final = 5.0


class Compared(NamedTuple):
    """An object that has what a log had that was clean up to an offset, in these segments."""

    clean_end: int
    segments: tuple[int, ...]


@dataclass(slots=True)
class Publication:
    """One that is under way."""

    manifest: Manifest
    """Of the log as it began: for level one no more is claimed than it was clean."""
    at: int
    """Offset up to which level one has what the log has."""
    unreadable: frozenset[bytes] = frozenset()
    """Unique bytes of objects that another copy could not read; they are replaced whatever they hold."""
    changed: bool = False
    """Whether it has replaced anything, or said that level one is cleaner."""


@dataclass(slots=True)
class Publishing:
    """State of one partition that is led here."""

    term: int
    backoff: RetryBackoff = field(default_factory=lambda: RetryBackoff(FIRST_RETRY_SECONDS))
    publication: Publication | None = None
    held_since: float | None = None
    """Since when level one alone was seen to hold removal back, by the loop's clock."""
    prospect: Prospect | None = None
    """The last one that was computed."""
    done: PublishedState | None = None
    """The state in which the last publication ended."""
    compared: dict[bytes, Compared] = field(default_factory=dict)
    """By the unique bytes of objects that level one has."""
    maker: str = ""
    """Of the log whose segments `compared` has: the next one may use their numbers if its files were gone."""
