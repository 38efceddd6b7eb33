"""Whether a node does its part, and if not, why: the worst first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from strandline.node.admin.source import AdminSource
from strandline.node.objectstore.retries import RetryingStore
from strandline.node.objectstore.store_health import OperationKind
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.host import RaftHost
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP, REMOVED

WAITED_SECONDS: Final = 1.0
"""Of a batch for the budget of requests, before that is told: longer than a put takes of any store."""
EXAMPLES: Final = 10
"""Groups that a problem names; the rest is counted."""

REASONS: Final = {
    "log_stalled": "the write-ahead log's disk is slow, full or stuck: a write has not finished for long;"
    " check the disk",
    "log_deleted": "the write-ahead log was deleted while this node runs: what it has acknowledged is gone"
    " once it stops; see that all other nodes are healthy, then stop it, start it on an empty folder, and"
    " `strandline node replace` it",
    "groups_failed": "replicas stopped after an error: see /api/groups and this node's log",
    "groups_damaged": "replicas have no state, as they are new here or their stored snapshots are damaged;"
    " the node fetches it from the leaders: wait",
    "folder_refused": "the other nodes know this node with another data folder, and refuse this folder",
    "folder_new": "this node's data folder is new and may replace a lost one: the node has no vote yet",
    "no_controller": "the controller has no leader that this node knows: a majority of the nodes must run"
    " and reach each other",
    "not_registered": "the controller does not know this process yet",
    "fenced": "the controller considers this node dead: its heartbeats did not arrive in time",
    "storage_failing": "reads or writes of the object store fail: the detail says which, and the cure",
    "groups_missing": "the node has not created all replicas that the controller assigned to it",
    "groups_leaderless": "groups have no leader that this node knows: a majority of their replicas must run"
    " and reach each other",
    "strangers": "processes use other nodes' ids with data folders that are not theirs, and are refused:"
    " restore those nodes' own folders, or accept the new folders with `strandline node replace`",
    "acknowledged_lost": "nodes no longer hold what they had acknowledged to a leader here: their folders are"
    " older copies, or their disks lost what was synced; stop each, empty its folder, start it, and accept it"
    " with `strandline node replace`",
    "node_replaced": "another data folder is taking a node's place, group by group: wait",
    "nodes_away": "nodes of the cluster are down: start them before you stop others",
    "replicas_away": "replicas are on nodes that are down: their partitions have fewer copies of their log"
    " than configured",
    "storage_not_cleaned": "the object store's deletions fail: the detail says why, and the cure",
    "requests_budget_spent": "storage.requests_budget is spent: batches wait for a put, and none is refused;"
    " the detail says for how long: raise the budget, or read less",
    "local_logs_failing": "local logs of compacted topics cannot be opened, filled or cleaned, so no deletion"
    " goes there: the detail says why of one, `strandline compaction status` of all",
    "collector_stopped": "the collector stopped because an invariant does not hold, and deletes nothing: read"
    " this node's log before `strandline gc reset`",
}
"""Each reason and its meaning, the most serious first."""

DEGRADED: Final = frozenset(
    {
        "strangers",
        "acknowledged_lost",
        "node_replaced",
        "nodes_away",
        "replicas_away",
        "storage_not_cleaned",
        "requests_budget_spent",
        "local_logs_failing",
        "collector_stopped",
    }
)
"""With none but these the node itself does its part: nothing is gained by taking clients away from it."""


_EXPLAINED: Final = {
    "folder_refused": frozenset(
        {"folder_new", "no_controller", "not_registered", "fenced", "groups_missing", "groups_leaderless"}
    ),
    "storage_failing": frozenset({"local_logs_failing"}),
    "folder_new": frozenset({"no_controller", "not_registered", "groups_leaderless"}),
}
"""Problems that follow from another one, by its name. They are left out of a report that has the cause,
because their own cure applies only if they occur alone."""


class Problem(NamedTuple):
    """One reason, how many things it is about, and the first of the groups among them."""

    reason: str
    number: int
    groups: tuple[int, ...] = ()
    detail: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """For /health."""
        return {
            "reason": self.reason,
            "count": self.number,
            "meaning": REASONS[self.reason],
            "detail": self.detail,
            "groups": list(self.groups),
        }


def status(found: Iterable[Problem]) -> str:
    """In a word: healthy, degraded (this node works, the cluster or its storage lacks something) or not."""
    reasons = {problem.reason for problem in found}
    return "unhealthy" if reasons - DEGRADED else "degraded" if reasons else "healthy"


def problems(source: AdminSource) -> list[Problem]:
    """Everything that is wrong now, the worst first; nothing when the node is healthy.

    It costs about a microsecond a group, and likewise a partition of the cluster while a node is away. It
    reads only what this node believes: a partitioned follower that has not noticed yet is healthy.
    """
    host, machine = source.host, source.controller.machine
    groups = list(host.groups.values())
    controller = host.groups.get(CONTROLLER_GROUP)
    own = machine.nodes.get(source.node_id)
    wanted = machine.group_changes(source.node_id, host.groups).create
    away = _away(source, controller)
    broken = source.collector.broken
    found = {
        "log_stalled": _told(_stall(host) if host.disk_stalled() else None),
        "log_deleted": _told(f"{host.settings.folder}/wal is deleted" if host.wal.is_deleted else None),
        "groups_failed": _about(group.id for group in groups if group.failure is not None),
        "groups_damaged": _damaged(groups),
        "folder_refused": _told(source.keeper.disowned()),
        "folder_new": _told(source.keeper.waits_for()),
        "no_controller": _once(controller is None or _leaderless(controller)),
        "not_registered": _once(not source.registered),
        "fenced": _once(own is not None and own.fenced),
        "storage_failing": _storage(source, {OperationKind.PUT, OperationKind.READ, OperationKind.LIST}),
        "groups_missing": _about(place.group for place in wanted),
        "groups_leaderless": _about(
            group.id for group in groups if _leaderless(group) and group.id != CONTROLLER_GROUP
        ),
        "strangers": _strangers(host, machine),
        "acknowledged_lost": _lost(groups),
        "node_replaced": _replacement(machine),
        "nodes_away": (len(away), (), _nodes(away) if away else None),
        "replicas_away": _replicas(source, away),
        "storage_not_cleaned": _storage(source, {OperationKind.DELETE}),
        "requests_budget_spent": _told(_budget_spent(source)),
        "local_logs_failing": _local_logs(source),
        "collector_stopped": (int(broken is not None), (), broken),
    }
    present = [reason for reason in REASONS if found[reason][0]]
    explained = frozenset().union(*(_EXPLAINED.get(reason, ()) for reason in present))
    return [Problem(reason, *found[reason]) for reason in present if reason not in explained]


def reaches_controller(source: AdminSource) -> bool:
    """Whether this process has caught up with the controller, and knows a leader of it now."""
    controller = source.host.groups.get(CONTROLLER_GROUP)
    return source.registered and controller is not None and not _leaderless(controller)


_Found = tuple[int, tuple[int, ...], str | None]


def _away(source: AdminSource, controller: RaftGroup | None) -> dict[int, str]:
    """Nodes that belong to the cluster and do not take part, each with its last known state.

    Nodes that the controller does not know are listed once this node is registered: before, it may just not
    have applied the controller's newest state.
    """
    nodes = source.controller.machine.nodes
    away = {node: "silent" for node, known in nodes.items() if known.fenced and node != source.node_id}
    if controller is not None and source.registered:
        away |= dict.fromkeys(set(controller.voters) - nodes.keys(), "never registered")
    return away


def _damaged(groups: Iterable[RaftGroup]) -> _Found:
    found = [group for group in groups if group.damaged_below is not None]
    told = [group.receiving.trouble for group in found if group.receiving.trouble is not None]
    cure = "free space, or mend the disk; the node then continues by itself"
    return *_about(group.id for group in found)[:2], f"{told[0]}: {cure}" if told else None


def _stall(host: RaftHost) -> str:
    wal = host.wal
    if wal.full is not None:
        return f"write-ahead log: {wal.full}: the disk is full: free space; the node then continues by itself"
    since = 0.0 if wal.stalled_since is None else host.loop.time() - wal.stalled_since
    return f"write-ahead log in {host.settings.folder}: a write takes {since:.0f} s already: check the disk"


def _nodes(away: dict[int, str]) -> str:
    first = sorted(away)[:EXAMPLES]
    more = f" and {len(away) - len(first)} more" if len(away) > len(first) else ""
    return "node " + ", ".join(f"{node} ({away[node]})" for node in first) + more


def _replicas(source: AdminSource, away: dict[int, str]) -> _Found:
    if not away:
        return 0, (), None
    missing, replicas, groups = 0, 0, []
    for topic in source.controller.machine.topics:
        for partition in topic.partitions:
            replicas += len(partition.replicas)
            gone = sum(node in away for node in partition.replicas)
            missing += gone
            if gone:
                groups.append(partition.group)
    return missing, tuple(sorted(groups)[:EXAMPLES]), f"{missing} of {replicas} replicas are not there"


def _strangers(host: RaftHost, machine: Controller) -> _Found:
    seen = list(host.mesh.strangers.knocking().items())
    told = (_stranger(node, each.folder, machine) for node, each in seen[:EXAMPLES])
    return len(seen), (), "; ".join(told) or None


def _stranger(node: int, folder: int, machine: Controller) -> str:
    known = machine.folders.get(node)
    cure = f"bring its own folder back, or let this one in with `strandline node replace {node}`"
    if known is not None and known.folder == REMOVED:
        cure = "the node was removed: end that process"
    return f"node {node} comes with data folder {folder:016x}: {cure}"


def _lost(groups: Iterable[RaftGroup]) -> _Found:
    found = [group for group in groups if group.is_leader and group.lost_acknowledged]
    nodes = sorted({node for group in found for node in group.lost_acknowledged})
    detail = f"node {', '.join(map(str, nodes[:EXAMPLES]))}" if nodes else None
    return *_about(group.id for group in found)[:2], detail


def _replacement(machine: Controller) -> _Found:
    present = machine.replacement
    if present is None:
        return 0, (), None
    if present.folder == REMOVED:
        return 1, (), f"node {present.node} is removed: {len(present.leaving)} groups have it as a member yet"
    left = f"{len(present.leaving)} groups have still to leave its folder before out"
    joined = f"{len(present.joining)} to take the new one in"
    stuck = machine.stuck_topics()
    without = f"; no majority of live replicas: {', '.join(stuck)}" if stuck else ""
    return 1, (), f"node {present.node}: {left}, {joined}{without}"


def _told(detail: str | None) -> _Found:
    return int(detail is not None), (), detail


def _storage(source: AdminSource, kinds: set[OperationKind]) -> _Found:
    if not isinstance(source.store, RetryingStore):
        return 0, (), None
    health = source.store.health
    told = [health.describe(trouble) for trouble in health.troubles() if trouble.kind in kinds]
    return len(told), (), "; ".join(told) or None


def _budget_spent(source: AdminSource) -> str | None:
    budget, waited = source.batcher.money, source.batcher.waited_seconds
    if budget is None or waited < WAITED_SECONDS or budget.seconds_to_next() == 0:
        return None
    left = budget.left
    owed = f"{-left:.4f} are owed of" if left < 0 else f"{left:.4f} are left of"
    return f"the oldest batch has waited {waited:.1f} s; {owed} {budget.per_month:.2f} a month"


def _local_logs(source: AdminSource) -> _Found:
    failing = {group: log for group, log in source.compaction.logs.items() if log.problems.lasting}
    groups = tuple(sorted(failing)[:EXAMPLES])
    if not groups:
        return 0, (), None
    first = failing[groups[0]]
    return len(failing), groups, f"{first}: {first.problems.first}"


def _leaderless(group: RaftGroup) -> bool:
    return group.leader is None and not group.is_leader


def _once(wrong: bool) -> _Found:
    return int(wrong), (), None


def _about(groups: Iterable[int]) -> _Found:
    found = sorted(groups)
    return len(found), tuple(found[:EXAMPLES]), None
