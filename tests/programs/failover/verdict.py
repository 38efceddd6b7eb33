"""What must hold after all faults, by what clients saw and what nodes hold: nothing lost, nothing twice."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum


class Fate(Enum):
    """How a command ended for its client."""

    ACKNOWLEDGED = "acknowledged"
    UNKNOWN = "unknown"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class NodeState:
    """What one node applied in the end."""

    ids: frozenset[int]
    doubled: tuple[int, ...]
    digest: str


@dataclass(slots=True)
class Verdict:
    """Ids of commands that went wrong; `differing` is set when the nodes do not hold the same bytes."""

    lost: set[int] = field(default_factory=set)
    doubled: set[int] = field(default_factory=set)
    unbidden: set[int] = field(default_factory=set)
    differing: bool = False

    @property
    def ok(self) -> bool:
        return not (self.lost or self.doubled or self.unbidden or self.differing)


def judge(fates: Mapping[int, Fate], nodes: Sequence[NodeState]) -> Verdict:
    """Acknowledged: exactly once on every node. Unknown: at most once. Rejected, or never sent: never."""
    verdict = Verdict(differing=len({node.digest for node in nodes}) != 1)
    acknowledged = {command for command, fate in fates.items() if fate is Fate.ACKNOWLEDGED}
    allowed = acknowledged | {command for command, fate in fates.items() if fate is Fate.UNKNOWN}
    for node in nodes:
        verdict.lost |= acknowledged - node.ids
        verdict.doubled |= set(node.doubled)
        verdict.unbidden |= node.ids - allowed
    return verdict


def longest_gap(acknowledged_at: Sequence[float], since: float, until: float) -> float:
    """The longest time without an acknowledgement that reaches beyond `since`, up to `until`."""
    before = [at for at in acknowledged_at if at <= since]
    within = [at for at in acknowledged_at if since < at <= until]
    points = [before[-1] if before else since, *within, until]
    return max(later - earlier for earlier, later in itertools.pairwise(points))


def percentile(values: Sequence[float], fraction: float) -> float:
    """The smallest value that so many of the values do not exceed; nan without any."""
    if not values:
        return math.nan
    return sorted(values)[max(math.ceil(fraction * len(values)), 1) - 1]
