"""One connection's rules: the order of answers, what overlaps, every bound, and what ends a connection."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import wraps
from typing import Any

import pytest
import uvloop

from strandline.node.kafka.wire.connection import Connection
from strandline.node.kafka.wire.handler import CloseConnection, EncodedBody, Request
from strandline.node.kafka.wire.server_config import CloseReason
from strandline.node.kafka.wire.session import UNNAMED
from tests.kafka.wire.server_harness import (
    EchoHandler,
    HeldHandler,
    answer_to,
    api_versions,
    commit,
    init,
    produce,
    request,
    serve,
    settle,
)

Test = Callable[[], Coroutine[Any, Any, None]]


def on_both_loops(test: Test) -> Callable[..., None]:
    """Run a test on asyncio's own loop, which joins writes, and on uvloop, which sends views."""

    @pytest.mark.parametrize(
        "loops", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
    )
    @wraps(test)
    def run(loops: Callable[[], asyncio.AbstractEventLoop]) -> None:
        with asyncio.Runner(loop_factory=loops) as runner:
            runner.run(test())

    del run.__wrapped__
    return run


def held() -> HeldHandler:
    return HeldHandler(asyncio.get_running_loop())


@on_both_loops
async def test_each_connection_that_is_gone_is_told_once_after_its_requests_were_cancelled() -> None:
    async with serve(handler := held(), idle_seconds=3600) as served:
        clients = [await served.client() for _ in range(3)]
        for number, client in enumerate(clients):
            client.writer.write(init(number))
            await settle()
        clients[1].writer.close()
        await settle()
        assert (served.lost, handler.cancelled) == ([2], [1])
        next(iter(served.server._connections)).close(CloseReason.IDLE, "a test")
        assert served.lost == [2, 1]
        await settle()
        assert (served.lost, handler.cancelled) == ([2, 1], [1, 0])
    assert served.lost == [2, 1, 3]


# Order.


@on_both_loops
async def test_produce_requests_overlap_and_answers_keep_the_order() -> None:
    async with serve(handler := held()) as served:
        client = await served.client()
        client.writer.write(produce(1) + produce(2) + produce(3))
        await settle()
        assert handler.started == [1, 2, 3]
        handler.release(3)
        handler.release(2)
        await settle()
        assert handler.finished == [3, 2]
        handler.release(1)
        assert [await client.answer() for _ in range(3)] == [1, 2, 3]


@on_both_loops
async def test_offset_commits_overlap_but_not_with_produce_requests() -> None:
    async with serve(handler := held()) as served:
        client = await served.client()
        client.writer.write(produce(1) + commit(2) + commit(3) + produce(4))
        await settle()
        assert handler.started == [1]
        handler.release(1)
        await settle()
        assert handler.started == [1, 2, 3]
        handler.release(3)
        await settle()
        assert handler.started == [1, 2, 3]
        handler.release(2)
        await settle()
        assert handler.started == [1, 2, 3, 4]
        handler.release(4)
        assert [await client.answer() for _ in range(4)] == [1, 2, 3, 4]


@on_both_loops
async def test_any_other_request_waits_for_those_before_it_and_holds_those_behind() -> None:
    async with serve(handler := held()) as served:
        client = await served.client()
        client.writer.write(produce(1) + produce(2) + init(3) + init(4) + produce(5) + produce(6))
        await settle()
        assert handler.started == [1, 2]
        handler.release(2)
        await settle()
        assert handler.started == [1, 2]
        handler.release(1)
        await settle()
        assert handler.started == [1, 2, 3]
        handler.release(3)
        await settle()
        assert handler.started == [1, 2, 3, 4]
        handler.release(4)
        await settle()
        assert handler.started == [1, 2, 3, 4, 5, 6]
        handler.release(5)
        handler.release(6)
        assert [await client.answer() for _ in range(6)] == [1, 2, 3, 4, 5, 6]


@on_both_loops
async def test_connections_do_not_wait_for_each_other() -> None:
    async with serve(handler := held()) as served:
        first, second = await served.client(), await served.client()
        first.writer.write(init(1))
        await settle()
        second.writer.write(init(2))
        await settle()
        handler.release(2)
        assert await second.answer() == 2
        handler.release(1)
        assert await first.answer() == 1


