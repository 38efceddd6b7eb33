"""Microseconds of Python for each batch on the write path, with a store in memory and a log of one node.

    python -m tests.partition.measure [BATCHES]

From append() to its answer, by processor time: the batcher, the lanes, the fence, the entry's encoding, and
the state machine's apply are in it; the log itself (the sync, the network) is not.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable, Sequence
from time import process_time
from typing import cast

from strandline.node.level_one.reader import LevelOneReader
from strandline.node.level_zero.batcher import Batcher
from strandline.node.level_zero.batcher_config import MIB, BatcherConfig
from strandline.node.level_zero.cache import BatchCache
from strandline.node.level_zero.reader import Reader
from strandline.node.objectstore.store import Buffer, ObjectStore
from strandline.node.partition.batch import AppendResult, ProducedBatch
from strandline.node.partition.partition import Partition
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.outcome import Applied, Outcome
from strandline.statemachine.controller.hosted_groups import PartitionGroup
from strandline.statemachine.partition.partition_commands import Appended
from tests.partition.lone import CREATION_EPOCH, NOW, TOPIC, HandEpoch, Records


class NoStore(ObjectStore):
    """Keeps nothing; a put takes one turn of the loop."""

    max_object_bytes = 1 << 30

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        await asyncio.sleep(0)


class OneNodeGroup:
    """Applies what was proposed in the next turn, without a log."""

    id = 1
    term = 1
    is_leader = is_ready = True

    def __init__(self, partition: Partition, loop: asyncio.AbstractEventLoop) -> None:
        self._machine = partition.machine_for_group
        self._loop = loop
        self._index = 1
        self._machine.begin_term(1, 1, 1)

    def on_leadership(self, callback: Callable[[bool, int], None]) -> None:
        """It leads for ever."""

    def on_ready(self, callback: Callable[[int], None]) -> None:
        """It was ready before anybody asked."""

    async def barrier(self) -> Outcome:
        return Applied(None, 1, 1)

    def overloaded(self, size: int = 0) -> bool:
        return False

    def replicate(self, command: bytes, term: int) -> asyncio.Future[Outcome]:
        future: asyncio.Future[Outcome] = self._loop.create_future()
        self._loop.call_soon(self._apply, command, future)
        return future

    def _apply(self, command: bytes, future: asyncio.Future[Outcome]) -> None:
        self._index += 1
        future.set_result(Applied(self._machine.apply(self._index, 1, command), self._index, 1))


async def measure(batches: int, producers: int, in_flight: int, size: int = 1000) -> float:
    """Microseconds a batch, with so many producers and so many batches under way of each."""
    loop = asyncio.get_running_loop()
    written, epoch = BatchCache(16 * MIB), HandEpoch()
    store = NoStore()  # type: ignore[abstract]
    batcher = Batcher(
        store, BatcherConfig(), loop=loop, rng=random.Random(1), node=1, shard=0, epoch=epoch.current
    )  # fmt: skip
    partition = Partition(
        place=PartitionGroup(1, TOPIC, "orders", 0, (1,), CREATION_EPOCH),
        loop=loop,
        batcher=batcher,
        reader=cast(Reader, None),
        level_one=cast(LevelOneReader, None),
        written=written,
        epoch=epoch,
        wall_ms=lambda: NOW,
        agreed_ms=lambda: NOW,
        recorder=Records(),
    )
    partition.attach(cast(RaftGroup, OneNodeGroup(partition, loop)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    data = bytes(size)
    began = process_time()
    for first in range(0, batches // producers, in_flight):
        answers: list[asyncio.Future[AppendResult]] = [
            partition.append(ProducedBatch(data, 1, NOW, producer, 0, number, 0))
            for number in range(first, first + in_flight)
            for producer in range(producers)
        ]
        for answer in answers:
            assert isinstance(await answer, Appended)
    spent = process_time() - began
    partition.close()
    await batcher.close()
    return spent / partition.high_watermark * 1e6


def main() -> None:
    batches = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    for producers, in_flight in ((1, 1), (1, 5), (10, 5), (100, 5)):
        spent = asyncio.run(measure(batches, producers, in_flight))
        print(f"{producers:4} producers, {in_flight} in flight: {spent:6.1f} us a batch")


if __name__ == "__main__":
    main()
