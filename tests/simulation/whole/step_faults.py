"""What operators and other parts of a node do in between, and crashes aimed at one step of a node's work.

Crashes at random times seldom meet the moment between two steps: an object is stored and not yet named, a
name is gone and its object not yet, a deletion is done and nobody was told. These wait for such a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable

from strandline.node.checkpoints.checkpoint_coordinator import CheckpointUnderWay
from strandline.node.partition.fence import Permit
from strandline.node.partition.partition import Partition
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP
from strandline.statemachine.partition.epoch_window import EpochWindow
from strandline.statemachine.partition.partition_commands import AdvanceEpoch, PartitionOpcode
from tests.simulation.node import SimNode
from tests.simulation.store import Moment
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.sim_broker import SimBroker

LONGEST_LEASE_MS = 4000
_TRAPS = (
    PartitionOpcode.SET_START_OFFSET,
    PartitionOpcode.ADVANCE_EPOCH,
    PartitionOpcode.ADVANCE_RECONCILED,
    PartitionOpcode.REPLACE_LEVEL_ONE,
    PartitionOpcode.FORGET_REMOVED,
)


class StepFaults:
    """`kinds` by name. `later` undoes something after a while."""

    def __init__(
        self,
        cluster: WholeCluster,
        rng: random.Random,
        some_leader: Callable[[], tuple[SimBroker, int] | None],
        later: Callable[..., None],
    ) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self._rng = rng
        self._some_leader = some_leader
        self._later = later
        self._over = False
        self.kinds: dict[str, Callable[[], bool]] = {
            "bad gossip": self._bad_gossip,
            "deaf replica": self._deaf_replica,
            "crash at a store's answer": self._crash_at_answer,
            "crash at a command": self._crash_at_command,
            "transfer": self._transfer,
            "checkpoint": self._checkpoint,
            "fence held": self._fence_held,
            "epoch advanced": self._epoch_advanced,
        }

    def heal(self) -> None:
        """Nothing waits for its moment any more."""
        self._over = True
        self._good_gossip()
        self.cluster.mishaps.deaf.clear()

    def _bad_gossip(self) -> bool:
        """What nodes tell each other of collectable epochs is lost, late, or said again later."""
        gossip, chance = self.cluster.mishaps, self._rng.choice
        gossip.lost, gossip.late, gossip.again = chance((0.0, 0.5)), chance((0.3, 0.8)), chance((0.0, 0.5))
        self._later(self._good_gossip)
        return True

    def _deaf_replica(self) -> bool:
        """One replica hears nothing of its group for a while; of the controller's above all: a node that
        knows of old topics only."""
        node = self._rng.choice(self.cluster.plan.nodes)
        group = CONTROLLER_GROUP
        if self._rng.random() < 0.3:
            group = self._rng.choice(self.cluster.groups() or [group])
        self.cluster.mishaps.deaf[node, group] = None
        seconds = self._rng.uniform(0.5, 3.0)
        self.world.call_later(seconds, self.cluster.mishaps.deaf.pop, (node, group), None)
        return True

    def _good_gossip(self) -> None:
        gossip = self.cluster.mishaps
        gossip.lost = gossip.late = gossip.again = 0.0

    def _some_partition(self) -> tuple[SimBroker, Partition] | None:
        """A partition where it is led, on a node that runs."""
        found = self._some_leader()
        if found is None or self.world.nodes[found[0].node_id].paused:
            return None
        partition = found[0].partitions.by_group(found[1])
        return None if partition is None or not partition.leads else (found[0], partition)

    def _transfer(self) -> bool:
        leader = self._some_leader()
        if leader is None:
            return False
        group = leader[0].host.groups[leader[1]]
        target = self._rng.choice((None, *group.voters))
        leader[0].sim.call(lambda: group.transfer(target))
        return True

    def _checkpoint(self) -> bool:
        if not self.cluster.brokers:
            return False
        broker = self.cluster.brokers[self._rng.choice(sorted(self.cluster.brokers))]
        lease, seconds = self._rng.choice((0, 500, LONGEST_LEASE_MS)), self._rng.choice((0.5, 2.0))
        broker.sim.call(lambda: broker.sim.spawn(_take_checkpoint(broker, lease, seconds)))
        return True

    def _fence_held(self) -> bool:
        found = self._some_partition()
        if found is None:
            return False
        broker, partition = found
        rng = random.Random(self._rng.getrandbits(32))
        for _ in range(rng.choice((1, 2, 4))):
            epoch = broker.epoch.current() + rng.randrange(-1, 1)
            seconds = rng.random() * 0.4
            patience = rng.choice((0.01, 0.05, 5.0))
            broker.sim.call(
                lambda epoch=epoch, seconds=seconds, patience=patience: broker.sim.spawn(
                    occupy(partition, epoch, seconds, patience)
                )
            )
        return True

    def _epoch_advanced(self) -> bool:
        found = self._some_partition()
        if found is None:
            return False
        broker, partition = found

        async def advance() -> None:
            epoch = broker.epoch.current()
            await partition.execute(AdvanceEpoch(EpochWindow(0, epoch, epoch)))

        broker.sim.call(lambda: broker.sim.spawn(advance()))
        return True

    # Between two steps of what a node does in the background.

    def _crash_at_answer(self) -> bool:
        """The next node whose put to level one or deletion has ended, or is told so, dies then."""
        wanted = self._rng.choice(("put l1/", "delete l1/", "delete l0/", "delete snapshots/"))
        answered, delay = self._rng.random() < 0.7, self._rng.choice((0.0, 0.001, 0.005))
        store = self.cluster.store

        def step(node: SimNode, operation: str, key: str, moment: Moment) -> None:
            if f"{operation} {key}".startswith(wanted) and (moment == "answered") == answered:
                store.on_step = _no_step
                self._crash_soon(node.id, delay)

        store.on_step = step
        self._later(setattr, store, "on_step", _no_step)
        return True

    def _crash_at_command(self) -> bool:
        """The next node that applies such a command first, its leader as a rule, dies then or soon after."""
        wanted = self._rng.choice(_TRAPS)
        delay = self._rng.choice((0.0, 0.001, 0.005, 0.02))
        ledger = self.cluster.ledger

        def first(node: int, group: int, kind: int) -> None:
            if kind == wanted:
                ledger.on_first = _no_command
                self._crash_soon(node, delay)

        ledger.on_first = first
        self._later(setattr, ledger, "on_first", _no_command)
        return True

    def _crash_soon(self, node: int, delay: float) -> None:
        kind, boot = self._rng.choice(("kill", "power")), self.world.nodes[node].boot

        def crash() -> None:
            if not self._over and self.world.nodes[node].boot == boot:
                self.cluster.crash(node, kind)

        self.world.call_later(delay, crash)


async def occupy(partition: Partition, epoch: int, seconds: float, patience: float) -> None:
    """Keep a permit over some turns of the loop, as a writer does that waits for something."""
    try:
        async with asyncio.timeout(patience):
            granted = await partition.fence.acquire(epoch)
    except TimeoutError:
        return
    if isinstance(granted, Permit):
        try:
            await asyncio.sleep(seconds)
        finally:
            granted.release()


def _no_step(node: SimNode, operation: str, key: str, moment: Moment) -> None:
    """Nothing happens at a request to the store."""


def _no_command(node: int, group: int, kind: int) -> None:
    """Nothing happens at a command."""


async def _take_checkpoint(broker: SimBroker, lease_ms: int, seconds: float) -> None:
    """An operator's; another one may still be under way on that node."""
    with contextlib.suppress(CheckpointUnderWay):
        await broker.checkpoints.take(None, lease_ms, seconds)