@on_both_loops
async def test_api_versions_is_answered_without_the_handler_and_in_its_turn() -> None:
    async with serve(handler := held()) as served:
        client = await served.client()
        client.writer.write(init(1) + api_versions(2) + api_versions(3, version=99))
        await settle()
        assert handler.started == [1]
        handler.release(1)
        assert await client.answer() == 1
        assert struct.unpack(">ih", (await client.frame())[:6]) == (2, 0)
        assert struct.unpack(">ih", (await client.frame())[:6]) == (3, 35)


@on_both_loops
async def test_no_answer_where_the_handler_gives_none() -> None:
    class Silent:
        async def handle(self, asked: Request) -> Any:
            return None if asked.header.correlation_id == 1 else answer_to(asked)

    async with serve(Silent()) as served:
        client = await served.client()
        client.writer.write(produce(1, acks=0) + produce(2))
        assert await client.answer() == 2
        await settle()
        assert served.server.request_bytes == 0


@on_both_loops
async def test_encoded_bodies_are_sent_as_they_are() -> None:
    class Encoded:
        async def handle(self, asked: Request) -> Any:
            return EncodedBody([b"ab", memoryview(b"c" * 300_000)])

    async with serve(Encoded()) as served:
        client = await served.client()
        client.writer.write(init(7) + init(8))
        assert await client.frame() == struct.pack(">i", 7) + b"ab" + b"c" * 300_000
        assert await client.frame() == struct.pack(">i", 8) + b"ab" + b"c" * 300_000


@on_both_loops
async def test_a_large_request_arrives_whole() -> None:
    class Sizes:
        async def handle(self, asked: Request) -> Any:
            (topic,) = asked.payload.topic_data
            (partition,) = topic.partition_data
            return EncodedBody([partition.records[::100_000]])

    records = bytes(range(256)) * 20_000
    async with serve(Sizes()) as served:
        client = await served.client()
        client.writer.write(produce(1, records) + produce(2, records) + produce(3, b"x"))
        for number in (1, 2):
            assert await client.frame() == struct.pack(">i", number) + records[::100_000]
        assert await client.frame() == struct.pack(">i", 3) + b"x"


# What ends a connection, and only that one.


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (struct.pack(">i", -1), "oversized_frame"),
        (struct.pack(">i", 100 * 1024 * 1024 + 1), "oversized_frame"),
        (struct.pack(">i", 0), "malformed_frame"),
        (struct.pack(">i", 3) + b"abc", "malformed_frame"),
        (request(22, 0, 9, struct.pack(">hi", 500, 1)), "malformed_frame"),
        (request(3, 99, 9, bytes(20)), "unsupported_request"),
        (request(0, 2, 9, bytes(20)), "unsupported_request"),
        (request(77, 0, 9, bytes(20)), "unsupported_request"),
    ],
)
def test_a_bad_frame_closes_its_connection_after_the_answers_before_it(bad: bytes, reason: str) -> None:
    async def run() -> None:
        async with serve(handler := held()) as served:
            other, client = await served.client(), await served.client()
            other.writer.write(init(1))
            client.writer.write(init(2) + bad + produce(3))
            await settle()
            assert served.problems == []
            handler.release(2)
            assert await client.answer() == 2
            assert await client.ended()
            await settle()
            assert served.reasons() == [reason]
            assert served.server.counters[f"closed_{reason}"] == 1
            assert 3 not in handler.started
            handler.release(1)
            assert await other.answer() == 1
            assert served.server.connections == 1
            assert served.server.request_bytes == 0

    asyncio.run(run())


