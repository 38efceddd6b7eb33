"""Three whole simulated nodes for a scene: its players do one step after the other, nothing is drawn by lot.

The nodes are production code, the players speak Kafka's protocol over simulated connections. At the end all
partitions and coordinators publish a checkpoint, and the simulated store is written to a folder: what audits
see then is what was stored, whatever the players were told.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from strandline.node.config.node_config import CacheSection, CollectorSection, GroupsSection, LevelOneSection
from strandline.node.level_zero.batcher_config import BatcherConfig
from strandline.node.objectstore.retries import RetryPolicy
from strandline.node.raft.config import RaftConfig
from strandline.node.raft.mesh.config import MeshConfig
from strandline.node.raft.wal.write_ahead_log import WalConfig
from strandline.statemachine.groups.groups import GroupsMachine
from strandline.statemachine.transactions.transaction_commands import LAST_EPOCH
from tests.histories.history import History, Read
from tests.histories.history import Place as Named
from tests.simulation.three_fences.task import GROUP, PARTITIONS, Task
from tests.simulation.whole.checks import contents
from tests.simulation.whole.client import Directory, TopicKnown
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.objects import Place
from tests.simulation.whole.operator import Operator
from tests.simulation.whole.pace import paced
from tests.simulation.whole.plan import Plan
from tests.simulation.whole.service import Service
from tests.simulation.whole.sim_broker import SimBroker
from tests.simulation.whole.transactions.checks import coordinators, still_open
from tests.simulation.whole.transactions.followers import Follower
from tests.simulation.whole.transactions.journal import Journal
from tests.simulation.whole.transactions.load import Load
from tests.simulation.whole.transactions.plan import transactional_plan
from tests.simulation.world import World

CLUSTER: Final = "simulated"
STEP_SECONDS: Final = 30.0
"""No step of a scene takes longer."""
QUIET_SECONDS: Final = 75.0
"""Before the checkpoint: audits do not miss what is younger than a minute."""
LEASE_MS: Final = 3_600_000


def _plan(protocol: str) -> Plan:
    load = Load(
        writers=0, workers=0, protocol=protocol, static=False, followers=1, timeouts=(30.0,), aborts=0.0,
        dawdle=0.0, patience=20.0, answer_seconds=2.5, last_epoch=LAST_EPOCH, session=1.0,
    )  # fmt: skip
    return replace(
        transactional_plan(0),
        theme="three fences",
        nodes=(1, 2, 3),
        topics=(PARTITIONS, PARTITIONS),
        faults=(),
        epoch_seconds=2.0,
        tick_seconds=0.25,
        seconds_to_answer=3.0,
        store_delay=(0.001, 0.01),
        batching=BatcherConfig(linger_seconds=0.0),
        cache=CacheSection(),
        retries=RetryPolicy(),
        raft=RaftConfig(),
        wal=WalConfig(segment_bytes=1 << 16),
        mesh=MeshConfig(),
        level_one=LevelOneSection(reconcile_seconds=3600.0),
        collector=CollectorSection(grace_seconds=3600.0),
        look_seconds=1.0,
        tell_seconds=1.0,
        retention_seconds=60.0,
        shrinking=0.0,
        checkpoints_kept=3,
        load=load,
        coordinators=1,
        groups=GroupsSection(
            initial_rebalance_delay_seconds=0.1, min_session_seconds=0.5,
            consumer_session_seconds=1.0, consumer_heartbeat_seconds=0.3,
        ),
    )  # fmt: skip


class Stage:
    """One scene's cluster, players and topics; `version` is that of transactions (KIP-890 is 2)."""

    def __init__(self, world: World, version: int, protocol: str) -> None:
        self.world = world
        self.version = version
        self.cluster = WholeCluster(world, _plan(protocol))
        self.journal = Journal(lambda: world.now)
        self.directory = Directory()
        self.tasks: list[Task] = []
        self._machine = 100
        world.network.connect_timeout = 1.0
        for node in self.cluster.plan.nodes:
            self.cluster.start(node)
        self.until("the nodes register", self._registered)
        operator = Operator(self.cluster, self.directory, 100)
        self.until("there are topics", lambda: operator.ready)
        for topic in self.directory.topics:
            topic.stable = True
        self.input, self.output = self.directory.topics
        self.reader = Follower(self.cluster, self.directory, "reader", self._next(), self.journal)
        self.reader.hurry()

    def _next(self) -> int:
        self._machine += 1
        return self._machine

    def _registered(self) -> bool:
        brokers = self.cluster.brokers
        return len(brokers) == len(self.cluster.plan.nodes) and all(
            broker.registered for broker in brokers.values()
        )

    def until(self, what: str, done: Callable[[], bool]) -> None:
        """Let the world run until so far; it has to come to that."""
        assert self.world.run_until(done, timeout=STEP_SECONDS, step=0.005), f"never: {what}"

    def task(self, name: str, transactional_id: str) -> Task:
        task = Task(
            self.cluster, self.directory, name, self._next(), self.journal, transactional_id, self.version
        )
        self.tasks.append(task)
        return task

    def begin(self, task: Task, step: Coroutine[Any, Any, Any]) -> Callable[[], Any]:
        """Let a player begin a step; what is returned waits for its end, and has its result."""
        task.sim.call(lambda: task.tasks.append(task.sim.spawn(step)))
        number = len(task.tasks)

        def ended() -> Any:
            self.until("the step ends", lambda: len(task.tasks) > number and task.tasks[number].done())
            return task.tasks[number].result()

        return ended

    def do(self, task: Task, step: Coroutine[Any, Any, Any]) -> Any:
        """Let a player do a step to its end."""
        return self.begin(task, step)()

    def leader(self, topic: TopicKnown, partition: int) -> SimBroker:
        """The node that leads a partition."""
        known = self.cluster.newest().controller.machine.topic(topic.name)
        assert known is not None
        broker = self.cluster.leader(known.partitions[partition].group)
        assert broker is not None
        return broker

    def end_offset(self, topic: TopicKnown, partition: int) -> int:
        """Where the partition's log ends, at its leader."""
        replica = self.leader(topic, partition).partitions.get(topic.topic_id, partition)
        assert replica is not None
        return replica.machine.high_watermark

    def is_longer(self, topic: TopicKnown, partition: int, than: int) -> bool:
        return self.end_offset(topic, partition) > than

    def feed(self, partition: int, value: str) -> Read:
        """One more committed input, and the record as it is read."""
        source = next((task for task in self.tasks if task.name == "source"), None)
        if source is None:
            source = self.task("source", "source")
            self.do(source, source.start())
        source.begin()
        self.do(source, source.send(self.input, partition, value))
        self.do(source, source.end())
        place = Named(self.input.name, partition)
        self.until(
            f"{value} can be read",
            lambda: any(read.value == value for read in self.reader.found.get(place, ())),
        )
        return self.reader.found[place][-1]

    # What came of it.

    def log(self, topic: TopicKnown) -> list[list[str]]:
        """The values in the log of each partition, those of aborted transactions as well."""
        found = contents(self.cluster)
        return [
            [
                read.value
                for offset, batch in found[Place(topic.topic_id, number)].batches
                for read in self.journal.reads(topic.name, offset, batch)
            ]
            for number in range(topic.partitions)
        ]

    def visible(self, topic: TopicKnown) -> list[list[str]]:
        """What a reader of committed records was given of each partition."""
        return [
            [read.value for read in self.reader.found.get(Named(topic.name, number), ())]
            for number in range(topic.partitions)
        ]

    def offsets(self) -> dict[int, int]:
        """The group's committed offsets in the input."""
        for _, machine in coordinators(self.cluster):
            if isinstance(machine, GroupsMachine) and GROUP in machine.groups:
                rows = machine.groups[GROUP].offsets.committed.get(self.input.topic_id, {})
                return {partition: row.offset for partition, row in sorted(rows.items())}
        return {}

    def settle(self) -> None:
        """Wait until nothing is open any more, and the reader has all there is."""
        self.until("transactions end", lambda: still_open(self.cluster, "") is None)
        places = [(topic, number) for topic in self.directory.topics for number in range(topic.partitions)]
        self.until(
            "the reader has read all",
            lambda: all(
                self.reader.positions.get(Place(topic.topic_id, number), 0) == self.end_offset(topic, number)
                for topic, number in places
            ),
        )

    def history(self) -> History:
        """What all clients did and saw, for the checker."""
        history = self.journal.history
        history.committed = self.reader.found
        history.inputs = [
            read.value
            for read in (one for transaction in history.transactions for one in transaction.consumed)
        ]
        return history

    def publish(self, folder: Path) -> None:
        """A checkpoint of everything after a quiet time, and the store as a folder."""
        self.world.run(self.world.now + QUIET_SECONDS)
        service = Service(self.cluster)
        self.until("all are in service", lambda: service.missing() is None)
        broker = self.cluster.newest()
        taken: list[Any] = []

        async def take() -> None:
            taken.append(await broker.checkpoints.take(None, LEASE_MS, 20.0))

        broker.sim.call(lambda: broker.sim.spawn(take()))
        self.until("the checkpoint is published", lambda: bool(taken))
        assert taken[0].complete, taken[0].as_dict()
        for name, data in self.cluster.store.objects.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def close(self) -> None:
        for client in (*self.tasks, self.reader):
            client.stop()
            client.close()


@contextmanager
def stage(version: int = 2, protocol: str = "classic") -> Iterator[Stage]:
    """Set it up, and take it down whatever happened."""
    with World(1) as world, paced(_plan(protocol)):
        made = Stage(world, version, protocol)
        yield made
        made.close()
        world.check()
