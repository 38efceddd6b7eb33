"""The server on the simulator's loop and network: it takes time and timers from nowhere else."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.server import KafkaServer, ListenAddress
from strandline.node.kafka.wire.server_config import ConnectionProblem, ServerConfig
from tests.kafka.wire.server_harness import answer_to, init, produce
from tests.simulation.node import SimNode
from tests.simulation.world import World

PORT = 9092


class Sleeper:
    """Answers after a virtual while that differs from request to request."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    async def handle(self, asked: Request) -> Any:
        waited = self.loop.create_future()
        self.loop.call_later(0.01 * (7 * asked.header.correlation_id % 10), waited.set_result, None)
        await waited
        return answer_to(asked)


class Asker(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = bytearray()
        self.lost = False

    def connection_made(self, transport: Any) -> None:
        self.ask(transport)

    def ask(self, transport: Any) -> None:
        for number in range(60):
            transport.write(produce(number, bytes(3000)) if number % 4 else init(number))

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True

    def answers(self) -> list[int]:
        found, position = [], 0
        while position < len(self.received):
            size, number = struct.unpack_from(">ii", self.received, position)
            found.append(number)
            position += 4 + size
        return found


class Dripper(Asker):
    """Every write but the last ends inside a frame's length, and they are a second apart."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.loop = loop

    def ask(self, transport: Any) -> None:
        stream = b"".join(init(number) for number in range(60))
        size = len(init(0))
        pieces = [stream[:2], *(stream[start : start + size] for start in range(2, len(stream), size))]
        for second, piece in enumerate(pieces):
            self.loop.call_later(second, transport.write, piece)


def run(
    seed: int, asker_of: Callable[[asyncio.AbstractEventLoop], Asker]
) -> tuple[Asker, list[ConnectionProblem]]:
    problems: list[ConnectionProblem] = []
    askers: list[Asker] = []

    def serve(node: SimNode) -> None:
        config = ServerConfig(idle_seconds=100, frame_seconds=10, max_in_flight=5)
        handler = Sleeper(node.loop)
        server = KafkaServer(handler, loop=node.loop, config=config, on_problem=problems.append)
        node.spawn(server.start([ListenAddress(node.host, PORT)]))

    with World(seed) as world:
        served = world.add_node(1)
        served.start(serve)

        async def ask(node: SimNode) -> None:
            askers.append(asker_of(node.loop))
            await node.loop.create_connection(lambda: askers[0], served.host, PORT)

        client = world.add_node(2)
        world.call_later(1.0, client.start, lambda node: node.spawn(ask(node)))
        world.run(until=300.0)
        assert world.failures == []
    return askers[0], problems


def test_answers_keep_the_order_and_idle_connections_end_in_virtual_time() -> None:
    for seed in range(5):
        asker, problems = run(seed, lambda _loop: Asker())
        assert asker.answers() == list(range(60))
        assert asker.lost
        assert [str(problem.reason) for problem in problems] == ["idle"]


def test_a_stream_that_always_ends_inside_a_frame_is_not_slow() -> None:
    asker, problems = run(1, Dripper)
    assert asker.answers() == list(range(60))
    assert [str(problem.reason) for problem in problems] == ["idle"]