@on_both_loops
async def test_a_handler_that_raises_closes_its_connection_only() -> None:
    class Raises:
        async def handle(self, asked: Request) -> Any:
            await asyncio.sleep(0)
            if asked.header.correlation_id == 2:
                raise ZeroDivisionError("what")
            if asked.header.correlation_id == 3:
                raise CloseConnection("as Kafka does")
            if asked.header.correlation_id == 4:
                raise asyncio.CancelledError
            if asked.header.correlation_id == 5:
                return "no entity"
            return answer_to(asked)

    async with serve(Raises()) as served:
        clients = [await served.client() for _ in range(5)]
        for number, client in enumerate(clients, 1):
            client.writer.write(init(number))
        assert await clients[0].answer() == 1
        for client in clients[1:]:
            assert await client.ended()
        assert sorted(served.reasons()) == ["handler_error"] * 3 + ["refused_by_handler"]
        assert any("ZeroDivisionError('what')" in str(problem) for problem in served.problems)
        assert served.server.connections == 1


@on_both_loops
async def test_a_lost_client_s_requests_are_cancelled_unless_they_write() -> None:
    async with serve(handler := held()) as served:
        asking, writing = await served.client(), await served.client()
        asking.writer.write(init(1) + init(2))
        writing.writer.write(produce(3) + produce(4))
        await settle()
        assert sorted(handler.started) == [1, 3, 4]
        asking.writer.transport.abort()
        writing.writer.transport.abort()
        await settle()
        assert handler.cancelled == [1]
        assert served.server.request_bytes == len(produce(3)) + len(produce(4)) - 8
        handler.release(3)
        handler.release(4)
        await settle()
        assert handler.finished == [3, 4]
        assert served.server.request_bytes == 0
        assert 2 not in handler.started
        assert served.problems == []


# Bounds.


@on_both_loops
async def test_requests_in_flight_are_bounded_and_reading_stops() -> None:
    async with serve(handler := held(), max_in_flight=3) as served:
        client = await served.client()
        total = 3000
        for number in range(total):
            client.writer.write(produce(number, bytes(10_000)))
        await settle()
        assert handler.started == [0, 1, 2]
        assert served.server.request_bytes < 3 * 10_100
        transport: Any = client.writer.transport
        assert transport.get_write_buffer_size() > total * 10_000 // 3
        for number in range(30):
            handler.release(number)
            await settle(2)
        assert [await client.answer() for _ in range(30)] == list(range(30))
        assert handler.started == list(range(33))


@on_both_loops
async def test_more_sync_answers_than_fit_in_flight_are_all_given() -> None:
    async with serve(EchoHandler(), max_in_flight=2) as served:
        client = await served.client()
        client.writer.write(b"".join(api_versions(number) for number in range(50)))
        assert [await client.answer() for _ in range(50)] == list(range(50))


@on_both_loops
async def test_a_slow_reader_holds_back_its_own_next_request_then_is_closed() -> None:
    answer = EncodedBody([bytes(4 << 20)])
    started: list[int] = []

    class Large:
        async def handle(self, asked: Request) -> Any:
            started.append(asked.header.correlation_id)
            return answer

    async with serve(Large(), unsent_bytes=1 << 16, slow_reader_seconds=0.2, sweep_seconds=0.05) as served:
        client = await served.client()
        for number in range(20):
            client.writer.write(init(number))
        await settle()
        assert 1 <= len(started) <= 4
        await asyncio.sleep(0.5)
        assert served.reasons() == ["slow_reader"]
        assert len(started) <= 4
        assert served.server.connections == 0
        assert served.server.request_bytes == 0


@on_both_loops
async def test_a_reader_that_is_only_slow_is_not_closed() -> None:
    class Large:
        async def handle(self, asked: Request) -> Any:
            return EncodedBody([bytes(12 << 20)])

    async with serve(Large(), unsent_bytes=1 << 16, slow_reader_seconds=10.0, sweep_seconds=1e6) as served:
        client = await served.client(receive_buffer=1 << 16)
        client.writer.write(init(1))
        await settle()
        (connection,) = served.server._connections
        transport = connection._transport
        assert transport is not None
        now = asyncio.get_running_loop().time()
        steps = 0
        connection.check(now)
        while unsent := transport.get_write_buffer_size():
            while unsent and transport.get_write_buffer_size() >= unsent:
                assert await asyncio.wait_for(client.reader.read(1 << 20), 5)
            now += 9.0
            connection.check(now)
            steps += 1
        assert steps > 2
        assert served.problems == []


