"""Problems between two nodes, each reported in one line, and once per interval.

A misconfigured peer dials again every second and a hostile one every millisecond: each occurrence is
counted, but the operator reads one line per cause and interval.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

_MAX_CAUSES: Final = 256  # distinct causes remembered, hence reported, in one interval


class MeshReason(StrEnum):
    """The reason of a problem between two nodes: a counter of the mesh, and the word in a REFUSE frame."""

    WRONG_SECRET = "wrong_secret"
    WRONG_CLUSTER = "wrong_cluster_id"
    WRONG_VERSION = "wrong_version"
    OWN_NODE_ID = "own_node_id"
    UNKNOWN_NODE = "unknown_node_id"
    DUPLICATE_NODE = "duplicate_node_id"
    OTHER_NODE = "other_node"
    OTHER_FOLDER = "other_folder"
    NOT_NOTED = "not_noted"
    WRONG_DIRECTION = "wrong_direction"
    GARBAGE = "garbage"
    OVERSIZED = "oversized"
    NO_TLS = "no_tls"
    HANDSHAKE_TIMEOUT = "handshake_timeout"
    HANDSHAKE_DROPPED = "handshake_dropped"
    CROWDED = "crowded"
    SILENT = "silent"
    UNREACHABLE = "unreachable"
    ALONE = "alone"


TOLD: Final = {
    MeshReason.WRONG_SECRET: "it says this node's cluster secret is wrong: give every node the same secret",
    MeshReason.WRONG_CLUSTER: "it belongs to another cluster: correct cluster_id or the peer's address",
    MeshReason.WRONG_VERSION: "it speaks no mesh protocol version of this node: upgrade the older of the two",
    MeshReason.UNKNOWN_NODE: (
        "it does not know this node's id: first add the node to the cluster (cluster.seeds), or correct it"
    ),
    MeshReason.OTHER_FOLDER: (
        "it knows this node by another data folder, whose votes and acknowledged entries this one lacks, or"
        " the node was removed: bring that folder back, or let an empty one in with `strandline node replace`"
        " and this node's id"
    ),
    MeshReason.DUPLICATE_NODE: "another running process has this node's id: stop it, or change its node_id",
    MeshReason.OTHER_NODE: "it is another node than the one dialled: correct the peer's address",
    MeshReason.OWN_NODE_ID: "it has this node's own id: change its node_id, or correct the peer's address",
    MeshReason.WRONG_DIRECTION: "it is the one that has to dial: correct the peer's address or node_id",
}
"""Meaning of the reason in a REFUSE frame for the node that is refused."""


TLS_CURE: Final = "give every node a mesh.certificate of an authority in mesh.ca, not expired, and its key"


@dataclass(frozen=True)
class MeshProblem:
    """One problem; `str()` is the line for the operator. `fatal` means this node must not go on."""

    reason: MeshReason
    text: str
    peer: int | None
    """Node id the problem is about; before authentication only what the other side claims."""
    address: str
    """Host of the other side, with the port if this node dialled it."""
    fatal: bool = False
    repeats: int = 0
    """Unreported occurrences of the same problem since its last report."""

    def __str__(self) -> str:
        again = f" ({self.repeats} more since the last report)" if self.repeats else ""
        return f"mesh: {self.reason}: {self.text}{again}"


class ProblemLog:
    """Counts every problem, reports each cause at most once per interval (seconds)."""

    def __init__(
        self,
        *,
        time: Callable[[], float],
        interval: float,
        counters: dict[str, int],
        report: Callable[[MeshProblem], None],
    ) -> None:
        self._time = time
        self._interval = interval
        self._counters = counters
        self._report = report
        self._causes: dict[tuple[MeshReason, int | None, str, bool], tuple[float, int]] = {}
        counters.update({str(reason): 0 for reason in MeshReason})
        counters["problems_suppressed"] = 0

    def add(self, problem: MeshProblem) -> None:
        """Count it, and report it, unless its cause or too many others were within the interval."""
        self._counters[problem.reason] += 1
        now = self._time()
        cause = (problem.reason, problem.peer, problem.address, problem.fatal)
        known = self._causes.get(cause)
        if known is not None and now - known[0] < self._interval:
            self._causes[cause] = (known[0], known[1] + 1)
        elif known is not None or self._has_room(now) or problem.fatal:
            self._causes[cause] = (now, 0)
            self._report(replace(problem, repeats=known[1] if known else 0))
            return
        self._counters["problems_suppressed"] += 1

    def _has_room(self, now: float) -> bool:
        if len(self._causes) >= _MAX_CAUSES:
            self._causes = {
                cause: seen for cause, seen in self._causes.items() if now - seen[0] < self._interval
            }
        return len(self._causes) < _MAX_CAUSES
