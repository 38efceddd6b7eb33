"""The moves that spread replicas over live nodes: a pure function of the state, so they go on after a crash.

Racks come first, as for new partitions: of a partition no rack has two replicas more than another that has a
node for one. Then the nodes have as many replicas as each other. Each step lowers the pair (replicas of one
partition that share a rack, squares of the nodes' counts), which is what makes them end and never go back:
a step for the counts is taken only if no rack gets worse by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from typing import Final, NamedTuple

from strandline.statemachine.controller.controller_commands import MoveReplicas
from strandline.statemachine.controller.controller_state import ControllerState
from strandline.statemachine.controller.replica_moves import below_minimum

TOLERATED: Final = 20
"""Nodes that differ by less than one in so many of what a node has on average are even: each move has a
replica's state sent, and topics come and go."""
MOST_PAIRS: Final = 256
"""Pairs of nodes that are tried for one step, those that differ most first."""
PART: Final = 2_000
"""Partitions that one part of a search looks at: some milliseconds."""


class Step(NamedTuple):
    """One replica that is to go to another node."""

    topic: str
    command: MoveReplicas
    leaves: int
    joins: int
    why: str


class Measure(NamedTuple):
    """A measure of uneven replicas; each step lowers it."""

    sharing: int
    """Pairs of replicas of one partition that are in the same rack."""
    squares: int
    """Sum of the squares of the nodes' counts."""


class Balance:
    """The state's replicas as they are, and the steps that even them out; changes nothing."""

    def __init__(self, state: ControllerState) -> None:
        self._state = state

    @property
    def on(self) -> bool:
        """Whether replicas are to move by themselves."""
        return self._state.balancing

    def waits(self) -> str | None:
        """The reason for which nothing moves now although it is on; None if there is none."""
        state = self._state
        if state.replacement is not None:
            return f"the data folder of node {state.replacement.node} is being replaced, or the node removed"
        draining = [node for node in sorted(state.draining) if state.hosted.get(node)]
        if draining:
            return f"node {draining[0]} is being drained"
        away = [node for node, known in state.nodes.items() if known.fenced]
        if away:
            return f"node {away[0]} is away: start it, or remove it (`strandline node remove`)"
        if state.moves:
            count = len(state.moves)
            return f"{count} partition{'s are' if count > 1 else ' is'} moving"
        return None

    def steps(self) -> Iterator[Step]:
        """The steps until the nodes are even, one after the other."""
        return (step for step in self.parts() if step is not None)

    def parts(self) -> Iterator[Step | None]:
        """`steps`, with None after each part of the work. To be given up when the state's version changes."""
        return _Replicas(self._state).work()

    def step(self) -> Step | None:
        """The next step, if one is to be taken now."""
        return next((step for step in self.search() if step is not None), None)

    def search(self) -> Iterator[Step | None]:
        """`step`, with None after each part of the work before. To be given up as `parts`."""
        if not self.on or self.waits() is not None:
            return
        for found in self.parts():
            yield found
            if found is not None:
                return

    def measure(self) -> Measure:
        """The measure of the replicas on nodes that may get some."""
        return _Replicas(self._state).measure()


