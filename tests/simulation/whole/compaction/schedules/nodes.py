"""Three whole brokers with one compacted partition, in calm: a set piece says what happens, and when.

What runs is the production code of whole brokers. A set piece only chooses moments: it holds a node's
ingests, rounds, publications or reports back and lets them go, starts and stops nodes, moves leadership,
loses files. What must hold at every moment is looked at as in random runs (`watch.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final, Literal

from strandline.node.compaction.manifest import Manifest
from strandline.node.compaction.replica_log import ReplicaLog
from strandline.node.config.node_config import NodeConfig
from strandline.node.partition.partition import Partition
from strandline.node.raft.group import RaftGroup
from strandline.statemachine.controller.controller_commands import CreateTopic
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.partition.partition import PartitionStateMachine
from tests.simulation.node import SimNode
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.compaction.faults import FOLDER
from tests.simulation.whole.compaction.history import Copies
from tests.simulation.whole.compaction.schedules.plan import ALL, NEVER, A
from tests.simulation.whole.compaction.watch import LogWatch
from tests.simulation.whole.objects import Place
from tests.simulation.whole.plan import Plan
from tests.simulation.whole.sim_broker import SimBroker
from tests.simulation.world import World

PATIENCE: Final = 20.0
"""Virtual seconds until a step that does not come to its end is a finding."""

Work = Literal["ingest", "round", "publish", "report", "ingested", "filtered"]
"""What can be held back on a node: the beginning of an ingest, a round, a publication or of reports; the
result of an ingest's job, or of a step of a round that filters."""


class Stuck(Exception):
    """What a set piece waits for does not come."""


class Enough(Exception):
    """All that was to be found was found."""


class StageCluster(WholeCluster):
    """Leadership stays where a set piece puts it."""

    def _config(self, sim: SimNode) -> NodeConfig:
        config = super()._config(sim)
        return replace(config, topics=replace(config.topics, leader_rebalance=False))


