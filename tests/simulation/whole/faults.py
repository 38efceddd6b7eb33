"""What goes wrong in a run of whole nodes, when, and for how long: drawn from the seed.

Here are the network, the processes, the disks and the clocks; store_faults.py has the object store,
step_faults.py what operators do and what is aimed at one step of a node's work.

Everything ends: nodes come back, links heal, the store answers again. Links between nodes lose and double
what is sent, as in the simulation of the log; links to clients keep TCP's promise, since nothing below the
Kafka protocol would notice a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tests.simulation.faults import Faults
from tests.simulation.network import Link
from tests.simulation.whole.client import Client
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.plan import FAR_FAULTS, FAULTS
from tests.simulation.whole.sim_broker import SimBroker
from tests.simulation.whole.step_faults import StepFaults
from tests.simulation.whole.store_faults import StoreFaults


class WholeFaults(Faults):
    """Injects the plan's faults until `heal`."""

    def __init__(
        self,
        cluster: WholeCluster,
        clients: list[Client],
        more: Mapping[str, Callable[[], bool]] = MappingProxyType({}),
    ) -> None:
        """`more`: kinds that only plans of some themes name."""
        super().__init__(cluster)
        self.cluster = cluster
        self._clients = clients
        self._store = StoreFaults(cluster.store, self._rng, self._some_node, self._later)
        self._steps = StepFaults(cluster, self._rng, self._some_leader, self._later)
        self._kinds |= {
            "weather": self._weather,
            "slow mesh": self._slow_mesh,
            "pair cut": self._pair_cut,
            "isolated leader": self._isolated_leader,
            "slow client link": self._slow_client_link,
            "client reset": self._client_reset,
            "restart": lambda: self.cluster.restart(self._some_node()),
            "full disk": self._full_disk,
            "clock jump": self._clock_jump,
            **self._store.kinds,
            **self._steps.kinds,
        }
        assert set(self._kinds) == {*FAULTS, *FAR_FAULTS}
        self._kinds |= more

    def heal(self) -> None:
        """End every fault: nothing more goes wrong, and what is down comes up."""
        self.end()
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

    def _leading_node(self) -> int | None:
        leader = self._some_leader()
        return None if leader is None else leader[0].node_id

    def _some_leader(self) -> tuple[SimBroker, int] | None:
        groups = self.cluster.groups()
        if not groups:
            return None
        group = self._rng.choice(groups)
        broker = self.cluster.leader(group)
        return None if broker is None else (broker, group)

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

    def _pair_cut(self) -> bool:
        """Two nodes do not reach each other, and all others reach both."""
        a, b = self._rng.sample(self.cluster.plan.nodes, 2)
        self._cut([a], [b], hold=self._rng.random() < 0.5)
        return True

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

    # Disks.

    def _full_disk(self) -> bool:
        disk = self.world.nodes[self._some_node()].disk
        disk.fill(self._rng.choice((0, 200, 3000)))
        self._later(disk.empty)
        return True

    # Clocks.

    def _clock_jump(self) -> bool:
        return self._jumped() is not None