@on_both_loops
async def test_idle_connections_are_closed_and_busy_ones_are_not() -> None:
    async with serve(handler := held(), idle_seconds=0.1, sweep_seconds=0.03) as served:
        idle, busy = await served.client(), await served.client()
        busy.writer.write(init(1))
        assert await idle.ended()
        await asyncio.sleep(0.2)
        assert served.reasons() == ["idle"]
        handler.release(1)
        assert await busy.answer() == 1


@on_both_loops
async def test_a_frame_that_does_not_come_to_its_end_is_given_up() -> None:
    async with serve(EchoHandler(), frame_seconds=0.15, sweep_seconds=0.03) as served:
        dripping, prefix_only = await served.client(), await served.client()
        prefix_only.writer.write(b"\0")
        dripping.writer.write(struct.pack(">i", 1 << 20))
        with suppress(OSError, RuntimeError):  # it is closed on the way
            for _ in range(10):
                dripping.writer.write(b"x")
                await asyncio.sleep(0.04)
        assert await dripping.ended()
        assert await prefix_only.ended()
        assert served.reasons() == ["slow_sender", "slow_sender"]
        assert served.server.request_bytes == 0


@on_both_loops
async def test_the_time_of_a_frame_does_not_run_while_nothing_is_read() -> None:
    async with serve(handler := held(), max_in_flight=1, frame_seconds=0.4, sweep_seconds=1e6) as served:
        client = await served.client()
        client.writer.write(init(1) + init(2)[:2])
        await settle()
        (connection,) = served.server._connections
        await asyncio.sleep(0.5)
        connection.check(asyncio.get_running_loop().time())
        handler.release(1)
        assert await client.answer() == 1
        connection.check(asyncio.get_running_loop().time())
        assert served.problems == []
        client.writer.write(init(2)[2:])
        await settle()
        handler.release(2)
        assert await client.answer() == 2


@on_both_loops
async def test_connections_are_bounded_and_one_more_waits_for_its_turn() -> None:
    async with serve(handler := EchoHandler(), max_connections=2) as served:
        clients = [await served.client() for _ in range(3)]
        for client in reversed(clients):
            client.writer.write(init(5))
        for client in clients[:2]:
            assert await client.answer() == 5
        await settle()
        assert (served.server.quotas.waiting, handler.asked) == (1, 2), "it is not read"
        clients[0].writer.close()
        assert await clients[2].answer() == 5
        assert (served.server.quotas.waiting, served.reasons()) == (0, [])


@on_both_loops
async def test_all_connections_share_one_budget_of_request_bytes() -> None:
    size = len(produce(0, bytes(1000))) - 4
    async with serve(handler := held(), max_request_bytes=3 * size) as served:
        clients = [await served.client() for _ in range(10)]
        for number, client in enumerate(clients):
            client.writer.write(produce(number, bytes(1000)))
            await settle(3)
        assert handler.started == [0, 1, 2]
        assert served.server.request_bytes == 3 * size
        for number, client in enumerate(clients):
            handler.release(number)
            assert await client.answer() == number
        assert handler.started == list(range(10))
        assert served.server.request_bytes == 0


@on_both_loops
async def test_one_that_waits_for_the_budget_may_go_and_the_next_is_let_in() -> None:
    size = len(produce(0)) - 4
    async with serve(
        handler := held(), max_request_bytes=size, frame_seconds=0.1, sweep_seconds=0.03
    ) as served:
        holding, stuck, behind = [await served.client() for _ in range(3)]
        holding.writer.write(produce(0))
        await settle()
        stuck.writer.write(produce(1)[:9])
        await settle()
        behind.writer.write(produce(2))
        await settle()
        handler.release(0)
        assert await holding.answer() == 0
        assert await stuck.ended()  # let in, it held the budget and sent no more
        await settle()
        assert handler.started == [0, 2]
        handler.release(2)
        assert await behind.answer() == 2
        assert served.server.request_bytes == 0


