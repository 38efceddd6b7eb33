"""What the second epoch in the window is worth: the same load with windows of one epoch and of two.

`python -m tests.programs.bench.epoch_windows` prints the table of docs/fence.md. Three simulated nodes,
production code, one partition. Uploads take 10 to 100 ms and overlap; every two seconds leadership goes to
the next node, and each node hears of a new cluster epoch by its own delay, up to one and a half periods. A
window of one accepts its newest epoch alone; there is no such option, here it is patched in.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest.mock import patch

from strandline.node.partition.batch import ProducedBatch
from strandline.node.partition.partition import Partition
from strandline.statemachine.partition.epoch_window import EpochStatus, EpochWindow
from strandline.statemachine.partition.partition_commands import Appended
from tests.partition import cluster as parts
from tests.partition.cluster import GROUP, LaggingEpoch, PartitionCluster
from tests.simulation.world import World

PERIODS = (0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 10.0)
"""Seconds between two cluster epochs; a cluster's default is the last."""
LAGS = (0.0, 0.5, 1.5)
"""By node, in periods, how late it hears of an epoch."""
SECONDS = 30.0
CLIENTS = 20
PAUSE = 0.05
"""Seconds between two batches of a client."""
HAND_OVER = 2.0


@dataclass
class Outcome:
    """What became of one run's load."""

    offered: int = 0
    appended: int = 0
    failed: int = 0
    """Most of them as leadership was handed over."""
    refused_twice: int = 0
    """Of those, batches that came below the window uploaded anew as well; their clients send them again."""
    refused: int = 0
    """Batches that came to the fence below the window."""
    uploaded_again: int = 0


class OneEpoch(EpochWindow):
    """A window that keeps no older epoch."""

    __slots__ = ()

    def slide(self, epoch: int) -> EpochWindow:
        if self.classify(epoch) is not EpochStatus.NEW:
            raise ValueError(f"epoch {epoch} is not above {self.newest}")
        return OneEpoch(self.term, epoch, epoch)


@contextmanager
def patched(period: float, window: int) -> Iterator[None]:
    """Nodes that hear of epochs by LAGS, and the window that is measured."""
    lags = iter(LAGS * 10)

    def epoch(world: World, lag: float) -> LaggingEpoch:
        return LaggingEpoch(world, next(lags) * period)

    with ExitStack() as stack:
        stack.enter_context(patch.object(parts, "EPOCH_SECONDS", period))
        stack.enter_context(patch.object(parts, "LaggingEpoch", epoch))
        if window == 1:
            stack.enter_context(patch.object(EpochWindow, "slide", OneEpoch.slide))
        yield


def run(period: float, window: int, seed: int = 1, seconds: float = SECONDS) -> Outcome:
    """The load of one seed for `seconds` of virtual time; the same whatever the window."""
    outcome = Outcome()
    with patched(period, window), PartitionCluster(seed) as cluster:
        world = cluster.world
        cluster.store.delay_seconds = (0.005, 0.05)
        cluster.start()
        assert world.run_until(lambda: cluster.leading() is not None, timeout=10.0)
        end = world.now + seconds
        rng = random.Random(seed)

        def offer(client: int) -> None:
            if world.now >= end:
                return
            leader = cluster.leading()
            if leader is not None:
                outcome.offered += 1
                sim = world.nodes[leader]
                sim.call(lambda: sim.spawn(append(cluster.partitions[leader], client, outcome)))
            world.call_later(PAUSE * (0.5 + rng.random()), offer, client)

        def hand_over() -> None:
            leader = cluster.leading()
            if leader is not None:
                world.nodes[leader].call(lambda: cluster.hosts[leader].groups[GROUP].transfer())
            if world.now < end:
                world.call_later(HAND_OVER, hand_over)

        for client in range(CLIENTS):
            world.call_later(PAUSE * rng.random(), offer, client)
        world.call_later(HAND_OVER, hand_over)
        world.run(end + 5.0)
        counters = [partition.fence.counters for partition in cluster.partitions.values()]
        outcome.refused = sum(each.rejections for each in counters)
        outcome.uploaded_again = sum(each.writer.restaged for each in cluster.partitions.values())
    assert outcome.appended + outcome.failed == outcome.offered
    return outcome


async def append(partition: Partition, client: int, outcome: Outcome) -> None:
    batch = ProducedBatch(b"x" * 50, 1, 0, -1, -1, -1, client, 0)
    result = await asyncio.shield(partition.append(batch))
    if isinstance(result, Appended):
        outcome.appended += 1
    else:
        outcome.failed += 1
        outcome.refused_twice += (result.message or "").startswith("stale_cluster_epoch")


def main() -> None:
    print("| period | window | batches | below the window | of all | uploaded again | refused twice |")
    print("|---|---|---|---|---|---|---|")
    for period in PERIODS:
        for window in (1, 2):
            told = run(period, window)
            share = 100 * told.refused / told.offered
            print(
                f"| {period:g} s | {window} | {told.offered:,} | {told.refused:,} | {share:.2f} % "
                f"| {told.uploaded_again:,} | {told.refused_twice:,} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