class _Replicas:
    """The replicas of the state, moved in thought. `work` looks at them first."""

    def __init__(self, state: ControllerState) -> None:
        self._state = state
        self._rack_of = state.racks()
        self._racks = {*self._rack_of.values()}
        self._of: dict[int, tuple[int, ...]] = {}
        """By group, the nodes that have its replicas."""
        self._on: dict[int, set[int]] = {node: set() for node in self._rack_of}
        """By node, the groups that may leave it."""
        self._held = dict.fromkeys(self._rack_of, 0)
        self._led = dict.fromkeys(self._rack_of, 0)
        self._of_topic: Counter[tuple[bytes, int]] = Counter()
        self._looked = 0
        """Partitions that were looked at."""

    def _part_is_over(self) -> bool:
        self._looked += 1
        return self._looked % PART == 0

    def _look(self) -> Iterator[None]:
        """Take in the state, in parts."""
        for topic in self._state.topics.values():
            for partition in topic.partitions:
                if self._part_is_over():
                    yield
                self._of[partition.group] = partition.replicas
                fixed = below_minimum(topic, partition.replicas)
                self._led[partition.replicas[0]] = self._led.get(partition.replicas[0], 0) + 1
                for node in partition.replicas:
                    self._of_topic[topic.topic_id, node] += 1
                    if node in self._held:
                        self._held[node] += 1
                        if not fixed:
                            self._on[node].add(partition.group)

    def measure(self) -> Measure:
        for _ in self._look():
            pass
        sharing = sum(
            count * (count - 1) // 2
            for nodes in self._of.values()
            for count in self._in_racks(nodes).values()
        )
        return Measure(sharing, sum(count * count for count in self._held.values()))

    def work(self) -> Iterator[Step | None]:
        """The steps until the nodes are even, one after the other; None after each part of the work."""
        yield from self._look()
        for group in sorted(self._of):
            if self._part_is_over():
                yield None
            while (found := self._crowded(group)) is not None:
                leaves, joins, why = found
                yield self._take(group, leaves, joins, why)
        while (chosen := (yield from self._uneven())) is not None:
            yield self._take(*chosen)

    def _in_racks(self, nodes: tuple[int, ...]) -> Counter[str]:
        return Counter(self._rack_of[node] for node in nodes if node in self._rack_of)

    def _crowded(self, group: int) -> tuple[int, int, str] | None:
        """A node whose rack has too many of the replicas, a node of a rack that has fewer, and why."""
        replicas = self._of[group]
        racks = self._in_racks(replicas)
        # Nearly every group ends here; what follows looks at each node.
        if not racks or max(racks.values()) < 2 + min(racks[rack] for rack in self._racks):
            return None
        leaving = [node for node in replicas if node in self._on and group in self._on[node]]
        free = [node for node in self._rack_of if node not in replicas]
        if not leaving or not free:
            return None
        leaves = max(leaving, key=lambda node: (racks[self._rack_of[node]], self._held[node], node))
        joins = min(free, key=lambda node: (racks[self._rack_of[node]], self._held[node], node))
        full, few = self._rack_of[leaves], self._rack_of[joins]
        if racks[full] < racks[few] + 2:
            return None
        return leaves, joins, f"rack {full!r} has {racks[full]} of its replicas and rack {few!r} {racks[few]}"

    def _uneven(self) -> Generator[None, None, tuple[int, int, int, str] | None]:
        """A group whose replica makes two nodes more even, these nodes, and why; in parts."""
        for leaves, joins in self._pairs():
            there = self._rack_of[leaves], self._rack_of[joins]
            best: tuple[tuple[int, int, int, int], int] | None = None
            for group in self._on[leaves]:
                if self._part_is_over():
                    yield
                replicas = self._of[group]
                if joins in replicas:
                    continue
                racks = self._in_racks(replicas)
                sharing = 0 if there[0] == there[1] else racks[there[1]] - racks[there[0]] + 1
                if sharing > 0:
                    continue
                topic_id = self._state.places[group].topic_id
                of_topic = self._of_topic[topic_id, leaves] - self._of_topic[topic_id, joins]
                leads = (replicas[0] == leaves) == (self._led[leaves] > self._led[joins] + 1)
                rank = (sharing, -of_topic, not leads, group)
                if best is None or rank < best[0]:
                    best = (rank, group)
            if best is not None:
                why = f"node {leaves} has {self._held[leaves]} replicas and node {joins} {self._held[joins]}"
                return best[1], leaves, joins, why
        return None

    def _pairs(self) -> list[tuple[int, int]]:
        """Nodes with more and with fewer replicas, those that differ most first: the extremes of racks."""
        mean = sum(self._held.values()) // max(len(self._held), 1)
        gap = max(2, mean // TOLERATED)
        nodes: dict[str, list[int]] = {}
        for node in sorted(self._rack_of, key=lambda node: (self._held[node], node)):
            nodes.setdefault(self._rack_of[node], []).append(node)
        pairs = [(full[-1], few[0]) for full in nodes.values() for few in nodes.values()]
        apart = [pair for pair in pairs if self._held[pair[0]] - self._held[pair[1]] >= gap]
        return sorted(apart, key=lambda pair: (self._held[pair[1]] - self._held[pair[0]], pair))[:MOST_PAIRS]

    def _take(self, group: int, leaves: int, joins: int, why: str) -> Step:
        before = self._of[group]
        self._of[group] = target = tuple(joins if node == leaves else node for node in before)
        topic_id, number = self._state.places[group]
        self._on[leaves].remove(group)
        self._on[joins].add(group)
        if before[0] == leaves:
            self._led[leaves] -= 1
            self._led[joins] += 1
        for node, change in ((leaves, -1), (joins, 1)):
            self._held[node] += change
            self._of_topic[topic_id, node] += change
        command = MoveReplicas(topic_id, number, target)
        return Step(self._state.topics[topic_id].name, command, leaves, joins, why)
