"""The parts of reconciling and collecting, each alone on this machine: a worker, a collector, the gossip."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import msgpack

from strandline.node.config.node_config import CollectorSection
from strandline.node.gc.collectable_epochs import Maximum
from strandline.node.gc.collector import PAGE, Collector
from strandline.node.level_one.builder import BuilderConfig, Merge, Output
from strandline.node.level_one.worker_builder import WorkerBuilder
from strandline.node.objectstore.local_store import LocalStore
from strandline.node.objectstore.opening import StorePlace
from strandline.node.objectstore.retries import RetryingStore, RetryPolicy
from strandline.node.objectstore.unfinished_files import PARTIAL
from strandline.node.raft.disk import RealDisk
from strandline.node.runtime.disk_threads import DiskThreads, NodeLoop
from strandline.snapshot.level_zero_format import Batch, encode
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_commands import AdvanceClusterEpoch
from strandline.statemachine.object_names import object_id, object_name, shard_prefix
from strandline.statemachine.partition.extent import Extent, ObjectExtent
from strandline.statemachine.partition.level_one import LevelOneExtent
from tests.gc.parts import GcNode, Post, Replica
from tests.level_one.stamped import sent
from tests.programs.bench.measures import Result
from tests.statemachine.controller_harness import Log

T = TypeVar("T")
TOPIC: Final = bytes(16)
PARTITIONS: Final = 8
OBJECT_BYTES: Final = 4 << 20
OBJECTS_AN_EPOCH: Final = 100
"""Of a node: ten a second at the usual length of an epoch."""
EPOCH: Final = 1_000


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=NodeLoop) as runner:
        return runner.run(coroutine)


def build(folder: Path, megabytes: float, batch_bytes: int) -> Result:
    """Lift batches of this size out of level-zero objects of 4 MiB into objects of 8 partitions, then merge
    them: the worker process, its link, and a folder. Twice, the second time with a warm worker."""

    async def measured() -> Result:
        (folder / PARTIAL).mkdir(parents=True)
        outputs = level_zero(folder, int(megabytes * 1e6), batch_bytes)
        worker = WorkerBuilder(
            StorePlace(str(folder), {}, "bench"), BuilderConfig(), loop=asyncio.get_running_loop()
        )
        result = Result()
        try:
            await worker.build(fresh(outputs))
            before, began, here = worker.measures.cpu_seconds, time.perf_counter(), time.process_time()
            built = await worker.build(fresh(outputs))
            seconds, here = time.perf_counter() - began, time.process_time() - here
            objects = [one for one in built if isinstance(one, LevelOneExtent)]
            if len(objects) < len(outputs):
                result.problems.append(f"objects were not built: {built}")
            size = sum(one.size for one in objects)
            spent = worker.measures.cpu_seconds - before
            batches = sum(len(output.extents) for output in outputs)
            result.figures = {
                "rate": size / seconds,
                "cpu_gb": spent / (size / 1e9),
                "cpu_batch": spent / batches,
                "node_cpu_gb": here / (size / 1e9),
            }
            before, began = worker.measures.cpu_seconds, time.perf_counter()
            merged = [
                await worker.merge(Merge(TOPIC, output.partition, 2, os.urandom(16), [one]))
                for output, one in zip(outputs, objects, strict=True)
            ]
            seconds = time.perf_counter() - began
            result.figures["merge_rate"] = size / seconds
            result.figures["merge_cpu_gb"] = (worker.measures.cpu_seconds - before) / (size / 1e9)
            result.problems += [str(one) for one in merged if not isinstance(one, LevelOneExtent)]
        finally:
            await worker.close()
            shutil.rmtree(folder, ignore_errors=True)
        return result

    return run(measured())


def fresh(outputs: list[Output]) -> list[Output]:
    """The same under new names."""
    return [Output(one.topic_id, one.partition, one.term, os.urandom(16), one.extents) for one in outputs]


def level_zero(folder: Path, size: int, batch_bytes: int) -> list[Output]:
    """Level-zero objects of several partitions in turn, and what asks for all that is in them."""
    batch = sent(os.urandom(batch_bytes - 61), 10).data
    logs: list[list[Extent]] = [[] for _ in range(PARTITIONS)]
    each = max(PARTITIONS, OBJECT_BYTES // len(batch))
    for number in range(max(1, size // OBJECT_BYTES)):
        identity = object_id(0, 1, number.to_bytes(16, "big"))
        content = [Batch(TOPIC, at * PARTITIONS // each, batch) for at in range(each)]
        made = encode(EPOCH, identity, content)
        path = folder / object_name(EPOCH, identity)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(made.parts))
        for one, position in zip(content, made.positions, strict=True):
            log = logs[one.partition]
            log.append(ObjectExtent(len(log) * 10, 10, 1, 0, len(batch), EPOCH, position, identity))
    return [Output(TOPIC, number, 1, bytes(16), log) for number, log in enumerate(logs)]


class _Collecting:
    """A collector over a folder, at an M that is given."""

    def __init__(self, folder: Path, m: int) -> None:
        self.loop = asyncio.get_running_loop()
        local = LocalStore.open(
            RealDisk(), str(folder), owner="bench", loop=self.loop, executor=DiskThreads(4, "store")
        )
        self.store = RetryingStore(local, RetryPolicy(), loop=self.loop, rng=random.Random(1))
        self.log = Log(1)
        self.log.do(AdvanceClusterEpoch(1_000_000))
        self.machine: Controller = self.log.machine
        self._m = m
        config = CollectorSection(grace_seconds=0.0, deletes_per_second=1_000_000_000)
        me = cast(Any, self)
        self.collector = Collector(
            self.store,
            config,
            me,
            me,
            1,
            lambda: [1],
            loop=self.loop,
            calls=me,
            newest_epoch=lambda: 1_000_000,
            written_epoch=lambda: 1_000_000,
            may_begin=lambda: True,
        )

    def serve(self, method: str, handler: Any) -> None:
        """No controller asks."""

    def maximum(self) -> Maximum:
        return Maximum(self._m, self.machine.cluster_epoch, None, None, None, None)

    async def sweep(self) -> float:
        """One whole sweep; its seconds."""
        began = time.perf_counter()
        await self.collector._turn()
        return time.perf_counter() - began


def place(folder: Path, count: int, first_epoch: int) -> None:
    """So many small objects, as one node would leave them over the epochs; not durable, which listings and
    deletions do not care about."""
    for number in range(count):
        epoch = first_epoch + number // OBJECTS_AN_EPOCH
        path = folder / object_name(epoch, object_id(1, 1, number.to_bytes(16, "big")))
        if number % OBJECTS_AN_EPOCH == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 100)


def collect(folder: Path, count: int) -> Result:
    """Delete so many objects in one sweep, without a limit to the rate."""

    async def measured() -> Result:
        place(folder, count, EPOCH)
        collecting = _Collecting(folder, EPOCH + count)
        spent = time.process_time()
        seconds = await collecting.sweep()
        spent = time.process_time() - spent
        left = len(await collecting.store.list(shard_prefix(1), "", PAGE))
        await collecting.store.close()
        deleted, requests = collecting.collector.measures.deleted, collecting.store.requests
        result = Result({"rate": deleted / seconds, "cpu": spent / count})
        result.figures["lists"] = requests["list"] / count * 1000
        result.figures["deletes"] = requests["delete"] / count * 1000
        if deleted != count or left:
            result.problems.append(f"{deleted} of {count} objects were deleted, {left} are left")
        return result

    return run(measured())


def listing(folder: Path, live: int) -> Result:
    """A sweep that finds nothing to delete below so many live objects."""

    async def measured() -> Result:
        place(folder, live, EPOCH)
        collecting = _Collecting(folder, EPOCH - 1)
        await collecting.sweep()
        before = collecting.store.requests["list"]
        seconds = []
        for _ in range(5):
            collecting.collector.reset()
            seconds.append(await collecting.sweep())
        await collecting.store.close()
        lists = (collecting.store.requests["list"] - before) / 5
        return Result(
            {"seconds": sorted(seconds)[2], "lists": lists, "names": collecting.collector.measures.listed}
        )

    return run(measured())


def gossip(partitions: int) -> Result:
    """Three nodes that lead a third each: an epoch in which every partition's value rises, a second in which
    none does, and a telling of everything. What one node does, in processor time and bytes sent."""

    async def measured() -> Result:
        post, log = Post(), Log(3)
        log.do(AdvanceClusterEpoch(10))
        groups: list[int] = []
        for number in range(1, partitions // 1_000 + 1):
            topic = log.topic(log.creation(number, partitions=min(partitions, 1_000)))
            groups += [partition.group for partition in topic.partitions]
        log.do(AdvanceClusterEpoch(1_000))
        loop = asyncio.get_running_loop()
        nodes = [GcNode(post, number, log.machine, loop) for number in (1, 2, 3)]
        for node in nodes:
            for peer in nodes:
                if peer is not node:
                    node.on_connect(peer.node_id)
        for number, group in enumerate(groups):
            replica = nodes[number % 3].replicas[group] = Replica(group, 20)
            replica.leads, replica.leader_epoch = True, 1

        def step(work: Any) -> tuple[float, int]:
            """Every node does it, and hears the others; processor seconds and bytes a node."""
            spent = time.process_time()
            for node in nodes:
                work(node)
            size = sum(len(msgpack.packb(each.payload)) for each in post.sent)
            post.deliver_all()
            return (time.process_time() - spent) / 3, size // 3

        figures: dict[str, float] = {}
        figures["risen_cpu"], figures["risen_bytes"] = step(GcNode.look)
        figures["still_cpu"], figures["still_bytes"] = step(GcNode.look)
        figures["all_cpu"], figures["all_bytes"] = step(GcNode.tell_all)
        began = time.process_time()
        for node in nodes:
            node.epochs.maximum()
        figures["m_cpu"] = (time.process_time() - began) / 3
        result = Result(figures)
        if any(len(node.values()) != len(groups) for node in nodes):
            result.problems.append("not every node heard of every partition")
        return result

    return run(measured())
