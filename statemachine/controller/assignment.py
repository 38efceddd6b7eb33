"""Placement of a new partition's replicas: deterministic, in different racks first, even within one topic.

A rack that fails takes all its nodes with it. So the replicas of a partition lie in as many racks as they
can, as in Kafka's rack-aware assignment (KIP-36). Within that rule a topic's load is what a user sees and
tunes, so its own partitions are spread evenly next, both the replicas and the preferred leaders. What the
nodes hold of other topics only breaks ties. Nothing is moved: after nodes came or topics went, the cluster as
a whole evens out only with what is created next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple


class Load(NamedTuple):
    """Load of a node: partitions it is the preferred leader of, and all its replicas."""

    leaders: int
    replicas: int


def place(
    racks: Mapping[int, str],
    count: int,
    replication_factor: int,
    *,
    present: Iterable[Sequence[int]],
    loads: Mapping[int, Load],
) -> list[tuple[int, ...]]:
    """Choose the replicas of `count` new partitions of one topic, the preferred leader first in each.

    `racks` are the nodes that may be chosen, at least `replication_factor` of them, each with its rack; nodes
    that name none are one rack, as in Kafka. `present` are the replicas of the topic's partitions so far;
    `loads` says what each node holds in all. Of each partition the racks hold as many replicas as each other,
    to a difference of one, where they have the nodes for it. If there is one rack, and the topic's replicas
    and leaders differ by at most one between the nodes, they still do afterwards. With several racks of as
    many nodes that holds for replicas, and leaders differ by at most two.
    """
    if not 1 <= replication_factor <= len(racks):
        raise ValueError(f"{replication_factor} replicas cannot be placed on {len(racks)} nodes")
    topic = _Topic(racks, present, loads)
    return [topic.next_partition(replication_factor) for _ in range(count)]


class _Topic:
    """The replicas that each node has of one topic, while its partitions are placed one after the other."""

    def __init__(
        self, racks: Mapping[int, str], present: Iterable[Sequence[int]], loads: Mapping[int, Load]
    ) -> None:
        self._rack_of = racks
        self._nodes: dict[str, list[int]] = {}
        for node, rack in racks.items():
            self._nodes.setdefault(rack, []).append(node)
        self._loads = loads
        self._held = dict.fromkeys(racks, 0)
        self._led = dict.fromkeys(racks, 0)
        for replicas in present:
            self._count(replicas)

    def next_partition(self, replication_factor: int) -> tuple[int, ...]:
        """Place one partition."""
        share, left = self._shares(replication_factor)
        roomy = [rack for rack, nodes in self._nodes.items() if len(nodes) > share[rack]]
        # Above this fullness no rack gets one of the replicas left, or racks of one size would drift apart.
        level = sorted(map(self._fullness, roomy))[left - 1] if left else Fraction(-1)
        may_get = [rack for rack in roomy if self._fullness(rack) <= level]
        candidates = {
            rack: self._candidates(rack, share[rack] + (rack in may_get))
            for rack in self._nodes
            if share[rack] or rack in may_get
        }
        leader = min((node for nodes in candidates.values() for node in nodes), key=self._for_leading)
        # The leader's rack comes first: its node may be one that only the further replica reaches.
        may_get.sort(key=lambda rack: (rack != self._rack_of[leader], self._for_following_in(rack)))
        for rack in may_get[:left]:
            share[rack] += 1
        replicas = [leader]
        for rack, wanted in share.items():
            own = rack == self._rack_of[leader]
            others = [node for node in candidates.get(rack, ()) if node != leader]
            replicas += sorted(others, key=self._for_following)[: wanted - own]
        self._count(replicas)
        return leader, *sorted(replicas[1:], key=self._for_following)

    def _shares(self, replication_factor: int) -> tuple[dict[str, int], int]:
        """The replicas that each rack gets in any case, and those left, fewer than racks that have room."""
        share, left = dict.fromkeys(self._nodes, 0), replication_factor
        while left and left >= len(roomy := [r for r, nodes in self._nodes.items() if len(nodes) > share[r]]):
            for rack in roomy:
                share[rack] += 1
            left -= len(roomy)
        return share, left

    def _candidates(self, rack: str, wanted: int) -> list[int]:
        """The nodes of a rack that may get one of `wanted` replicas and stay even."""
        nodes = self._nodes[rack]
        level = sorted(self._held[node] for node in nodes)[wanted - 1]
        return [node for node in nodes if self._held[node] <= level]

    def _fullness(self, rack: str) -> Fraction:
        nodes = self._nodes[rack]
        return Fraction(sum(self._held[node] for node in nodes), len(nodes))

    def _for_leading(self, node: int) -> tuple[int, ...]:
        return self._led[node], self._loads[node].leaders, self._loads[node].replicas, node

    def _for_following(self, node: int) -> tuple[int, ...]:
        # Nodes that lead much follow first: those that lead little stay free to lead the next partition.
        load = self._loads[node]
        return self._held[node], -self._led[node], load.replicas, load.leaders, node

    def _for_following_in(self, rack: str) -> tuple[Fraction, tuple[int, ...]]:
        return self._fullness(rack), min(map(self._for_following, self._nodes[rack]))

    def _count(self, replicas: Sequence[int]) -> None:
        for node in replicas:
            if node in self._held:
                self._held[node] += 1
        if replicas[0] in self._led:
            self._led[replicas[0]] += 1
