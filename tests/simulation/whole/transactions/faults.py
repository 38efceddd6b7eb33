"""What is aimed at transactions: leaders lost between any two steps of the protocol, zombies, late messages.

A random crash seldom meets the moment between prepare and the markers, or between a marker here and one
there. These wait for a command to be applied first, or for a call between nodes to be made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from strandline.node.coordinator.verification import VERIFY
from strandline.node.partition.transaction_markers import METHOD as MARKERS
from strandline.node.rpc import CallFailed, Handler
from strandline.statemachine.groups.consumer_group_commands import CHANGE_CONSUMER_GROUP
from strandline.statemachine.groups.group_commands import GroupOpcode
from strandline.statemachine.internal_topics import GROUPS_KIND, TRANSACTIONS_KIND
from strandline.statemachine.partition.partition_commands import PartitionOpcode
from strandline.statemachine.transactions.transaction_commands import TransactionOpcode
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.sim_broker import SimBroker
from tests.simulation.whole.transactions.plan import STEPS
from tests.simulation.whole.transactions.writers import Transacting

PARTITION: Final = "partition"
MOMENTS: Final[tuple[tuple[str, int], ...]] = (
    (TRANSACTIONS_KIND, TransactionOpcode.INITIALIZE_PRODUCER),
    (TRANSACTIONS_KIND, TransactionOpcode.ENLIST),
    (TRANSACTIONS_KIND, TransactionOpcode.END),
    (TRANSACTIONS_KIND, TransactionOpcode.END),
    (TRANSACTIONS_KIND, TransactionOpcode.ABORT),
    (TRANSACTIONS_KIND, TransactionOpcode.COMPLETE),
    (GROUPS_KIND, GroupOpcode.START_GENERATION),
    (GROUPS_KIND, GroupOpcode.ASSIGN_GENERATION),
    (GROUPS_KIND, GroupOpcode.COMMIT_TRANSACTION_OFFSETS),
    (GROUPS_KIND, GroupOpcode.END_TRANSACTION),
    (GROUPS_KIND, CHANGE_CONSUMER_GROUP),
    (PARTITION, PartitionOpcode.END_TRANSACTION),
    (PARTITION, PartitionOpcode.END_TRANSACTION),
    (PARTITION, PartitionOpcode.APPEND),
)
"""Commands after whose first apply a leader is lost."""
METHODS: Final = (VERIFY, MARKERS)
LATE_SECONDS: Final = 4.0


class TransactionFaults:
    """`kinds` by name; `heal` ends them."""

    def __init__(self, cluster: WholeCluster, clients: Sequence[Transacting]) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self._clients = clients
        self._rng = self.world.rng("transaction faults")
        self._over = False
        self._at_call: Callable[[SimBroker, int, str, bool], None] = _nothing
        self._again = self._late = 0.0
        """Shares of calls that are carried out again later, or late."""
        before = cluster.on_broker

        def tapped(broker: SimBroker) -> None:
            before(broker)
            self._tap(broker)

        cluster.on_broker = tapped
        for broker in cluster.brokers.values():
            self._tap(broker)
        self.kinds: dict[str, Callable[[], bool]] = {
            "leader lost at a command": self._lost_at_command,
            "leader lost at a call": self._lost_at_call,
            "held client link": self._held_link,
            "frozen client": self._frozen_client,
            "calls again": self._calls_again,
            "calls late": self._calls_late,
            "coordinator moved": self._coordinator_moved,
        }
        assert set(self.kinds) == set(STEPS)

    def heal(self) -> None:
        self._over = True
        self._again = self._late = 0.0
        self._at_call = _nothing
        self.cluster.ledger.on_first = _no_command
        self.cluster.ledger.on_decision = _no_decision
        for client in self._clients:
            if client.sim.paused:
                client.sim.resume()

    def _later(self, seconds: float, undo: Callable[[], object]) -> None:
        self.world.call_later(seconds, lambda: None if self._over else undo())

    # Leaders.

    def _lost_at_command(self) -> bool:
        which, wanted = self._rng.choice(MOMENTS)
        ledger, lose = self.cluster.ledger, self._losing()

        def first(node: int, group: int, kind: int) -> None:
            if kind == wanted:
                ledger.on_first = _no_command
                lose(node, group)

        def decided(node: int, group: int, of: str, kind: int) -> None:
            if (of, kind) == (which, wanted):
                ledger.on_decision = _no_decision
                lose(node, group)

        if which == PARTITION:
            ledger.on_first = first
        else:
            ledger.on_decision = decided
        return True

    def _lost_at_call(self) -> bool:
        """Before the call is carried out, or when it is and is not answered; at either end."""
        wanted, after, caller = self._rng.choice(METHODS), self._rng.random() < 0.5, self._rng.random() < 0.5
        lose = self._losing()

        def called(broker: SimBroker, peer: int, method: str, carried_out: bool) -> None:
            if method == wanted and carried_out == after:
                self._at_call = _nothing
                lose(peer if caller else broker.node_id, 0)

        self._at_call = called
        return True

    def _losing(self) -> Callable[[int, int], None]:
        """How a node is lost: dead, cut off, paused, or not the leader any more."""
        rng = self._rng
        how = rng.choice(("kill", "kill", "power", "cut", "pause", "transfer", "transfer"))
        delay, seconds = rng.choice((0.0, 0.0, 0.001, 0.005, 0.02)), rng.choice((0.5, 1.5, 4.0))

        def lose(node: int, group: int) -> None:
            boot = self.world.nodes[node].boot

            def now() -> None:
                if not self._over and self.world.nodes[node].boot == boot and node in self.cluster.brokers:
                    self._lose(how, node, group, seconds)

            self.world.call_later(delay, now)

        return lose

    def _lose(self, how: str, node: int, group: int, seconds: float) -> None:
        sim, broker = self.world.nodes[node], self.cluster.brokers[node]
        if how in ("kill", "power"):
            self.cluster.crash(node, how)
        elif how == "pause":
            if sim.alive and not sim.paused:
                boot = sim.boot
                sim.pause()
                self._later(seconds, lambda: sim.resume() if sim.boot == boot and sim.paused else None)
        elif how == "transfer" and group in broker.host.groups:
            hosted = broker.host.groups[group]
            if hosted.is_leader:
                broker.sim.call(lambda: hosted.transfer(None))
        else:
            others = [other for other in self.cluster.plan.nodes if other != node]
            self.world.network.partition([node], others, hold=True)
            self._later(seconds, lambda: self._rejoin(node, others))

    def _rejoin(self, node: int, others: list[int]) -> None:
        for other in others:
            self.world.network.heal(node, other)

    def _coordinator_moved(self) -> bool:
        broker = self.cluster.brokers.get(self._rng.choice(self.cluster.plan.nodes))
        if broker is None or broker.sim.paused:
            return False
        groups = [replica.group for replica in broker.coordinators if replica.group.is_leader]
        if not groups:
            return False
        group = self._rng.choice(groups)
        target = self._rng.choice((None, *group.voters))
        broker.sim.call(lambda: group.transfer(target))
        return True

    # Clients.

    def _held_link(self) -> bool:
        """What a client sends to one node arrives long after it has given up."""
        client = self._rng.choice(self._clients).sim.id
        node = self._rng.choice(self.cluster.plan.nodes)
        self.world.network.cut(client, node, hold=True)
        self._later(self._rng.choice((0.5, 1.5, LATE_SECONDS)), lambda: self.world.network.heal(client, node))
        return True

    def _frozen_client(self) -> bool:
        """It stands still in the middle of whatever it does, and goes on as if nothing had happened."""
        sim = self._rng.choice(self._clients).sim
        if sim.paused:
            return False
        sim.pause()
        self._later(self._rng.choice((0.5, 1.5, LATE_SECONDS)), lambda: sim.resume() if sim.paused else None)
        return True

    # Calls between nodes.

    def _calls_again(self) -> bool:
        self._again = self._rng.choice((0.2, 0.7))
        self._later(self._rng.uniform(0.5, 2.0), lambda: setattr(self, "_again", 0.0))
        return True

    def _calls_late(self) -> bool:
        self._late = self._rng.choice((0.1, 0.5))
        self._later(self._rng.uniform(0.5, 2.0), lambda: setattr(self, "_late", 0.0))
        return True

    def _tap(self, broker: SimBroker) -> None:
        """Stand between the network and what carries calls out."""
        handlers = broker.calls._handlers
        for method in METHODS:
            handlers[method] = self._tapped(broker, method, handlers[method])

    def _tapped(self, broker: SimBroker, method: str, handler: Handler) -> Handler:
        rng = broker.sim.rng(f"taps {method}")

        async def quietly(peer: int, payload: Any) -> None:
            with suppress(CallFailed):
                await handler(peer, payload)

        def later(peer: int, payload: Any) -> None:
            broker.loop.call_later(
                rng.random() * LATE_SECONDS, lambda: broker.sim.spawn(quietly(peer, payload))
            )

        async def called(peer: int, payload: Any) -> Any:
            self._at_call(broker, peer, method, False)
            if rng.random() < self._again:
                later(peer, payload)
            if rng.random() < self._late:
                later(peer, payload)
                raise CallFailed("it is late", unknown=True)
            answer = await handler(peer, payload)
            self._at_call(broker, peer, method, True)
            return answer

        return called


def _nothing(broker: SimBroker, peer: int, method: str, carried_out: bool) -> None:
    """Nothing happens at a call."""


def _no_command(node: int, group: int, kind: int) -> None:
    """Nothing happens at a command."""


def _no_decision(node: int, group: int, which: str, kind: int) -> None:
    """Nothing happens at a coordinator's command."""
