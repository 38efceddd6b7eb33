"""A muted connection: answered at once, then not heard for a time, and no hindrance to others."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from strandline.node.kafka.wire.handler import Request, Throttled
from tests.kafka.wire.server_harness import answer_to, init, produce, serve, settle

SECONDS = 0.15


class Muting:
    """Mutes at each request whose number is ten or more."""

    def __init__(self) -> None:
        self.started: list[int] = []

    async def handle(self, asked: Request) -> Any:
        number = asked.header.correlation_id
        self.started.append(number)
        await asyncio.sleep(0)
        answer = answer_to(asked)
        return Throttled(answer, SECONDS) if number >= 10 else answer


def run(test: Any) -> None:
    asyncio.run(test())


def test_the_answer_comes_at_once_and_the_next_request_waits() -> None:
    async def test() -> None:
        async with serve(handler := Muting()) as served:
            client, other = await served.client(), await served.client()
            began = time.monotonic()
            client.writer.write(init(10))
            assert await client.answer() == 10
            client.writer.write(init(2) + produce(3))
            other.writer.write(init(4))
            assert await other.answer() == 4
            await settle()
            assert handler.started == [10, 4]
            assert await client.answer() == 2
            assert time.monotonic() - began >= SECONDS
            assert await client.answer() == 3

    run(test)


def test_what_was_admitted_before_holds_no_memory_meanwhile() -> None:
    async def test() -> None:
        async with serve(handler := Muting()) as served:
            client = await served.client()
            # The second is received in part when the first mutes: it is taken, and its bytes given back.
            first, second = produce(10), produce(2, bytes(300_000))
            client.writer.write(first + second[:-1000])
            assert await client.answer() == 10
            assert served.server.request_bytes >= 300_000
            client.writer.write(second[-1000:] + produce(3, bytes(300_000)))
            assert await client.answer() == 2
            await settle()
            assert handler.started == [10, 2]
            assert served.server.request_bytes == 0
            assert await client.answer() == 3

    run(test)


def test_a_muted_connection_that_waited_for_room_lets_those_behind_it_in() -> None:
    async def test() -> None:
        async with serve(handler := Muting(), max_request_bytes=1000) as served:
            client, other = await served.client(), await served.client()
            client.writer.write(produce(10, bytes(600)) + produce(2, bytes(600)))
            assert await client.answer() == 10
            other.writer.write(produce(3, bytes(600)))
            assert await other.answer() == 3
            assert handler.started == [10, 3]
            assert await client.answer() == 2

    run(test)


def test_a_server_that_stops_and_a_client_that_leaves_wait_for_no_mute() -> None:
    async def test() -> None:
        async with serve(Muting()) as served:
            client, other = await served.client(), await served.client()
            client.writer.write(init(10))
            other.writer.write(init(10) + init(2))  # the second is admitted, and waits
            for one in (client, other):
                assert await one.answer() == 10
            client.writer.close()
            await settle()
            assert served.server.connections == 1
            stopping = asyncio.ensure_future(served.server.stop(5.0))
            assert await asyncio.wait_for(other.answer(), SECONDS / 2) == 2
            await asyncio.wait_for(stopping, SECONDS / 2)

    run(test)
