"""Faults of any simulation: when the next comes, how long it lasts, and those that hurt every cluster alike.

A plan names kinds of fault; a kind is a method that injects it and says whether it could. Subclasses add the
kinds of their own cluster. Everything that is drawn comes from the seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tests.simulation.world import World

CALM: Mapping[str, object] = {
    "loss": 0.0, "duplication": 0.0, "reorder": 0.0, "spike": 0.0, "split": 0.0, "delay": (0.0002, 0.002),
}  # fmt: skip
"""Links between nodes while no fault touches them."""


class FaultPlan(Protocol):
    """What a seed's plan says about faults."""

    @property
    def nodes(self) -> tuple[int, ...]: ...
    @property
    def faults(self) -> tuple[str, ...]: ...
    @property
    def fault_interval(self) -> float:
        """Mean time between two faults, in seconds."""


class FaultyCluster(Protocol):
    """A cluster whose machines can be hurt."""

    world: World
    restart_after: Callable[[int], float]
    """How long a node that went down stays down, in seconds."""

    @property
    def plan(self) -> FaultPlan: ...
    def start(self, node: int) -> None: ...
    def crash(self, node: int, kind: str) -> None: ...


class Faults:
    """Injects the plan's faults until `end`."""

    def __init__(self, cluster: FaultyCluster) -> None:
        self.world = cluster.world
        self.counts: Counter[str] = Counter()
        self._machines = cluster
        self._rng = self.world.rng("faults")
        self._over = False
        self._kinds: dict[str, Callable[[], bool]] = {
            "reset": self._reset,
            "partition": self._partition,
            "one-way cut": self._one_way_cut,
            "kill": lambda: self._crash("kill"),
            "power cut": lambda: self._crash("power"),
            "blackout": self._blackout,
            "crash in disk operation": self._crash_in_operation,
            "pause": self._pause,
            "slow disk": self._slow_disk,
            "clock drift": self._clock_drift,
        }
        cluster.restart_after = lambda node: self._rng.choice((0.01, 0.1, 0.5, 1.5))

    @property
    def nodes(self) -> tuple[int, ...]:
        return self._machines.plan.nodes

    def start(self) -> None:
        self._next()

    def _next(self) -> None:
        delay = self._rng.expovariate(1.0 / self._machines.plan.fault_interval)
        self.world.call_later(delay, self._inject)

    def _inject(self) -> None:
        if self._over:
            return
        kind = self._rng.choice(self._machines.plan.faults)
        if self._kinds[kind]():
            self.counts[kind] += 1
            self.world.record(0, f"fault: {kind}")
        self._next()

    def end(self) -> None:
        """Let nothing more go wrong: links are whole, and nodes that go down come up at once."""
        self._over = True
        self._machines.restart_after = lambda node: 0.05
        self.world.network.set_all(**CALM)
        self.world.network.heal_all()

    # Choosing.

    def _leading_node(self) -> int | None:
        """A node that leads something, if there is one."""
        raise NotImplementedError

    def _some_node(self) -> int:
        """A node; often one that leads something, because that is where it hurts."""
        if self._rng.random() < 0.4:
            leader = self._leading_node()
            if leader is not None:
                return leader
        return self._rng.choice(self.nodes)

    def _duration(self) -> float:
        return self._rng.choice((0.1, 0.4, 1.0, 2.0)) * self._rng.uniform(0.5, 1.5)

    def _later(self, undo: Callable[..., object], *args: object) -> None:
        self.world.call_later(self._duration(), lambda: None if self._over else undo(*args))

    # The network.

    def _reset(self) -> bool:
        a, b = self._rng.sample(self.nodes, 2)
        self.world.network.reset(a, b)
        return True

    def _partition(self) -> bool:
        nodes = list(self.nodes)
        self._rng.shuffle(nodes)
        at = self._rng.randrange(1, len(nodes))
        self._cut(nodes[:at], nodes[at:], hold=self._rng.random() < 0.5)
        return True

    def _cut(self, side: Sequence[int], other: Sequence[int], *, hold: bool) -> None:
        """Cut two sides off from each other for a while; `hold` what is sent, or drop it."""
        self.world.network.partition(side, other, hold=hold)
        self._later(self._heal_between, side, other)

    def _heal_between(self, side: Sequence[int], other: Sequence[int]) -> None:
        for a in side:
            for b in other:
                self.world.network.heal(a, b)

    def _one_way_cut(self) -> bool:
        """A node is heard and hears nothing, or the other way round."""
        a = self._some_node()
        others = [node for node in self.nodes if node != a]
        targets = self._rng.sample(others, self._rng.randint(1, len(others)))
        inbound, hold = self._rng.random() < 0.5, self._rng.random() < 0.5
        links = [(b, a) if inbound else (a, b) for b in targets]
        for source, target in links:
            self.world.network.cut(source, target, both=False, hold=hold)
        self._later(self._heal_links, links)
        return True

    def _heal_links(self, links: list[tuple[int, int]]) -> None:
        for source, target in links:
            self.world.network.heal(source, target, both=False)

    # Processes.

    def _crash(self, kind: str) -> bool:
        node = self._some_node()
        if not self.world.nodes[node].alive:
            return False
        self._machines.crash(node, kind)
        return True

    def _blackout(self) -> bool:
        kind = self._rng.choice(("power", "kill"))
        for node in self.nodes:
            self._machines.crash(node, kind)
        return True

    def _crash_in_operation(self) -> bool:
        node = self._some_node()
        self.world.nodes[node].disk.crash_at(self._rng.randint(1, 25), self._rng.choice(("kill", "power")))
        if self._rng.random() < 0.3:
            self._machines.crash(node, "kill")  # the operation is then one of recovery's
            self.world.nodes[node].disk.crash_at(self._rng.randint(1, 15), "power")
        return True

    def _pause(self) -> bool:
        sim = self.world.nodes[self._some_node()]
        if not sim.alive or sim.paused:
            return False
        sim.pause()
        boot = sim.boot
        self._later(lambda: sim.resume() if sim.boot == boot and sim.alive else None)
        return True

    # Disks and clocks.

    def _slow_disk(self) -> bool:
        disk = self.world.nodes[self._some_node()].disk
        disk.slow = self._rng.choice((5.0, 30.0, 150.0))
        self._later(lambda: setattr(disk, "slow", 1.0))
        return True

    def _jumped(self) -> tuple[int, float] | None:
        """Let the clock of a node jump: which, by how many seconds; none that stands still is put back."""
        sim = self.world.nodes[self._some_node()]
        # Backward by little: an event loop's timers wait until its clock is again where it was.
        seconds = self._rng.choice((-0.8, -0.3, -0.05, 0.05, 0.3, 5.0))
        if sim.paused and seconds < 0:
            return None  # It would take its lease for younger than it is, and nothing could tell it.
        sim.jump_clock(seconds)
        return sim.id, seconds

    def _clock_drift(self) -> bool:
        self.world.nodes[self._some_node()].set_drift(self._rng.uniform(-0.02, 0.02))
        return True
