"""The rows of the bench of views: many at once as columns, and then some at a rate."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from confluent_kafka import Producer

from strandline.cluster.broker_connection import connect
from strandline.cluster.kafka_client import client_config
from strandline.cluster.view_worker.node_link import TopicPlace
from strandline.cluster.view_worker.producing import LeaderProducer
from strandline.snapshot.connection import METADATA, metadata_request

TOPIC: Final = "bids"
PARTITIONS: Final = 2
RATE: Final = 1000.0
"""Rows a second that flow in."""
AT_ONCE: Final = 200_000
"""Rows of a transaction, where many are written."""
BETWEEN_SECONDS: Final = 0.02
FLUSH_SECONDS: Final = 30.0
PRICES: Final = 1000
"""One in ten is below 100, and none in a burst: each is a change of `sample`."""


class Rows:
    """Writes bids, whose auctions are all of `keys` in their turn."""

    def __init__(self, bootstrap: str, keys: int) -> None:
        self._bootstrap = bootstrap
        self._keys = keys
        self._sent = 0
        self._producer = Producer(client_config(bootstrap, linger_ms=5, enable_idempotence=True))

    def write(self, count: int) -> None:
        """Write many, as views write theirs; raises KafkaException."""
        producer = LeaderProducer({"bootstrap.servers": self._bootstrap}, "bench.rows")
        producer.take_over()
        connection = connect(self._bootstrap)
        (told,) = connection.ask(METADATA, metadata_request([TOPIC])).topics
        connection.close()
        place = TopicPlace(TOPIC, len(told.partitions), False, 1 << 20, told.topic_id.bytes)
        while count:
            some = min(count, AT_ONCE)
            producer.write(place, *self._columns(some))
            producer.commit({}, "")
            self._sent, count = self._sent + some, count - some

    def _columns(self, count: int) -> tuple[Any, Any]:
        """Keys and values of the next rows."""
        auctions, prices = self._numbers(np.arange(self._sent, self._sent + count, dtype=np.int64))
        parts = [b'{"auction":', _text(auctions), b',"price":', _text(prices), b',"sent":%d}' % _now(), b""]
        values = pc.binary_join_element_wise(
            *(pa.scalar(one, pa.large_binary()) if isinstance(one, bytes) else one for one in parts)
        )
        return _text(auctions), values

    def _numbers(self, at: Any) -> tuple[Any, Any]:
        """The auction and the price of a row, or of several."""
        return at * 7919 % self._keys, at * 617 % PRICES

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """Have RATE rows a second be written meanwhile."""
        stop = threading.Event()

        def flow() -> None:
            while not stop.wait(BETWEEN_SECONDS):
                for _ in range(int(RATE * BETWEEN_SECONDS)):
                    self._one()
                self._producer.poll(0)

        thread = threading.Thread(target=flow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self._producer.flush(FLUSH_SECONDS)

    def _one(self) -> None:
        auction, price = self._numbers(self._sent)
        self._sent += 1
        row = json.dumps({"auction": auction, "price": price, "sent": _now()})
        while True:
            try:
                self._producer.produce(TOPIC, row)
                return
            except BufferError:
                self._producer.poll(0.1)


def _now() -> int:
    return int(time.time() * 1e6)


def _text(numbers: Any) -> Any:
    return pa.array(numbers).cast(pa.large_string()).cast(pa.large_binary())