@on_both_loops
async def test_a_frame_larger_than_the_budget_passes_when_nothing_else_is_held() -> None:
    async with serve(handler := held(), max_request_bytes=1000) as served:
        small, large = await served.client(), await served.client()
        small.writer.write(init(1))
        await settle()
        large.writer.write(produce(2, bytes(200_000)))
        await settle()
        overtaking = await served.client()
        overtaking.writer.write(init(3))
        await settle()
        assert handler.started == [1]
        handler.release(1)
        assert await small.answer() == 1
        await settle()
        assert handler.started == [1, 2]
        handler.release(2)
        assert await large.answer() == 2
        await settle()
        assert handler.started == [1, 2, 3]
        handler.release(3)
        assert await overtaking.answer() == 3
        assert served.server.request_bytes == 0


@on_both_loops
async def test_sync_answers_wake_those_that_wait_for_the_budget() -> None:
    async with serve(EchoHandler(), max_request_bytes=1) as served:
        clients = [await served.client() for _ in range(250)]
        for client in clients:
            client.writer.write(b"".join(api_versions(n) if n % 2 else init(n) for n in range(4)))
        for client in clients:
            assert [await client.answer() for _ in range(4)] == list(range(4))


def test_idle_connections_are_small() -> None:
    async def run() -> int:
        import tracemalloc

        async with serve(EchoHandler()) as served:
            tracemalloc.start()
            connections = [Connection(served.server, UNNAMED) for _ in range(1000)]
            current, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert len(connections) == 1000
            return current // 1000

    assert asyncio.run(run()) < 4000


@on_both_loops
async def test_a_closed_connection_waits_for_the_budget_no_more() -> None:
    async with serve(handler := held(), max_request_bytes=1, idle_seconds=0.5, sweep_seconds=0.02) as served:
        holding, closed, behind = [await served.client() for _ in range(3)]
        for number, client in enumerate((holding, closed, behind)):
            client.writer.write(init(number))
            await settle()
        await asyncio.sleep(1.0)
        assert served.problems == []  # to wait here is not to be idle
        next(iter(served.server._starved)).close(CloseReason.STOPPED, "for the test")
        handler.release(0)
        assert await holding.answer() == 0
        await settle()
        assert handler.started == [0, 2]
        handler.release(2)
        assert await behind.answer() == 2


@on_both_loops
async def test_large_answers_are_sent_to_their_end_before_a_bad_frame_closes() -> None:
    class Large:
        async def handle(self, asked: Request) -> Any:
            return EncodedBody([bytes(12 << 20)])

    async with serve(Large()) as served:
        client = await served.client(receive_buffer=1 << 16)
        client.writer.write(init(1) + struct.pack(">i", -1))
        await settle()
        assert len(await client.frame()) == 4 + (12 << 20)
        assert await client.ended()
        assert served.reasons() == ["oversized_frame"]


# The end.


@on_both_loops
async def test_what_comes_while_a_connection_drains_is_dropped() -> None:
    async with serve(handler := held()) as served:
        client = await served.client()
        client.writer.write(init(1))
        await settle()
        stopping = asyncio.create_task(served.server.stop(5))
        await settle()
        for _ in range(20):
            client.writer.write(produce(2, bytes(1 << 20)))
            await client.writer.drain()
        await settle()
        (connection,) = served.server._connections
        assert not connection._parser.waits_for_bytes
        handler.release(1)
        assert await client.answer() == 1
        await stopping


@on_both_loops
async def test_stop_gives_the_answers_under_way_and_reads_nothing_more() -> None:
    async with serve(handler := held()) as served:
        client, idle = await served.client(), await served.client()
        client.writer.write(produce(1) + produce(2))
        await settle()
        stopping = asyncio.create_task(served.server.stop(5))
        await settle()
        client.writer.write(produce(3))
        await settle()
        assert await idle.ended()
        handler.release(1)
        handler.release(2)
        assert [await client.answer(), await client.answer()] == [1, 2]
        assert await client.ended()
        await asyncio.wait_for(stopping, 5)
        assert handler.started == [1, 2]
        assert served.problems == []


@on_both_loops
async def test_stop_ends_what_does_not_end_in_time() -> None:
    async with serve(handler := held()) as served:
        client = await served.client()
        client.writer.write(init(1))
        await settle()
        await asyncio.wait_for(served.server.stop(0.05), 5)
        assert await client.ended()
        assert handler.cancelled == [1]
        assert served.reasons() == ["stopped"]
