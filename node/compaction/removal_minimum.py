"""The minimum over all copies of a partition: how far tombstones and markers may go from all of them.

A tombstone may go from one copy only when every copy is clean past it: a copy with an older value would serve
that value again. So a copy that has not reported counts as one with everything still to do, and nothing is
known until all have reported. Level one is a copy like the replicas. docs/compaction.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

LEVEL_ONE: Final = 0
"""Level one among the copies of a partition; the others are node ids, which begin at 1."""


class Ends(NamedTuple):
    """The offsets up to which one copy of a partition is cleaned: what a replica reports."""

    mcco: int
    """Maximum cleanly compacted offset: below it the copy has no key twice and lacks no newest record."""
    mxfo: int
    """Maximum transaction-free offset: below it the copy has no transactional data. At least `mcco`."""


class HeldBy(NamedTuple):
    """The copies that hold removal back, in ascending order, LEVEL_ONE first; empty while all are equal."""

    tombstones: tuple[int, ...]
    markers: tuple[int, ...]


def removal_minimum(members: Iterable[int], known: Mapping[int, Ends], level_one: Ends) -> Ends | None:
    """The lowest ends of all copies: MTRO and MXRO as they may be now; None while a member has not reported.

    `members` are all voters and learners of the newest configuration in the leader's log, committed or not: a
    learner that is just added ingests already. `known` are the reports of this term.
    """
    mcco, mxfo = level_one
    for node in members:
        ends = known.get(node)
        if ends is None:
            return None
        mcco, mxfo = min(mcco, ends.mcco), min(mxfo, ends.mxfo)
    return Ends(mcco, mxfo)


def held_by(members: Iterable[int], known: Mapping[int, Ends], level_one: Ends) -> HeldBy:
    """The copies that removal waits for: members without a report, else those behind another copy."""
    members = sorted(members)
    silent = tuple(node for node in members if node not in known)
    if silent:
        return HeldBy(silent, silent)
    copies = {LEVEL_ONE: level_one, **{node: known[node] for node in members}}
    return HeldBy(
        _behind({copy: ends.mcco for copy, ends in copies.items()}),
        _behind({copy: ends.mxfo for copy, ends in copies.items()}),
    )


def _behind(ends: Mapping[int, int]) -> tuple[int, ...]:
    lowest = min(ends.values())
    behind = tuple(copy for copy, end in ends.items() if end == lowest)
    return () if len(behind) == len(ends) else behind
