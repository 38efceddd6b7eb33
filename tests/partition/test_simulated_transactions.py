"""Transactions on three simulated nodes with faults; and that this finds what is broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest

from strandline.node.kafka.handlers.produced_transactions import Questions
from strandline.node.kafka.wire.record_batch import read_header
from strandline.node.partition.batch import Verified
from strandline.node.partition.partition import Partition
from strandline.statemachine.partition.extents import InlineExtent, ObjectExtent
from strandline.statemachine.partition.partition_state import PartitionState
from strandline.statemachine.partition.producers import Producers
from tests.partition.clients import identify
from tests.partition.cluster import PartitionCluster, Troubles
from tests.partition.transacting import NEW, OLD, CommittedConsumer, Coordinator, Transactional, keeps

pytestmark = pytest.mark.usefixtures("no_logs")

TROUBLED_SECONDS = 12.0
PATIENCE_SECONDS = 30.0
SEEDS = range(1, 6)
FOUND_WITHIN = range(1, 5)


@dataclass
class Verdict:
    """What was wrong, and figures that tell whether the run met what it is for."""

    problems: list[str] = field(default_factory=list)
    committed: int = 0
    aborted: int = 0
    refusals: int = 0
    terms: int = 0


def simulate(seed: int) -> Verdict:
    verdict = Verdict()
    with PartitionCluster(seed) as cluster:
        try:
            _run(cluster, verdict)
        except AssertionError as error:
            verdict.problems.append(str(error).strip().splitlines()[-1])
    return verdict


def _run(cluster: PartitionCluster, verdict: Verdict) -> None:
    cluster.serve()
    coordinator = Coordinator(cluster)
    producers = [Transactional(cluster, coordinator, 100 + n, 20, NEW if n % 2 else OLD) for n in range(8)]
    consumer = CommittedConsumer(cluster)
    troubles = Troubles(cluster)
    cluster.run(TROUBLED_SECONDS)
    troubles.end()
    if not cluster.world.run_until(lambda: all(one.done for one in producers), timeout=PATIENCE_SECONDS):
        verdict.problems.append("the producers are not done")
    cluster.settle()
    cluster.run(4.0)
    cluster.settle()
    for partition in cluster.partitions.values():
        pending = partition.writer.acks
        if pending.batches or len(pending.verifications) or partition.fence.holds:
            verdict.problems.append("something is still held, verified or pending")
    verdict.problems += [f"group {group} failed on {node}: {why}" for node, group, why in cluster.failed]
    verdict.terms = len({term for term, _ in cluster.log.entries.values()})
    verdict.committed = sum(coordinator.decided.values())
    verdict.aborted = len(coordinator.decided) - verdict.committed
    judge(cluster, coordinator, producers, consumer, verdict.problems)
    cluster.world.check()


def judge(
    cluster: PartitionCluster,
    coordinator: Coordinator,
    producers: list[Transactional],
    consumer: CommittedConsumer,
    problems: list[str],
) -> None:
    """Each transaction's batches lie together before its own marker, and readers get the committed ones."""
    machine = next(iter(cluster.partitions.values())).machine
    end = machine.high_watermark
    if machine.last_stable_offset != end:
        problems.append(f"the last stable offset hangs at {machine.last_stable_offset} of {end}")
    aborted = machine.aborted_between(0, end)
    present: dict[int, list[int]] = {}
    ended: Counter[tuple[int, int]] = Counter()
    there: Counter[tuple[int, int, int]] = Counter()
    kept: list[int] = []
    committed: set[tuple[int, int, int]] = set()
    for extent in machine.extents:
        if isinstance(extent, InlineExtent):
            head = read_header(extent.data)
            numbers = {*present.pop(head.producer_id, [])}
            if len(numbers) > 1:
                problems.append(f"transactions {numbers} of {head.producer_id} have one marker")
            for number in numbers:
                ended[head.producer_id, number] += 1
                commit = extent.data[-9] == 1
                if coordinator.decided.get((head.producer_id, number)) is not commit:
                    problems.append(f"transaction {number} of {head.producer_id} has another's marker")
            continue
        assert isinstance(extent, ObjectExtent)
        data = cluster.store.objects[extent.object_name][extent.position : extent.position + extent.length]
        (producer, code), _ = identify(data)
        number, index = divmod(code, 100)
        there[producer, number, index] += 1
        present.setdefault(producer, []).append(number)
        if keeps(read_header(data), extent.base_offset, aborted):
            kept.append(extent.base_offset)
            committed.add((producer, number, index))
    problems += [f"batch {batch} is there {count} times" for batch, count in there.items() if count > 1]
    problems += [f"transaction {one} was ended {count} times" for one, count in ended.items() if count > 1]
    problems += [f"the transactions {numbers} of {one} are open" for one, numbers in present.items()]
    expected = {(one.identity, *batch) for one in producers for batch in one.acked}
    problems += [f"{batch} was committed and is not to be read" for batch in sorted(expected - committed)]
    problems += [f"{batch} is to be read and was not committed" for batch in sorted(committed - expected)]
    if consumer.seen != kept[: len(consumer.seen)]:
        problems.append("the consumer read what was not committed")
    if consumer.offset < end // 2:
        problems.append(f"the consumer came to {consumer.offset} only")


