"""Compaction as all nodes together report it: each partition once, with its leader's view and all local logs.

A node tells of its own local log; what holds removal back is known to the leader. Two nodes may both believe
that they lead: the one with the higher term is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from strandline.cluster import node_answers
from strandline.cluster.node_answers import NodeAnswers

MAX_PROBLEMS: Final = 20
"""Failing local logs that are told one by one."""
_TOLD: Final = {"node", "logs", "resets", "entries", "clock_trusted", "failing_count", "failing"}


@dataclass(slots=True)
class Partition:
    """One compacted partition."""

    topic: str
    number: int
    leads: int | None = None
    """Node of the leader, of those that answered."""
    state: dict[str, Any] = field(default_factory=dict)
    """Its row of the leader; without one, of the replica with the highest offsets of removal."""
    locals: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By node, the local log there."""

    @property
    def leader(self) -> dict[str, Any] | None:
        """The leader's view of all copies."""
        found: dict[str, Any] | None = self.state["leader"]
        return found

    @property
    def held_seconds(self) -> float:
        """For how long removal of tombstones or markers has been held back; without a leader, for ever."""
        if self.leader is None:
            return float("inf")
        held = self.leader["tombstones_held"], self.leader["markers_held"]
        return max((one["seconds"] for one in held if one is not None), default=0.0)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        state = {name: value for name, value in self.state.items() if name not in ("local", "leader")}
        logs = [{"node": node, **self.locals[node]} for node in sorted(self.locals)]
        return {**state, "leading_node": self.leads, "leader": self.leader, "local_logs": logs}


def ask(addresses: Sequence[str], topic: str | None) -> list[NodeAnswers]:
    """Every node's status and partitions; CommandFailed when none answers."""
    return node_answers.ask(addresses, "/api/compaction", _TOLD, topic)


def partitions(answers: Iterable[NodeAnswers]) -> list[Partition]:
    """Every partition once, the longest held back first."""
    found: dict[int, Partition] = {}
    for answer in answers:
        for row in answer.partitions:
            known = found.setdefault(row["group"], Partition(row["topic"], row["partition"], state=row))
            known.locals[answer.status["node"]] = row["local"]
            if _rank(row) > _rank(known.state) or known.state is row:
                known.state = row
                known.leads = None if row["leader"] is None else answer.status["node"]
    return sorted(found.values(), key=lambda one: (-one.held_seconds, one.topic, one.number))


def _rank(row: dict[str, Any]) -> tuple[int, int, int]:
    return (-1 if row["leader"] is None else row["leader"]["term"], row["mtro"], row["mxro"])


def held_by(held: dict[str, Any] | None, copies: Sequence[dict[str, Any]]) -> str:
    """In words, the copies that hold removal back; of replicas that have not reported it says so."""
    if held is None:
        return "-"
    silent = {copy["node"] for copy in copies if copy["mcco"] is None}
    names = ["level one"] if held["level_one"] else []
    names += [f"node {node}{' (no report)' if node in silent else ''}" for node in held["nodes"]]
    return f"{', '.join(names)}, {_span(held['seconds'])}"


def _span(seconds: float) -> str:
    """A duration with its two largest units."""
    for size, unit, smaller, below in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} {seconds % size // smaller:.0f} {below}"
    return f"{seconds:.0f} s"


def problems(answers: Iterable[NodeAnswers], found: Iterable[Partition]) -> list[str]:
    """Problems for an operator, one line each."""
    told = []
    for answer in answers:
        if answer.problem is not None:
            told.append(f"{answer.address} does not answer: {answer.problem}")
            continue
        if not answer.status["clock_trusted"]:
            node = answer.status["node"]
            told.append(f"node {node}: no majority of the nodes agrees on the time, no tombstone ripens")
    failing = []
    for one in found:
        name = f"{one.topic}-{one.number}"
        for node, local in one.locals.items():
            if local["problem"] is not None:
                failing.append(f"node {node}: local log of {name}: {local['problem']}")
        if one.leader is None:
            continue
        if one.leader["error"] is not None:
            failing.append(f"{name}: the last entry of its leader: {one.leader['error']}")
        if one.leader["publication_error"] is not None:
            failing.append(f"{name}: level one is not published: {one.leader['publication_error']}")
    told += failing[:MAX_PROBLEMS]
    if len(failing) > MAX_PROBLEMS:
        told.append(f"and {len(failing) - MAX_PROBLEMS:,} more like these")
    return told
