"""Garbage collection as all nodes together report it: M, each partition's M(p), and what holds M back.

A node tells what it knows itself. Of a partition's M(p) the highest that any node heard is the nearest to the
truth, for it only grows; of M the lowest is the one that explains what is not deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from strandline.cluster import node_answers
from strandline.cluster.node_answers import NodeAnswers

_TOLD: Final = {
    "node",
    "cluster_epoch",
    "max_collectable_epoch",
    "held_back",
    "collector",
    "clock",
    "level_one",
}
REASONS: Final = {
    "unreconciled": "its batches wait for level one",
    "reader": "a read is under way",
    "checkpoint": "a leased checkpoint names it",
    "idle": "idle: its leader has not advanced its epoch yet",
    "no_leader": "no leader is known",
    "unheard": "its leader is not heard",
}


def ask(addresses: Sequence[str]) -> list[NodeAnswers]:
    """Every node's status and partitions; CommandFailed when none answers."""
    return node_answers.ask(addresses, "/api/gc", _TOLD)


def collectable(answers: Sequence[NodeAnswers]) -> list[dict[str, Any]]:
    """Every partition once, with the highest M(p) any node knows; the lowest of them first."""
    merged: dict[int, dict[str, Any]] = {}
    for answer in answers:
        for row in answer.partitions:
            known = merged.get(row["group"])
            if known is None or row["max_collectable_epoch"] > known["max_collectable_epoch"]:
                merged[row["group"]] = row
    return sorted(merged.values(), key=lambda row: (row["max_collectable_epoch"], row["group"]))


def lowest(answers: Sequence[NodeAnswers]) -> dict[str, Any]:
    """The status of the node whose M is the lowest; of several the one that has a reason."""
    told = [answer.status for answer in answers if answer.problem is None]
    return min(told, key=lambda status: (status["max_collectable_epoch"], status["held_back"] is None))


def why(held: dict[str, Any] | None) -> str:
    """In words, what holds M back."""
    if held is None:
        return "nothing: it follows the cluster epoch"
    said = REASONS.get(held["reason"], held["reason"])
    if held["since_ms"] is not None:
        moment = datetime.fromtimestamp(held["since_ms"] / 1000, UTC)
        said += f" since {moment.isoformat(timespec='seconds').replace('+00:00', 'Z')}"
    leader = "" if held["leader"] is None else f" (led by node {held['leader']})"
    return f"{held['topic']}-{held['partition']}{leader}: {said}"


def problems(answers: Sequence[NodeAnswers]) -> list[str]:
    """Problems for an operator, one line each."""
    found = []
    for answer in answers:
        if answer.problem is not None:
            found.append(f"{answer.address} does not answer: {answer.problem}")
            continue
        collector, level_one = answer.status["collector"], answer.status["level_one"]
        node = answer.status["node"]
        if collector["broken"] is not None:
            found.append(f"node {node}: its collector stopped: {collector['broken']}")
        if collector["last_error"] is not None:
            found.append(f"node {node}: its collector fails: {collector['last_error']}")
        if not answer.status["clock"]["trusted"]:
            found.append(f"node {node}: no majority of the nodes agrees on the time, nothing goes by its age")
        for failing in level_one["failing"]:
            found.append(
                f"node {node}: {failing['topic']}-{failing['partition']}: {'; '.join(failing['errors'])}"
            )
        more = level_one["failing_count"] - len(level_one["failing"])
        if more > 0:
            found.append(f"node {node}: and {more} more partitions")
    return found
