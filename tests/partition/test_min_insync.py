"""`min.insync.replicas` above the majority: what is acknowledged is on so many disks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from strandline.node.kafka.handlers.error_codes import code_of
from strandline.node.partition.batch import AppendResult, ProducedBatch
from strandline.node.partition.pending_acks import HELD_SECONDS
from strandline.node.refusal import Refusal
from tests.kafka.wire.batches import build
from tests.partition.cluster import GROUP, PartitionCluster
from tests.partition.lone import Lone

TOO_FEW, AFTER = "not_enough_replicas", "not_enough_replicas_after_append"


@pytest.fixture
def cluster() -> Iterator[PartitionCluster]:
    with PartitionCluster(5) as started:
        started.serve()
        started.settle()
        started.run(1.0)
        yield started


def append(
    cluster: PartitionCluster, replicas: int = 3, producer: tuple[int, int, int] = (-1, -1, -1)
) -> asyncio.Future[AppendResult]:
    """One batch to the leader."""
    node = cluster.leading()
    assert node is not None
    data = build(producer=producer)
    batch = ProducedBatch(data, 3, 1_700_000_000_000, *producer, 1, replicas=replicas)
    answered: list[asyncio.Future[AppendResult]] = []
    cluster.world.nodes[node].call(lambda: answered.append(cluster.partitions[node].append(batch)))
    assert cluster.world.run_until(lambda: bool(answered), timeout=1.0)
    return answered[0]


def ended(cluster: PartitionCluster, future: asyncio.Future[AppendResult], seconds: float = 5.0) -> Any:
    """The offset, or the error's name."""
    assert cluster.world.run_until(future.done, timeout=seconds), "no answer"
    result = future.result()
    return code_of(result).name if isinstance(result, Refusal) else result.base_offset


def follower(cluster: PartitionCluster) -> int:
    return min(set(cluster.voters) - {cluster.leading()})


def high_watermark(cluster: PartitionCluster) -> int:
    node = cluster.leading()
    assert node is not None
    return cluster.partitions[node].high_watermark


def test_with_a_dead_replica_three_are_too_few_and_two_enough(cluster: PartitionCluster) -> None:
    assert ended(cluster, append(cluster)) == 0
    dead = follower(cluster)
    cluster.stop(dead)
    cluster.run(0.1)
    staged = len(cluster.store.objects)
    assert ended(cluster, append(cluster)) == TOO_FEW
    assert (high_watermark(cluster), len(cluster.store.objects)) == (3, staged), "nothing is stored"
    assert ended(cluster, append(cluster, 0)) == 3
    cluster.start(dead)
    cluster.settle()
    cluster.run(1.0)
    assert ended(cluster, append(cluster)) == 6


def test_an_idempotent_producer_goes_on_when_the_replica_is_back(cluster: PartitionCluster) -> None:
    """Its first batch was refused: the second, sent with it, must not pass for the first."""
    dead = follower(cluster)
    cluster.stop(dead)
    cluster.run(0.1)
    assert ended(cluster, append(cluster, producer=(7, 0, 0))) == TOO_FEW
    cluster.start(dead)
    cluster.settle()
    cluster.run(1.0)
    assert ended(cluster, append(cluster, producer=(7, 0, 3))) == TOO_FEW
    assert ended(cluster, append(cluster, producer=(7, 0, 0))) == 0
    assert ended(cluster, append(cluster, producer=(7, 0, 3))) == 3


def test_a_replica_that_hangs_holds_the_answer_back_and_no_other_batch(cluster: PartitionCluster) -> None:
    hung = follower(cluster)
    cluster.world.nodes[hung].pause()
    waiting = append(cluster, producer=(7, 0, 0))
    assert ended(cluster, append(cluster, 0)) == 3
    assert not waiting.done()
    assert high_watermark(cluster) == 6, "it is in the log"
    cluster.world.nodes[hung].resume()
    assert ended(cluster, waiting) == 0


def test_a_replica_that_dies_before_it_has_the_batch(cluster: PartitionCluster) -> None:
    """It may come again, and is answered with the offset it has."""
    dead = follower(cluster)
    cluster.world.nodes[dead].pause()
    waiting = append(cluster, producer=(7, 0, 0))
    cluster.run(0.1)
    cluster.stop(dead)
    assert ended(cluster, waiting) == AFTER
    assert ended(cluster, append(cluster, producer=(7, 0, 0))) == TOO_FEW
    cluster.start(dead)
    cluster.settle()
    cluster.run(1.0)
    assert ended(cluster, append(cluster, producer=(7, 0, 3))) == 3
    assert ended(cluster, append(cluster, producer=(7, 0, 0))) == 0
    assert high_watermark(cluster) == 6


def test_a_replica_that_hangs_for_long_is_given_up(cluster: PartitionCluster) -> None:
    leader, hung = cluster.leading(), follower(cluster)
    assert leader is not None
    cluster.world.nodes[hung].pause()
    waiting = append(cluster)
    assert ended(cluster, waiting, HELD_SECONDS + 1) == AFTER
    answers = cluster.partitions[leader].writer.acks
    assert answers.batches == answers.bytes == 0
    assert not cluster.group(leader, GROUP).isr.waits
    assert ended(cluster, append(cluster)) == TOO_FEW
    assert high_watermark(cluster) == 3


def test_a_wait_is_given_up_in_the_end() -> None:
    with Lone() as lone:
        lone.group.holders = 2
        future = lone.append("a", replicas=3)
        lone.stored("a")
        lone.group.commit()
        lone.loop.advance(HELD_SECONDS - 0.1)
        assert not future.done()
        assert lone.partition.writer.acks.batches == 1
        lone.loop.advance(0.2)
        assert lone.codes() == {"a": AFTER}
        assert lone.partition.writer.acks.batches == 0


def test_a_batch_that_wants_no_more_than_a_majority_asks_nothing() -> None:
    with Lone() as lone:
        lone.group.holders = None
        lone.append("a")
        lone.stored("a")
        lone.group.commit()
        assert lone.codes() == {"a": "0"}


def test_batches_of_one_entry_are_answered_each_by_what_it_wants() -> None:
    with Lone() as lone:
        lone.group.holders = 2
        for name, replicas in (("one", 0), ("all", 3), ("again", 0)):
            lone.append(name, replicas=replicas, connection=len(name))
        lone.stored("one", "all", "again")
        lone.group.commit()
        assert lone.codes() == {"one": "0", "again": "2"}
        lone.group.hold_all()
        assert lone.codes() == {"one": "0", "again": "2", "all": "1"}


def test_an_acknowledged_batch_is_on_every_disk(cluster: PartitionCluster) -> None:
    for number in range(5):
        assert ended(cluster, append(cluster)) == 3 * number
        index = cluster.group(cluster.leading() or 0, GROUP).applied
        synced = [cluster.group(node, GROUP).journal.synced for node in cluster.voters]
        assert min(synced) >= index, "not on every disk"
