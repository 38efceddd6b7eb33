"""The toy broker behind the real server, on a loop of its own thread, for clients in the test's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import uvloop

from strandline.node.kafka.wire.record_batch import read_header
from strandline.node.kafka.wire.server import KafkaServer, ListenAddress
from strandline.node.kafka.wire.server_config import ConnectionProblem, ServerConfig
from tests.kafka.wire.toy_broker import ToyBroker


class Toy:
    """The toy broker on a loop of its own thread."""

    def __init__(self, kind: type[ToyBroker] = ToyBroker) -> None:
        self._kind = kind
        self.problems: list[ConnectionProblem] = []
        self.broker: ToyBroker
        self.server: KafkaServer
        self._ready: Future[None] = Future()
        self._stop: asyncio.Event
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()))

    def start(self) -> None:
        self._thread.start()
        self._ready.result(60)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def codecs(self, topic: str) -> set[str]:
        partitions = self.broker.topics[topic].partitions
        return {read_header(data).compression.name.lower() for part in partitions for _, data in part.batches}

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.broker = self._kind(self._loop)
        config = ServerConfig()
        self.server = KafkaServer(
            self.broker, loop=self._loop, config=config, on_problem=self.problems.append
        )
        await self.server.start([ListenAddress("127.0.0.1", 0)])
        self.broker.address = ("127.0.0.1", self.server.port)
        self._ready.set_result(None)
        await self._stop.wait()
        await self.server.stop(0.1)


@contextmanager
def running(kind: type[ToyBroker] = ToyBroker) -> Iterator[Toy]:
    """Serves while the block lasts."""
    served = Toy(kind)
    served.start()
    try:
        yield served
    finally:
        served.stop()
