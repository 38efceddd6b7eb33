"""The replicas that a topic's partitions get when its replication factor changes: a pure choice.

Racks come first, as for new partitions (`statemachine/controller/assignment.py`): a rack that fails takes all
its nodes with it. Then the topic is spread over the nodes, then all that the nodes hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence


def with_factor(
    partitions: Iterable[Sequence[int]], factor: int, racks: Mapping[int, str], totals: Mapping[int, int]
) -> list[tuple[int, ...]]:
    """Choose the replicas of each partition of a topic, its preferred leader first, as many as `factor`.

    `racks` are the nodes that may get replicas, each with its rack; `totals` says what each node holds of all
    topics. A replica stays where it is unless there are too many: then those on nodes that are away go first,
    and the preferred leader goes only if it is on such a node. Raises ValueError if a partition has no node
    for another replica.
    """
    chosen = [list(replicas) for replicas in partitions]
    of_topic = Counter(node for replicas in chosen for node in replicas)
    held = Counter(totals)
    for replicas in chosen:
        while len(replicas) > factor:
            node = _leaving(replicas, racks, of_topic, held)
            replicas.remove(node)
            of_topic[node] -= 1
            held[node] -= 1
        while len(replicas) < factor:
            node = _joining(replicas, racks, of_topic, held)
            replicas.append(node)
            of_topic[node] += 1
            held[node] += 1
    return [tuple(replicas) for replicas in chosen]


def _joining(
    replicas: Sequence[int], racks: Mapping[int, str], of_topic: Mapping[int, int], held: Mapping[int, int]
) -> int:
    free = [node for node in racks if node not in replicas]
    if not free:
        raise ValueError(f"no node is left for another replica beside {', '.join(map(str, replicas))}")
    there = Counter(racks[node] for node in replicas if node in racks)
    return min(free, key=lambda node: (there[racks[node]], of_topic[node], held[node], node))


def _leaving(
    replicas: Sequence[int], racks: Mapping[int, str], of_topic: Mapping[int, int], held: Mapping[int, int]
) -> int:
    away = [node for node in replicas if node not in racks]
    there = Counter(racks[node] for node in replicas if node in racks)
    return max(
        away or replicas[1:],
        key=lambda node: (there[racks[node]] if node in racks else 0, of_topic[node], held[node], node),
    )
