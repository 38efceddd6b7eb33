"""The next change of the members of the controller's group: a pure function of what its leader knows.

Every node follows the controller's group; three of them vote, or five where there are five or more, so that a
cluster of a hundred nodes commits as fast as one of three. One and two nodes all vote: what is acknowledged
then lies on every disk there is. Of two of which one is drained the other one votes alone, as it could not
even remove the drained node once that is stopped. Voters stand in different racks first. One that stays
away, or is drained, gives its vote to a node that is there; that one is made a voter before, so there are
never fewer than needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

MOST_VOTERS: Final = 5


class Act(Enum):
    """Kind of a change."""

    FOLLOW = auto()
    """Add a node as a learner."""
    VOTE = auto()
    """Make a learner a voter."""
    UNVOTE = auto()
    """Make a voter a learner."""
    HAND_OVER = auto()
    """Hand leadership to a node, since this one is to lose its vote."""


class Change(NamedTuple):
    """One change of one node."""

    act: Act
    node: int


@dataclass(frozen=True, slots=True)
class View:
    """The group and the cluster, as the leader knows them."""

    leader: int
    voters: Collection[int]
    learners: Collection[int]
    racks: Mapping[int, str]
    """Of every node of the cluster; empty for one that names none."""
    there: Collection[int]
    """Nodes that are alive, connected, and that follow closely; the leader among them."""
    connected: Collection[int]
    """Nodes that could be sent the log, as they come with the folder in force."""
    draining: Collection[int]
    away: Collection[int]
    """Nodes that were not heard of for long."""
    chooses: bool
    """Whether the feature level lets the controller choose voters."""


def wanted_voters(nodes: int, drained: int = 0) -> int:
    """Number of voters of a cluster of so many nodes, of which so many are drained."""
    if (nodes, drained) == (2, 1):
        return 1
    return MOST_VOTERS if nodes >= MOST_VOTERS else min(nodes, 3)


def next_change(view: View) -> Change | None:
    """The next change, None if everything is as it should be or has to wait."""
    members = {*view.voters, *view.learners}
    missing = sorted(node for node in view.racks if node not in members and node in view.connected)
    if missing:
        return Change(Act.FOLLOW, missing[0])
    if not view.chooses:
        return None
    wanted = wanted_voters(len(view.racks), len({*view.draining} & view.racks.keys()))
    if len(view.voters) > wanted:
        return _unvote(view)
    if len(view.voters) < wanted:
        return _vote(view, better_than=None)
    return _vote(view, better_than=_worst(view))


def _worst(view: View) -> int:
    """The voter that is to go first: one that is no node, is away, is drained, or shares its rack."""

    def reasons(node: int) -> tuple[bool, bool, bool, bool, int, bool, int]:
        return (
            node not in view.racks,
            node in view.away,
            node in view.draining,
            node not in view.there,
            len(_racks(view, (other for other in view.voters if other != node))),
            node != view.leader,
            node,
        )

    return max(view.voters, key=reasons)


def _unvote(view: View) -> Change | None:
    going = _worst(view)
    rest = [node for node in view.voters if node != going]
    if sum(node in view.there for node in rest) * 2 <= len(rest):
        return None
    if going == view.leader:
        heirs = [node for node in rest if node in view.there]
        return Change(Act.HAND_OVER, min(heirs)) if heirs else None
    return Change(Act.UNVOTE, going)


def _vote(view: View, better_than: int | None) -> Change | None:
    """Make the best learner a voter, if there is one; with a voter it has to be better than, only then."""
    rest = [node for node in view.voters if node != better_than]
    taken = Counter(view.racks.get(node, "") for node in rest)
    candidates = [node for node in view.learners if node in view.racks and node in view.there]
    if not candidates:
        return None
    node = min(candidates, key=lambda one: (one in view.draining, taken[view.racks[one]], one))
    if better_than is not None and not _is_better(view, node, better_than, rest):
        return None
    # One more that is there leaves the majority that there is one.
    return Change(Act.VOTE, node)


def _is_better(view: View, node: int, voter: int, rest: Collection[int]) -> bool:
    """Whether a node should vote in place of a voter: that one is lost, or there would be more racks."""
    if voter not in view.racks or voter in view.away:
        return True
    if node in view.draining or voter in view.draining:
        return node not in view.draining
    return len(_racks(view, (*rest, node))) > len(_racks(view, (*rest, voter)))


def _racks(view: View, nodes: Iterable[int]) -> set[str]:
    """The racks of these nodes that have names."""
    return {view.racks[node] for node in nodes if view.racks.get(node)}
