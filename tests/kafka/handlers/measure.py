"""CPU time of the data requests, without store and log. `python -m tests.kafka.handlers.measure`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from kio.index import load_request_schema

from strandline.node.kafka.handlers.handler import BrokerHandler
from strandline.node.kafka.wire.apis import ApiKey
from strandline.node.kafka.wire.codec import RequestHeader, decode_request, encode_response
from strandline.node.kafka.wire.handler import Request
from strandline.node.partition.batch import AppendResult, ProducedBatch, Validation, Verification
from strandline.statemachine.partition.partition_commands import Appended
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.handlers.fake_partition import FakePartition
from tests.kafka.wire.batches import Record, build
from tests.kafka.wire.entities import encoded, entity_of, head

ROUNDS, SECONDS = 5, 0.1


class Instant(FakePartition):
    """Acknowledges everything in the next turn of the loop, and keeps nothing of it."""

    def append(
        self,
        batch: ProducedBatch,
        validation: Validation | None = None,
        verification: Verification | None = None,
    ) -> asyncio.Future[AppendResult]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[AppendResult] = loop.create_future()
        loop.call_soon(future.set_result, Appended(0))
        return future


async def cost(work: Callable[[], Awaitable[object]]) -> float:
    """CPU seconds of one call: the best of some rounds."""
    best = 1e9
    for _ in range(ROUNDS):
        count, started = 0, time.process_time()
        while time.process_time() - started < SECONDS:
            await work()
            count += 1
        best = min(best, (time.process_time() - started) / count)
    return best


class Asking:
    def __init__(self, partitions: int, batches: int = 0, size: int = 100) -> None:
        self.node = FakeNode()
        self.topic = self.node.topic(partitions=partitions)
        for number in range(partitions):
            partition = Instant()
            partition.write(*[build([Record(bytes(size))])] * batches)
            self.node.partitions.replicas[self.topic.topic_id, number] = partition
        self.handler = BrokerHandler(self.node.context)

    async def show(self, name: str, key: ApiKey, version: int, **fields: Any) -> None:
        asked = entity_of(load_request_schema(key, version), fields)
        frame = memoryview(head(key, version) + encoded(asked))
        header: RequestHeader
        header, payload = decode_request(frame, 200_000)
        request = Request(header, payload, "", 100, 1)

        async def handled() -> Any:
            return await self.handler.handle(request)

        async def all_of_it() -> None:
            decoded_header, decoded = decode_request(frame, 200_000)
            answer = await self.handler.handle(Request(decoded_header, decoded, "", 100, 1))
            encode_response(header, answer)

        one, all_ = await cost(handled), await cost(all_of_it)
        print(f"{name:62} {one * 1e6:8.1f} µs {all_ * 1e6:8.1f} µs")

    async def produce(self, name: str, partitions: int, size: int = 100) -> None:
        data = [{"index": number, "records": build([Record(bytes(size))])} for number in range(partitions)]
        topics = [{"name": "t", "partition_data": data}]
        await self.show(
            name,
            ApiKey.PRODUCE,
            9,
            transactional_id=None,
            acks=-1,
            timeout=timedelta(seconds=30),
            topic_data=topics,
        )

    async def fetch(self, name: str, partitions: int, offset: int = 0, min_bytes: int = 1) -> None:
        parts = [
            {"partition": number, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
            for number in range(partitions)
        ]
        await self.show(
            name,
            ApiKey.FETCH,
            12,
            max_wait=timedelta(0),
            min_bytes=min_bytes,
            max_bytes=50 << 20,
            isolation_level=0,
            topics=[{"topic": "t", "partitions": parts}],
        )


async def main() -> None:
    print(f"{'':62} {'handler':>11} {'+ codec':>11}")
    await Asking(1).produce("produce, 1 partition, a record of 100 B", 1)
    await Asking(12).produce("produce, 12 partitions, a record of 100 B each", 12)
    await Asking(1).produce("produce, 1 partition, a record of 100 kB", 1, 100_000)
    await Asking(1, 1).fetch("fetch, 1 partition, one batch of 100 B", 1)
    await Asking(12, 1).fetch("fetch, 12 partitions, one batch of 100 B each", 12)
    await Asking(1, 10, 100_000).fetch("fetch, 1 partition, 10 batches of 100 kB", 1)
    await Asking(1, 1000, 900).fetch("fetch, 1 partition, 1000 batches of 1 kB", 1)
    await Asking(1, 1).fetch("fetch, 1 partition, nothing new", 1, 1)
    await Asking(1000, 1).fetch("fetch, 1000 partitions, nothing new", 1000, 1)
    await Asking(1, 1000).fetch("fetch, 1 partition, 1000 small batches, min_bytes 100 kB", 1, 0, 100_000)


if __name__ == "__main__":
    asyncio.run(main())
