"""What goes wrong in a run of whole nodes, when, and for how long: drawn from the seed.

Here are the network, the processes, the disks and the clocks; store_faults.py has the object store,
step_faults.py what operators do and what is aimed at one step of a node's work.

Everything ends: nodes come back, links heal, the store answers again. Links between nodes lose and double
what is sent, as in the simulation of the log; links to clients keep TCP's promise, since nothing below the
Kafka protocol would notice a gap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType

from tests.simulation.network import Link
from tests.simulation.whole.client import Client
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.plan import FAULTS
from tests.simulation.whole.sim_broker import SimBroker
from tests.simulation.whole.step_faults import StepFaults
from tests.simulation.whole.store_faults import StoreFaults


class Faults:
    """Injects the plan's faults until `heal`."""

    def __init__(
        self,
        cluster: WholeCluster,
        clients: list[Client],
        more: Mapping[str, Callable[[], bool]] = MappingProxyType({}),
    ) -> None:
        """`more`: kinds that only plans of some themes name."""
        self.cluster = cluster
        self.world = cluster.world
        self.counts: Counter[str] = Counter()
        self._clients = clients
        self._rng = self.world.rng("faults")
        self._over = False
        self._store = StoreFaults(cluster.store, self._rng, self._some_node, self._later)
        self._steps = StepFaults(cluster, self._rng, self._some_leader, self._later)
        self._kinds: dict[str, Callable[[], bool]] = {
            "weather": self._weather,
            "slow mesh": self._slow_mesh,
            "reset": self._reset,
            "partition": self._partition,
            "pair cut": self._pair_cut,
            "one-way cut": self._one_way_cut,
            "isolated leader": self._isolated_leader,
            "slow client link": self._slow_client_link,
            "client reset": self._client_reset,
            "kill": lambda: self._crash("kill"),
            "power cut": lambda: self._crash("power"),
            "blackout": self._blackout,
            "crash in disk operation": self._crash_in_operation,
            "restart": lambda: self.cluster.restart(self._some_node()),
            "pause": self._pause,
            "slow disk": self._slow_disk,
            "full disk": self._full_disk,
            "clock jump": self._clock_jump,
            "clock drift": self._clock_drift,
            **self._store.kinds,
            **self._steps.kinds,
        }
        assert set(self._kinds) == set(FAULTS)
        self._kinds |= more
        cluster.restart_after = lambda node: self._rng.choice((0.01, 0.1, 0.5, 1.5))

    def start(self) -> None:
        self._next()

    def _next(self) -> None:
        self.world.call_later(self._rng.expovariate(1.0 / self.cluster.plan.fault_interval), self._inject)

    def _inject(self) -> None:
        if self._over:
            return
        kind = self._rng.choice(self.cluster.plan.faults)
        if self._kinds[kind]():
            self.counts[kind] += 1
            self.world.record(0, f"fault: {kind}")
        self._next()

    def heal(self) -> None:
        """End every fault: nothing more goes wrong, and what is down comes up."""
        self._over = True
        self.cluster.restart_after = lambda node: 0.05
        self.world.network.set_all(
            loss=0.0, duplication=0.0, reorder=0.0, spike=0.0, split=0.0, delay=(0.0002, 0.002)
        )
        self.world.network.heal_all()
        self._store.heal()
        self._steps.heal()
        self.cluster.hurry()
        for node in self.cluster.plan.nodes:
            sim = self.world.nodes[node]
            self.cluster.store.heal(node)
            sim.disk.slow = 1.0
            sim.disk.empty()
            sim.disk.forget_faults()
            if sim.paused:
                sim.resume()
            self.cluster.start(node)

    # Choosing.

    def _some_node(self) -> int:
        if self._rng.random() < 0.4:
            leader = self._some_leader()
            if leader is not None:
                return leader[0].node_id
        return self._rng.choice(self.cluster.plan.nodes)

    def _some_leader(self) -> tuple[SimBroker, int] | None:
        groups = self.cluster.groups()
        if not groups:
            return None
        group = self._rng.choice(groups)
        broker = self.cluster.leader(group)
        return None if broker is None else (broker, group)

    def _duration(self) -> float:
        return self._rng.choice((0.1, 0.4, 1.0, 2.0)) * self._rng.uniform(0.5, 1.5)

    def _later(self, undo: Callable[..., object], *args: object) -> None:
        self.world.call_later(self._duration(), lambda: None if self._over else undo(*args))

    # The network.

    def _weather(self) -> bool:
        chance = self._rng.choice
        weather = {
            "loss": chance((0.0, 0.02, 0.15)),
            "duplication": chance((0.0, 0.05, 0.3)),
            "reorder": chance((0.0, 0.1, 0.5)),
            "spike": chance((0.0, 0.05, 0.2)),
            "split": chance((0.0, 0.2)),
        }
        self._set_links(weather)
        self._later(self._set_links, dict.fromkeys(weather, 0.0))
        return True

    def _slow_mesh(self) -> bool:
        """What nodes say to each other takes long, so that for a while they know different things."""
        self._set_links({"delay": self._rng.choice(((0.01, 0.06), (0.03, 0.15)))})
        self._later(self._set_links, {"delay": (0.0002, 0.002)})
        return True

    def _set_links(self, knobs: Mapping[str, object]) -> None:
        for a in self.cluster.plan.nodes:
            for b in self.cluster.plan.nodes:
                if a != b:
                    for name, value in knobs.items():
                        setattr(self.world.network.link(a, b), name, value)

    def _reset(self) -> bool:
        a, b = self._rng.sample(self.cluster.plan.nodes, 2)
        self.world.network.reset(a, b)
        return True

    def _partition(self) -> bool:
        nodes = list(self.cluster.plan.nodes)
        self._rng.shuffle(nodes)
        at = self._rng.randrange(1, len(nodes))
        self._cut(nodes[:at], nodes[at:], hold=self._rng.random() < 0.5)
        return True

    def _pair_cut(self) -> bool:
        """Two nodes do not reach each other, and all others reach both."""
        a, b = self._rng.sample(self.cluster.plan.nodes, 2)
        self._cut([a], [b], hold=self._rng.random() < 0.5)
        return True

    def _one_way_cut(self) -> bool:
        """A node is heard and hears nothing, or the other way round."""
        a = self._some_node()
        others = [node for node in self.cluster.plan.nodes if node != a]
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

    def _isolated_leader(self) -> bool:
        leader = self._some_leader()
        if leader is None:
            return False
        node = leader[0].node_id
        # From the other nodes; half of the time its clients still reach it.
        self._cut([node], [other for other in self.cluster.plan.nodes if other != node], hold=False)
        if self._rng.random() < 0.5:
            self._cut([node], [client.sim.id for client in self._clients], hold=True)
        return True

    def _cut(self, side: list[int], other: list[int], *, hold: bool) -> None:
        self.world.network.partition(side, other, hold=hold)
        self._later(self._heal_between, side, other)

    def _heal_between(self, side: list[int], other: list[int]) -> None:
        for a in side:
            for b in other:
                self.world.network.heal(a, b)

    def _slow_client_link(self) -> bool:
        client, node = self._rng.choice(self._clients).sim.id, self._some_node()
        if self._rng.random() < 0.5:
            self._cut([client], [node], hold=True)
            return True
        links = [self.world.network.link(client, node), self.world.network.link(node, client)]
        for link in links:
            link.spike, link.split = 0.5, 0.3
        self._later(self._clear, links)
        return True

    def _clear(self, links: list[Link]) -> None:
        for link in links:
            link.spike = link.split = 0.0

    def _client_reset(self) -> bool:
        self.world.network.reset(self._rng.choice(self._clients).sim.id, self._some_node())
        return True

    # Processes.

    def _crash(self, kind: str) -> bool:
        node = self._some_node()
        if not self.world.nodes[node].alive:
            return False
        self.cluster.crash(node, kind)
        return True

    def _blackout(self) -> bool:
        kind = self._rng.choice(("power", "kill"))
        for node in self.cluster.plan.nodes:
            self.cluster.crash(node, kind)
        return True

    def _crash_in_operation(self) -> bool:
        node = self._some_node()
        self.world.nodes[node].disk.crash_at(self._rng.randint(1, 25), self._rng.choice(("kill", "power")))
        if self._rng.random() < 0.3:
            self.cluster.crash(node, "kill")  # the operation is then one of recovery's
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

    # Disks.

    def _slow_disk(self) -> bool:
        disk = self.world.nodes[self._some_node()].disk
        disk.slow = self._rng.choice((5.0, 30.0, 150.0))
        self._later(lambda: setattr(disk, "slow", 1.0))
        return True

    def _full_disk(self) -> bool:
        disk = self.world.nodes[self._some_node()].disk
        disk.fill(self._rng.choice((0, 200, 3000)))
        self._later(disk.empty)
        return True

    # Clocks.

    def _clock_jump(self) -> bool:
        sim = self.world.nodes[self._some_node()]
        # Backward by little: an event loop's timers wait until its clock is again where it was.
        seconds = self._rng.choice((-0.8, -0.3, -0.05, 0.05, 0.3, 5.0))
        if sim.paused and seconds < 0:
            return False  # It would take its lease for younger than it is, and nothing could tell it.
        sim.jump_clock(seconds)
        return True

    def _clock_drift(self) -> bool:
        self.world.nodes[self._some_node()].set_drift(self._rng.uniform(-0.02, 0.02))
        return True
