"""Placement of a new partition's replicas: deterministic, and even within one topic to a difference of one.

A topic's load is what a user sees and tunes, so its own partitions are spread evenly first, both the
replicas and the preferred leaders; what the nodes hold of other topics only breaks ties. Nothing is moved:
after nodes came or topics went, the cluster as a whole evens out only with what is created next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Load(NamedTuple):
    """Load of a node: partitions it is the preferred leader of, and all its replicas."""

    leaders: int
    replicas: int


def place(
    nodes: Sequence[int],
    count: int,
    replication_factor: int,
    *,
    present: Iterable[Sequence[int]],
    loads: Mapping[int, Load],
) -> list[tuple[int, ...]]:
    """Choose the replicas of `count` new partitions of one topic, the preferred leader first in each.

    `nodes` are those that may be chosen, at least `replication_factor` of them; `present` are the replicas
    of the topic's partitions so far; `loads` says what each node holds in all. If the topic's replicas and
    leaders differ by at most one between these nodes, they still do afterwards.
    """
    if not 1 <= replication_factor <= len(nodes):
        raise ValueError(f"{replication_factor} replicas cannot be placed on {len(nodes)} nodes")
    held = dict.fromkeys(nodes, 0)
    led = dict.fromkeys(nodes, 0)
    for replicas in present:
        for node in replicas:
            if node in held:
                held[node] += 1
        if replicas[0] in led:
            led[replicas[0]] += 1

    def for_leading(node: int) -> tuple[int, ...]:
        return led[node], loads[node].leaders, loads[node].replicas, node

    def for_following(node: int) -> tuple[int, ...]:
        # Nodes that lead much follow first: those that lead little stay free to lead the next partition.
        return held[node], -led[node], loads[node].replicas, loads[node].leaders, node

    placed: list[tuple[int, ...]] = []
    for _ in range(count):
        # Above this level no node may get a replica, or the replicas would drift apart by more than one.
        level = sorted(held.values())[replication_factor - 1]
        candidates = [node for node in nodes if held[node] <= level]
        leader = min(candidates, key=for_leading)
        candidates.remove(leader)
        replicas = (leader, *sorted(candidates, key=for_following)[: replication_factor - 1])
        led[leader] += 1
        for node in replicas:
            held[node] += 1
        placed.append(replicas)
    return placed
