"""Three simulated nodes with a replica of one partition each, and an object store."""

from __future__ import annotations

from strandline.node.level_one.reader import LevelOneReader, LevelOneReaderConfig
from strandline.node.level_zero.batcher import Batcher
from strandline.node.level_zero.batcher_config import BatcherConfig
from strandline.node.level_zero.cache import BatchCache
from strandline.node.level_zero.reader import Reader, ReaderConfig
from strandline.node.objectstore.retries import RetryingStore, RetryPolicy
from strandline.node.partition.partition import Partition
from strandline.statemachine.controller.hosted_groups import PartitionGroup
from strandline.statemachine.machine import Captured
from tests.raft.small_cluster import SETTLE, SmallCluster
from tests.simulation.node import SimNode
from tests.simulation.store import SimStore
from tests.simulation.world import World

GROUP = 1
TOPIC = bytes(range(16))
CREATION_EPOCH = 5
EPOCH_SECONDS = 0.25
MOST_LAG = 0.9
POLICY = RetryPolicy(attempts=1, attempt_seconds=0.5, total_seconds=0.5)


class LaggingEpoch:
    """The cluster epoch as a node knows it: some time behind, each node and boot by its own lag."""

    def __init__(self, world: World, lag: float) -> None:
        self._world = world
        self._lag = lag
        self._learned = CREATION_EPOCH

    def current(self) -> int:
        epoch = CREATION_EPOCH + int(max(0.0, self._world.now - self._lag) / EPOCH_SECONDS)
        self._learned = max(self._learned, epoch)
        return self._learned

    def learn(self, epoch: int) -> None:
        self._learned = max(self._learned, epoch)


class Log:
    """What replicas applied, by index: the same everywhere, or a failure of the run."""

    def __init__(self, world: World) -> None:
        self.entries: dict[int, tuple[int, bytes]] = {}
        self._world = world

    def begin_term(self, index: int, term: int, node: int) -> None:
        self._note(index, term, b"")

    def applied(self, index: int, term: int, command: bytes) -> None:
        self._note(index, term, command)

    def checkpoint(self, index: int, captured: Captured) -> None:
        raise AssertionError("nobody asked for one")

    def restored(self) -> None:
        """The world's log has what this replica missed."""

    def _note(self, index: int, term: int, command: bytes) -> None:
        if self.entries.setdefault(index, (term, command)) != (term, command):
            self._world.fail(None, f"replicas applied different entries {index}")


class PartitionCluster(SmallCluster):
    """The cluster; `partitions` by node, as long as the node is up."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, groups=(GROUP,))
        self.store = SimStore(self.world)
        self.log = Log(self.world)
        self.partitions: dict[int, Partition] = {}

    def __enter__(self) -> PartitionCluster:
        return self

    def _main(self, sim: SimNode) -> None:
        host = self.make_host(sim)
        host.open()
        rng = sim.rng("partition")
        store = RetryingStore(self.store.client(sim), POLICY, loop=sim.loop, rng=sim.rng("retries"))
        written, fetched = BatchCache(64 * 1024), BatchCache(64 * 1024)
        epoch = LaggingEpoch(self.world, rng.random() * MOST_LAG)
        partition = Partition(
            place=PartitionGroup(GROUP, TOPIC, "orders", 0, self.voters, CREATION_EPOCH),
            loop=sim.loop,
            batcher=Batcher(
                store,
                BatcherConfig(target_bytes=2000, max_object_bytes=8000, max_staged_bytes=64_000),
                loop=sim.loop,
                rng=rng,
                node=sim.id,
                shard=0,
                epoch=epoch.current,
            ),
            reader=Reader(store, ReaderConfig(), loop=sim.loop, written=written, fetched=fetched),
            level_one=LevelOneReader(store, LevelOneReaderConfig(cache_bytes=64 * 1024), loop=sim.loop),
            written=written,
            epoch=epoch,
            wall_ms=lambda: int(self.world.now * 1000),
            agreed_ms=lambda: int(self.world.now * 1000),
            recorder=self.log,
        )
        self.hosts[sim.id] = host
        self.partitions[sim.id] = partition
        partition.attach(host.create_group(GROUP, partition.machine_for_group, self.voters))
        sim.spawn(host.start())

    def stop(self, node: int, kind: str = "kill") -> None:
        super().stop(node, kind)
        self.partitions.pop(node, None)

    def leading(self) -> int | None:
        """A node whose partition believes that it leads; of two, the one with the later term."""
        led = [
            (partition.leader_epoch, node)
            for node, partition in self.partitions.items()
            if partition.leads and not self.world.nodes[node].paused
        ]
        return max(led)[1] if led else None

    def agree(self) -> bool:
        """One leader, and all replicas the same."""
        states = {partition.machine.snapshot() for partition in self.partitions.values()}
        return len(self.partitions) == 3 and len(states) == 1 and self.leading() is not None

    def settle(self, *, nodes: int | None = None, seconds: float = SETTLE) -> None:
        assert self.world.run_until(self.agree, timeout=seconds), "the replicas do not agree"
