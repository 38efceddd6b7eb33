"""One seeded run of producers against the simulated partition, and its verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from strandline.statemachine.partition.extents import ObjectExtent
from tests.partition.clients import Consumer, Producer, Written, identify
from tests.partition.cluster import PartitionCluster, Troubles

TROUBLED_SECONDS = 12.0
PATIENCE_SECONDS = 20.0
PRODUCERS = 24


@dataclass
class Verdict:
    """What was wrong, and figures that tell whether the run met what it is for."""

    problems: list[str] = field(default_factory=list)
    acked: int = 0
    terms: int = 0
    slides: int = 0
    rejections: int = 0
    restaged: int = 0


def simulate(seed: int, prepare: Callable[[PartitionCluster], None] = lambda _: None) -> Verdict:
    """Run one seed. Whatever the product raises counts as a problem, as does a run that does not end."""
    verdict = Verdict()
    with PartitionCluster(seed) as cluster:
        try:
            prepare(cluster)
            _run(cluster, verdict)
        except AssertionError as error:
            verdict.problems.append(str(error).strip().splitlines()[-1])
    return verdict


def _run(cluster: PartitionCluster, verdict: Verdict) -> None:
    cluster.serve()
    # Many that nobody knows yet: of a known one the state machine itself finds a gap.
    producers = [
        Producer(cluster, 100 + n, 12, TROUBLED_SECONDS * n / PRODUCERS, idempotent=True)
        for n in range(PRODUCERS)
    ]
    producers += [Producer(cluster, 200 + n, 60, 0.0, idempotent=False) for n in range(2)]
    consumer = Consumer(cluster)
    troubles = Troubles(cluster)
    cluster.run(TROUBLED_SECONDS)
    troubles.end()
    finished = cluster.world.run_until(
        lambda: all(producer.done for producer in producers), timeout=PATIENCE_SECONDS
    )
    if not finished:
        verdict.problems.append("the producers are not done")
    cluster.settle()
    cluster.run(2.0)
    cluster.settle()
    for partition in cluster.partitions.values():
        cluster._count(partition)
        if partition.fence.holds or partition.fence.waiting or partition.writer.acks.batches:
            verdict.problems.append("something is still held, waiting or pending")
    verdict.problems += [f"group {group} failed on {node}: {why}" for node, group, why in cluster.failed]
    verdict.acked = sum(len(producer.acked) for producer in producers)
    verdict.slides, verdict.rejections = cluster.slides, cluster.rejections
    verdict.restaged = cluster.restaged
    verdict.terms = len({term for term, _ in cluster.log.entries.values()})
    judge(cluster, producers, consumer, verdict.problems)
    cluster.world.check()


def judge(
    cluster: PartitionCluster, producers: list[Producer], consumer: Consumer, problems: list[str]
) -> None:
    """Everything acknowledged is there once and at its offset; order and windows are kept."""
    machine = next(iter(cluster.partitions.values())).machine
    there: list[tuple[int, Written]] = []
    for extent in machine.extents:
        assert isinstance(extent, ObjectExtent)
        data = cluster.store.objects[extent.object_name][extent.position : extent.position + extent.length]
        written, count = identify(data)
        if count != extent.record_count:
            problems.append(f"{written} has {count} records, its extent {extent.record_count}")
        there.append((extent.base_offset, written))
    offsets: dict[Written, list[int]] = {}
    for offset, written in there:
        offsets.setdefault(written, []).append(offset)
    problems += [f"{written} is there {len(at)} times" for written, at in offsets.items() if len(at) > 1]
    for producer in producers:
        name = producer.identity
        for number, offset in producer.acked.items():
            if offset not in offsets.get(Written(name, number), ()):
                problems.append(f"{name} {number}, acknowledged at {offset}, is not there")
        for number in producer.refused:
            if Written(name, number) in offsets:
                problems.append(f"{name} {number} was refused and is there")
        numbers = [written.number for _, written in there if written.producer == name]
        if producer.idempotent:
            if numbers != list(range(len(producer.counts))):
                problems.append(f"the batches of {name} are {numbers}")
        else:
            order: dict[int, list[int]] = {}
            for number in numbers:
                order.setdefault(producer.connections[number], []).append(number)
            problems += [f"{name}: {line}" for line in order.values() if line != sorted(line)]
    windows = cluster.log.windows()
    for earlier, later in pairwise(windows):
        if later[0] < earlier[0] or later[1] < earlier[1]:
            problems.append(f"window {later} comes after {earlier}")
    if consumer.seen != there[: len(consumer.seen)]:
        problems.append("the consumer saw what is not there")
    if not consumer.seen or consumer.offset < machine.high_watermark // 2:
        problems.append(f"the consumer came to {consumer.offset} only, errors: {consumer.errors}")
