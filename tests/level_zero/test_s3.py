"""The whole way in and out on S3's protocol, against moto's server in a process of its own."""

from __future__ import annotations

import asyncio
import random
import urllib.request

import pytest
import uvloop

from strandline.node.level_zero.batcher import Batcher, Stored
from strandline.node.level_zero.batcher_config import BatcherConfig
from strandline.node.level_zero.cache import BatchCache
from strandline.node.level_zero.reader import Reader, ReaderConfig
from strandline.node.objectstore.obstore_store import ObstoreStore
from strandline.node.objectstore.retries import RetryingStore, RetryPolicy
from strandline.node.objectstore.store import NotDone
from strandline.statemachine.partition.extent import ObjectExtent
from tests.level_zero.samples import TOPIC, record_batch
from tests.objectstore.s3_endpoint import endpoint
from tests.objectstore.store_contract import check_contract

__all__ = ["endpoint"]


pytestmark = pytest.mark.s3


@pytest.fixture
def store(endpoint: str, request: pytest.FixtureRequest) -> ObstoreStore:
    bucket = request.node.name.replace("_", "-")[:60]
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{bucket}", method="PUT"), timeout=10).close()
    return open_store(endpoint, f"s3://{bucket}/some/prefix")


def open_store(endpoint: str, url: str) -> ObstoreStore:
    options = {
        "endpoint": endpoint,
        "region": "us-east-1",
        "access_key_id": "test",
        "secret_access_key": "test",
    }
    return ObstoreStore(url, options=options, allow_http=True, max_object_bytes=8 * 1024 * 1024)


def test_contract(store: ObstoreStore) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(check_contract(store))


def test_a_missing_bucket_is_definite(endpoint: str) -> None:
    with pytest.raises(NotDone, match="the bucket is missing"):
        asyncio.run(open_store(endpoint, "s3://there-is-none").put("a", [b"x"]))
    with pytest.raises(NotDone, match="the bucket is missing"):
        asyncio.run(open_store(endpoint, "s3://there-is-none").list("health/", "", 1))


def test_from_producers_to_readers(store: ObstoreStore) -> None:
    batches = [record_batch(b"%d " % n + bytes(n * 100)) for n in range(50)]

    async def check() -> None:
        loop = asyncio.get_running_loop()
        rng = random.Random(1)
        retrying = RetryingStore(store, RetryPolicy(), loop=loop, rng=rng)
        config = BatcherConfig(
            target_bytes=30_000, max_object_bytes=100_000, max_staged_batches=1000, linger_seconds=0.002
        )
        batcher = Batcher(retrying, config, loop=loop, rng=rng, node=1, shard=0, epoch=lambda: 3)
        futures = []
        for number, batch in enumerate(batches):
            futures.append(batcher.stage(TOPIC, number % 4, batch))
            await asyncio.sleep(0.001)
        results = await asyncio.gather(*futures)
        extents = []
        for number, result in enumerate(results):
            assert isinstance(result, Stored)
            extents.append(ObjectExtent(number, 1, 1, 0, result.length, 3, result.position, result.object_id))
        assert 1 < batcher.measures.objects_stored < len(batches)
        cold = Reader(retrying, ReaderConfig(), loop=loop, written=BatchCache(0), fetched=BatchCache(1 << 20))
        assert await cold.read(extents) == batches
        assert cold.measures.gets == batcher.measures.objects_stored
        keys = await retrying.list("l0/", "", 1000)
        assert len(keys) == batcher.measures.objects_stored
        await retrying.delete_many(keys)
        assert await retrying.list("l0/", "", 1000) == []

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(check())