class Nodes:
    """The brokers, and what a set piece can do with them. Everything is said of the one partition."""

    def __init__(self, world: World, plan: Plan) -> None:
        world.network.connect_timeout = 1.0
        self.world = world
        self.cluster = StageCluster(world, plan)
        self.ledger = self.cluster.ledger
        self.ledger._stop = lambda: None
        self.cluster.restart_after = lambda node: NEVER
        self.copies = Copies(self.cluster.store, self.ledger.broken)
        self.watch = LogWatch(self.cluster, self.copies)
        self.watch.start()
        self.enough: Callable[[], bool] = lambda: False
        """Whether the set piece need not go on."""
        self.caught: set[tuple[Work, int]] = set()
        """The jobs that are done, and whose results are held back."""
        self._held: set[tuple[Work, int]] = set()
        watched = self.cluster.on_broker

        def on_broker(broker: SimBroker) -> None:
            watched(broker)
            self._put_gates(broker)

        self.cluster.on_broker = on_broker

    # Holding back.

    def hold(self, work: Work, *nodes: int) -> None:
        """Hold work back on these nodes, or on all."""
        self._held.update((work, node) for node in nodes or ALL)

    def let(self, work: Work, *nodes: int) -> None:
        """Let it go on."""
        self._held.difference_update([(work, node) for node in nodes or ALL])

    def _put_gates(self, broker: SimBroker) -> None:
        """Every gate stands before a piece of work or behind a job, where the node may be slow anyway."""
        node, upkeep, held = broker.node_id, broker.compaction, self._held
        ingest_one, next_round = upkeep._ingest_one, upkeep._next_round
        publish, look = upkeep.publisher.step, broker.reports.look
        ingest, filtered = broker.compactor.ingest, broker.compactor.filter

        async def may_ingest() -> bool:
            return False if ("ingest", node) in held else await ingest_one()

        async def may_publish() -> bool:
            return False if ("publish", node) in held else await publish()

        async def may_report(*, everything: bool = False) -> None:
            if ("report", node) not in held:
                await look(everything=everything)

        async def ingested(job: Any) -> Any:
            made = await ingest(job)
            await let_go("ingested")
            return made

        async def filters(job: Any) -> Any:
            made = await filtered(job)
            await let_go("filtered")
            return made

        async def let_go(work: Work) -> None:
            while (work, node) in held:
                self.caught.add((work, node))
                await asyncio.sleep(0.01)
            self.caught.discard((work, node))

        upkeep._ingest_one = may_ingest  # type: ignore[method-assign]
        upkeep._next_round = (  # type: ignore[method-assign]
            lambda: None if ("round", node) in held else next_round()
        )
        upkeep.publisher.step = may_publish  # type: ignore[method-assign]
        broker.reports.look = may_report  # type: ignore[method-assign]
        broker.compactor.ingest = ingested  # type: ignore[method-assign]
        broker.compactor.filter = filters  # type: ignore[method-assign]

    # Nodes.

    def begin(self) -> None:
        """Start the nodes and create the topic; the first node leads."""
        for node in self.cluster.plan.nodes:
            self.cluster.start(node)
        self.wait("nodes register", lambda: len(self.brokers) == 3 and all(self._registered(n) for n in ALL))
        broker = self.brokers[A]
        made_at = broker.controller.machine.applied_index
        command = CreateTopic(
            broker.rng.randbytes(16), "table", 1, 3, None, self.cluster.plan.topic_configs, made_at
        )
        topic = self.run(A, broker.controller.submit(command, PATIENCE))
        assert isinstance(topic, Topic), topic
        self.topic_id, self.group = topic.topic_id, topic.partitions[0].group
        self.place = Place(topic.topic_id, 0)
        self.wait("replicas are there", lambda: all(self.log(node) is not None for node in ALL))
        self.lead(A)

    @property
    def brokers(self) -> dict[int, SimBroker]:
        return self.cluster.brokers

    def _registered(self, node: int) -> bool:
        return self.brokers[node].registered

    def down(self, node: int, kind: str = "kill") -> None:
        """Kill a node, or cut its "power"; it stays away until it is started."""
        self.cluster.crash(node, kind)

    def up(self, node: int) -> None:
        """Start a node, and wait until its replica has what the others have."""
        self.cluster.start(node)
        self.wait(f"node {node} registers", lambda: node in self.brokers and self._registered(node))
        self.level(node)

    def level(self, node: int) -> None:
        """Wait until a replica has applied all there is."""
        index = max(broker.host.groups[self.group].applied for broker in self.brokers.values())

        def done() -> bool:
            hosted = self.brokers[node].host.groups.get(self.group)
            return hosted is not None and hosted.applied >= index

        self.wait(f"node {node} catches up", done)

    def lead(self, node: int) -> None:
        """Hand leadership to a node."""

        def leads() -> bool:
            leader = self.cluster.leader(self.group)
            if leader is None:
                return False
            if leader.node_id == node:
                return self.partition(node).leads
            leader.host.groups[self.group].transfer(node)
            return False

        self.wait(f"node {node} leads", leads, step=0.1)

    @property
    def leader(self) -> int:
        """The node that leads; waits until there is one."""

        def leads() -> bool:
            leader = self.cluster.leader(self.group)
            return leader is not None and self.partition(leader.node_id).leads

        self.wait("the partition is led", leads)
        leader = self.cluster.leader(self.group)
        assert leader is not None
        return leader.node_id

    def partition(self, node: int) -> Partition:
        found = self.brokers[node].partitions.by_group(self.group)
        assert found is not None, f"node {node} has no replica"
        return found

    def raft(self, node: int) -> RaftGroup:
        return self.brokers[node].host.groups[self.group]

    def deaf(self, node: int, *, is_so: bool = True) -> None:
        """Have a node hear nothing of the partition's log, while it hears all else."""
        if is_so:
            self.cluster.mishaps.deaf[node, self.group] = None
        else:
            self.cluster.mishaps.deaf.pop((node, self.group), None)

    def leave(self, node: int) -> None:
        """Leave a node out of the partition's members."""
        self._member(node, joins=False)

    def join(self, node: int) -> None:
        """Let a node in again; returns once it has a vote."""
        self._member(node, joins=True)

    def _member(self, node: int, *, joins: bool) -> None:
        def done() -> bool:
            raft = self.raft(self.leader)
            if (node in raft.configuration.voters) is joins and raft.configuration.index <= raft.commit:
                return True
            if raft.change is None:
                (raft.add_member if joins else raft.remove_member)(node)
            return False

        self.wait(f"node {node} {'joins' if joins else 'leaves'}", done, step=0.1)

    # Files.

    def lose_log(self, node: int) -> None:
        """Take away the local log of a node that is down, as if it had never been there."""
        disk = self.world.nodes[node].disk
        assert node not in self.brokers
        for name in [name for name in disk._names if name.startswith(FOLDER)]:
            disk._names.pop(name, None)
            disk._durable_names.pop(name, None)
        disk._pending[:] = [one for one in disk._pending if not one[1].startswith(FOLDER)]
        self.watch.lost(node)

    def forget_unsynced(self, node: int) -> None:
        """Let a power cut cost every name on a node's disk that is not synced."""
        disk = self.world.nodes[node].disk
        disk._names = dict(disk._durable_names)
        disk._pending.clear()

    def rot(self, node: int) -> None:
        """Have a node find one of its local log's files damaged: it makes the log anew."""
        log = self.log(node)
        assert log is not None
        self.watch.rots(node, f"{log.folder}/any")
        resets = log.resets
        log.damaged("a set piece has damaged it")
        self.wait(f"node {node} makes its log anew", lambda: log.resets > resets)

    # Time.

    def pass_time(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)

    def wait(
        self, what: str, done: Callable[[], bool], seconds: float = PATIENCE, step: float = 0.02
    ) -> None:
        there = self.world.run_until(lambda: done() or self.enough(), timeout=seconds, step=step)
        if self.enough():
            raise Enough
        if not there:
            raise Stuck(f"{what}: not within {seconds:.0f} s; {self.cluster.describe()}; {self.describe()}")

    def run(self, node: int, coro: Coroutine[Any, Any, Any]) -> Any:
        """The result of a coroutine on a node."""
        task = self.world.nodes[node].spawn(coro)
        self.wait(f"node {node} answers", task.done)
        return task.result()

    def describe(self) -> str:
        found = []
        for node in ALL:
            log = self.log(node)
            found.append(f"log {node}: {None if log is None or log.log is None else log.log.manifest[1:6]}")
        return f"{'; '.join(found)}; {self.machine.removals.fields()}"

    # State.

    @property
    def machine(self) -> PartitionStateMachine:
        """The newest committed state."""
        found = self.ledger.objects.newest(self.group)
        assert found is not None
        return found

    def log(self, node: int) -> ReplicaLog | None:
        broker = self.brokers.get(node)
        return None if broker is None else broker.compaction.log_of(self.group)

    def manifest(self, node: int) -> Manifest | None:
        log = self.log(node)
        return None if log is None or log.log is None else log.log.manifest