@pytest.mark.parametrize("seed", SEEDS)
def test_transactions_are_there_wholly_or_not_at_all(seed: int) -> None:
    assert simulate(seed).problems == []


def test_runs_meet_what_they_are_for() -> None:
    runs = [simulate(seed) for seed in range(11, 13)]
    for run in runs:
        assert run.problems == []
        assert (run.committed > 50, run.aborted > 20, run.terms > 4) == (True, True, True)


def test_a_seed_gives_the_same_run_again() -> None:
    assert simulate(3) == simulate(3)


@contextmanager
def _any_marker() -> Iterator[None]:
    """Markers have no numbers: each ends whatever is open."""
    with (
        patch.object(Producers, "check_end", lambda *_: None),
        patch.object(Partition, "_ended", lambda *_: 0),
    ):
        yield


_judge = Producers.check


def _no_numbers(self: Producers, producer: int, epoch: int, first: int, count: int, transaction: int) -> Any:
    """Batches have no numbers either: one that was verified once is taken."""
    known = self.get(producer)
    if known is not None and 0 < transaction <= known.ended and self.open_transaction(producer) is None:
        transaction = known.ended + 1
    return _judge(self, producer, epoch, first, count, transaction)


async def _believes(self: Questions, producer: int, epoch: int, partitions: Any) -> Any:
    """The coordinator's refusal is not heard: the producer is believed."""
    answer = await _verified(self, producer, epoch, partitions)
    return answer if isinstance(answer, Verified) else Verified(1_000)


_verified = Questions._verified


async def _says_done(self: Partition, *marker: Any) -> None:
    """A marker is done once it is in the log, whatever becomes of it."""
    self._loop.create_task(_end_transaction(self, *marker))


_end_transaction = Partition.end_transaction


SABOTAGES: dict[str, AbstractContextManager[Any]] = {
    "markers-without-numbers": _any_marker(),
    "batches-without-numbers": patch.object(Producers, "check", _no_numbers),
    "refusals-unheard": patch.object(Questions, "_verified", _believes),
    "markers-done-unheard": patch.object(Partition, "end_transaction", _says_done),
    "reads-to-the-end": patch.object(PartitionState, "last_stable_offset", PartitionState.high_watermark),
}


@pytest.mark.parametrize("name", sorted(SABOTAGES))
def test_the_cluster_finds(name: str) -> None:
    with SABOTAGES[name]:
        assert any(simulate(seed).problems for seed in FOUND_WITHIN)
