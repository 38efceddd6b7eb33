"""Whether a node does its part, and if not, why: the worst first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from node.admin.source import AdminSource
from node.raft.group import RaftGroup
from statemachine.controller_state import CONTROLLER_GROUP

EXAMPLES: Final = 10
"""Groups that a problem names; the rest is counted."""

REASONS: Final = {
    "log_stalled": "the disk of the write-ahead log has not finished a write for long: look at the disk",
    "groups_failed": "replicas stopped after an error: read it in /api/groups and in this node's log",
    "groups_damaged": "stored snapshots are damaged, and are being fetched from the leaders: wait",
    "no_controller": "the controller has no leader that this node knows: a majority of the nodes must run"
    " and reach each other",
    "not_registered": "the controller does not know this process yet",
    "fenced": "the controller counts this node as dead: it did not hear from it in time",
    "groups_missing": "replicas that the controller assigned to this node are not here yet",
    "groups_leaderless": "groups have no leader that this node knows: a majority of their replicas must run"
    " and reach each other",
}
"""Each reason and what it means, in the order of their weight."""


class Problem(NamedTuple):
    """One reason, how many things it is about, and the first of the groups among them."""

    reason: str
    number: int
    groups: tuple[int, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For /health."""
        meaning = REASONS[self.reason]
        return {"reason": self.reason, "count": self.number, "meaning": meaning, "groups": list(self.groups)}


def problems(source: AdminSource) -> list[Problem]:
    """Everything that is wrong now, the worst first; nothing when the node is healthy.

    It costs about a microsecond a group and reads only what this node believes: a partitioned follower that
    has not noticed yet is healthy.
    """
    host, machine = source.host, source.controller.machine
    groups = list(host.groups.values())
    controller = host.groups.get(CONTROLLER_GROUP)
    own = machine.nodes.get(source.node_id)
    wanted = machine.group_changes(source.node_id, host.groups).create
    found = {
        "log_stalled": _once(host.disk_stalled()),
        "groups_failed": _about(group.id for group in groups if group.failure is not None),
        "groups_damaged": _about(group.id for group in groups if group.damaged_below is not None),
        "no_controller": _once(controller is None or _leaderless(controller)),
        "not_registered": _once(not source.registered),
        "fenced": _once(own is not None and own.fenced),
        "groups_missing": _about(place.group for place in wanted),
        "groups_leaderless": _about(
            group.id for group in groups if _leaderless(group) and group.id != CONTROLLER_GROUP
        ),
    }
    return [Problem(reason, *found[reason]) for reason in REASONS if found[reason][0]]


def _leaderless(group: RaftGroup) -> bool:
    return group.leader is None and not group.is_leader


def _once(wrong: bool) -> tuple[int, tuple[int, ...]]:
    return int(wrong), ()


def _about(groups: Iterable[int]) -> tuple[int, tuple[int, ...]]:
    found = sorted(groups)
    return len(found), tuple(found[:EXAMPLES])
