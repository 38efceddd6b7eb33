"""Three simulated nodes with a replica of one partition each, an object store, faults, and their operator."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import msgpack

from strandline.node.level_one.reader import LevelOneReader, LevelOneReaderConfig
from strandline.node.level_zero.batcher import Batcher, BatcherConfig
from strandline.node.level_zero.cache import BatchCache
from strandline.node.level_zero.reader import Reader, ReaderConfig
from strandline.node.objectstore.retries import RetryingStore, RetryPolicy
from strandline.node.partition.fence import Hold
from strandline.node.partition.partition import Partition
from strandline.statemachine.controller.controller import PartitionGroup
from strandline.statemachine.machine import Captured
from strandline.statemachine.partition.epoch_window import EpochWindow
from strandline.statemachine.partition.partition_commands import AdvanceEpoch, Kind
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

    def windows(self) -> list[tuple[int, int]]:
        """Of the fences under which entries were made, in log order."""
        windows = []
        for _, (term, command) in sorted(self.entries.items()):
            if command:
                made_in, _, commands = msgpack.unpackb(command)
                if made_in == term:
                    windows += [(c[1], c[2]) for c in commands if c[0] in (Kind.APPEND, Kind.ADVANCE_EPOCH)]
        return windows


class PartitionCluster(SmallCluster):
    """The cluster; `partitions` by node, as long as the node is up."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, groups=(GROUP,))
        self.store = SimStore(self.world)
        self.log = Log(self.world)
        self.partitions: dict[int, Partition] = {}
        self.slides = self.rejections = self.restaged = 0

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
        partition = self.partitions.pop(node, None)
        if partition is not None:
            self._count(partition)

    def _count(self, partition: Partition) -> None:
        self.slides += partition.fence.counters.slides
        self.rejections += partition.fence.counters.rejections
        self.restaged += partition.writer.restaged

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


class Troubles:
    """What goes wrong, at random, until `end()` puts all right again."""

    def __init__(self, cluster: PartitionCluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._rng = self._world.rng("troubles")
        self._ended = False
        self._world.call_later(0.5, self._next)
        self._world.call_later(0.1, self._meddle)

    def end(self) -> None:
        self._ended = True
        self._world.network.heal_all()
        self._mend()
        for node in self._cluster.voters:
            self._up(node)

    def _next(self) -> None:
        if self._ended:
            return
        kinds = (self._crash, self._transfer, self._isolate, self._pause, self._bad_store, self._slow)
        self._rng.choice((*kinds, self._transfer, self._bad_store))()
        self._world.call_later(0.3 + self._rng.random(), self._next)

    def _victim(self) -> int | None:
        leader = self._cluster.leading()
        if leader is not None and self._rng.random() < 0.7:
            return leader
        return self._rng.choice(list(self._cluster.partitions)) if self._cluster.partitions else None

    def _crash(self) -> None:
        victim = self._victim()
        if victim is not None and len(self._cluster.partitions) == 3:
            self._cluster.stop(victim, self._rng.choice(("kill", "power")))
            self._world.call_later(self._rng.random() * 1.5, self._up, victim)

    def _up(self, node: int) -> None:
        sim = self._world.nodes[node]
        if not sim.alive:
            self._cluster.start(node)
        elif sim.paused:
            sim.resume()

    def _transfer(self) -> None:
        leader = self._cluster.leading()
        if leader is not None:
            group = self._cluster.hosts[leader].groups[GROUP]
            self._world.nodes[leader].call(lambda: group.transfer())

    def _isolate(self) -> None:
        victim = self._victim()
        if victim is not None:
            self._world.network.isolate(victim)
            self._world.call_later(0.2 + 1.5 * self._rng.random(), self._world.network.heal_all)

    def _pause(self) -> None:
        victim = self._victim()
        if victim is not None:
            self._world.nodes[victim].pause()
            self._world.call_later(0.1 + self._rng.random(), self._up, victim)

    def _bad_store(self) -> None:
        store = self._cluster.store
        for fate in ("refused", "broken", "lost", "late", "silent"):
            setattr(store, fate, self._rng.random() * 0.15)
        self._world.call_later(1.0, self._mend)

    def _slow(self) -> None:
        self._cluster.store.slow = 20.0
        self._world.call_later(0.5, self._mend)

    def _mend(self) -> None:
        store = self._cluster.store
        store.refused = store.broken = store.lost = store.late = store.silent = 0.0
        store.slow = 1.0

    # Others who want the fence.

    def _meddle(self) -> None:
        leader = self._cluster.leading()
        if leader is not None and not self._ended:
            sim, partition = self._world.nodes[leader], self._cluster.partitions[leader]
            epoch = CREATION_EPOCH + int(self._world.now / EPOCH_SECONDS)
            rng = random.Random(self._rng.getrandbits(32))
            sim.call(lambda: sim.spawn(meddle(partition, epoch, rng)))
        self._world.call_later(0.05 + 0.2 * self._rng.random(), self._meddle)


async def meddle(partition: Partition, epoch: int, rng: random.Random) -> Any:
    """Hold the fence for a while, or advance the epoch; sometimes give up in the middle."""
    if rng.random() < 0.4:
        work: Coroutine[Any, Any, Any] = partition.execute(AdvanceEpoch(EpochWindow(0, epoch, epoch)))
    else:
        work = hold(partition, epoch + rng.randrange(-1, 2), rng.random() * 0.1)
    try:
        return await asyncio.wait_for(work, rng.choice((0.01, 0.05, 5.0)))
    except TimeoutError:
        return None


async def hold(partition: Partition, epoch: int, seconds: float) -> None:
    granted = await partition.fence.acquire(epoch)
    if isinstance(granted, Hold):
        try:
            await asyncio.sleep(seconds)
        finally:
            granted.release()
