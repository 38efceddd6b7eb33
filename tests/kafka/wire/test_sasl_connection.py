"""Connections whose clients have to log in: what they may ask before, and what they may cost."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from strandline.node.kafka.wire.apis import ApiKey
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import response_types
from strandline.node.kafka.wire.session import SaslSession
from tests.kafka.wire.server_harness import Served, answer_to, api_versions, init, request, serve, settle


class Login:
    """Takes "yes" for a login, and anything else for one that fails."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.expires: float | None = None

    async def handle(self, asked: Request) -> Any:
        session, key = asked.session, asked.header.api_key
        assert isinstance(session, SaslSession)
        self.asked.append(session.principal)
        if key == ApiKey.SASL_HANDSHAKE:
            a = response_types(key, asked.header.api_version)
            return a.SaslHandshakeResponse(error_code=0, mechanisms=())
        if key != ApiKey.SASL_AUTHENTICATE:
            return answer_to(asked)
        if asked.payload.auth_bytes == b"yes":
            session.logged_in, session.principal, session.logins = True, "User:alice", session.logins + 1
            session.exchange, session.expires = None, self.expires
        elif asked.payload.auth_bytes == b"begin":
            session.exchange, session.began = "begun", asyncio.get_running_loop().time()
        elif asked.payload.auth_bytes == b"no":
            session.failure = "a login failed: as the test wants"
        a = response_types(key, asked.header.api_version)
        return a.SaslAuthenticateResponse(error_code=0, error_message=None, auth_bytes=b"")


def authenticate(correlation: int, token: bytes) -> bytes:
    return request(ApiKey.SASL_AUTHENTICATE, 0, correlation, struct.pack(">i", len(token)) + token)


@asynccontextmanager
async def served(handler: Any, **config: Any) -> AsyncIterator[Served]:
    async with serve(handler, mechanisms=("PLAIN",), sweep_seconds=0.05, **config) as made:
        yield made


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(body(), 30)

    asyncio.run(main())


def test_before_a_login_only_what_it_needs_is_answered() -> None:
    async def test() -> None:
        handler = Login()
        async with served(handler) as server:
            client = await server.client()
            client.writer.write(api_versions(1) + authenticate(2, b"more"))
            assert [await client.answer(), await client.answer()] == [1, 2]
            assert server.server.logging_in == 1
            client.writer.write(init(3))
            assert await client.ended()
            assert server.server.logging_in == 0
        (problem,) = server.problems
        assert problem.reason == "not_logged_in"
        assert problem.message == "listener kafka: the client sent INIT_PRODUCER_ID before its login"
        assert handler.asked == ["User:ANONYMOUS"]

    run(test)


def test_after_it_everything_is_and_under_the_user_s_name() -> None:
    async def test() -> None:
        handler = Login()
        async with served(handler) as server:
            client = await server.client()
            # All at once: what stands behind the login is asked after it.
            client.writer.write(authenticate(1, b"yes") + init(2) + init(3))
            assert [await client.answer() for _ in range(3)] == [1, 2, 3]
            assert server.server.logging_in == 0
            assert server.server.counters["logins"] == 1
            whole = init(4)
            garbage = bytes(500_000)  # frames are as large as they are for other connections
            client.writer.write(struct.pack(">i", len(whole) - 4 + len(garbage)) + whole[4:] + garbage)
            assert await client.answer() == 4
        assert handler.asked[1:] == ["User:alice"] * 3
        assert not server.problems

    run(test)


def test_a_login_that_fails_is_answered_and_ends_the_connection() -> None:
    async def test() -> None:
        handler = Login()
        async with served(handler) as server:
            client = await server.client()
            client.writer.write(authenticate(1, b"no") + authenticate(2, b"yes") + init(3))
            assert await client.answer() == 1
            assert await client.ended()
            await settle()
            assert server.server.logging_in == server.server.connections == server.server.request_bytes == 0
        assert [str(problem) for problem in server.problems] == [
            "closed the connection of 127.0.0.1: listener kafka: a login failed: as the test wants"
        ]
        assert len(handler.asked) == 1

    run(test)


def test_a_frame_before_the_login_is_small() -> None:
    async def test() -> None:
        async with served(Login()) as server:
            client = await server.client()
            client.writer.write(struct.pack(">i", 64 * 1024 + 1))
            assert await client.ended()
        assert server.reasons() == ["oversized_frame"]

    run(test)


def test_a_login_has_its_time() -> None:
    async def test() -> None:
        async with served(Login(), login_seconds=0.3) as server:
            slow, done = await server.client(), await server.client()
            done.writer.write(authenticate(1, b"yes"))
            assert await done.answer() == 1
            for number in range(2, 20):
                slow.writer.write(api_versions(number))
                await asyncio.sleep(0.05)
            assert server.reasons() == ["not_logged_in"]
            done.writer.write(init(2))
            assert await done.answer() == 2

    run(test)


def test_logins_are_bounded_in_number() -> None:
    async def test() -> None:
        async with served(Login(), max_logging_in=2) as server:
            clients = [await server.client() for _ in range(2)]
            await settle()
            third = await server.client()
            assert await third.ended()
            assert server.reasons() == ["too_many_connections"]
            clients[0].writer.write(authenticate(1, b"yes"))
            assert await clients[0].answer() == 1
            fourth = await server.client()
            fourth.writer.write(authenticate(1, b"yes"))
            assert await fourth.answer() == 1
            assert server.server.logging_in == 1

    run(test)


def test_logins_of_one_host_leave_room_to_others() -> None:
    async def test() -> None:
        async with served(Login(), max_logging_in_of_host=2) as server:
            clients = [await server.client() for _ in range(2)]
            await settle()
            third = await server.client()
            assert await third.ended()
            assert "2 other connections of this host have not logged in yet" in str(server.problems)
            (port,) = server.server.ports.values()
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
            writer.write(authenticate(1, b"yes"))
            assert await reader.readexactly(4)
            writer.close()
            clients[0].writer.write(authenticate(1, b"yes"))
            assert await clients[0].answer() == 1
            fourth = await server.client()
            fourth.writer.write(authenticate(1, b"yes"))
            assert await fourth.answer() == 1
            clients[1].writer.close()
            await settle()
            assert not server.server.logging_in_of

    run(test)


def test_one_host_without_logins_has_half_of_the_connections_that_there_may_be() -> None:
    async def test() -> None:
        async with served(Login(), max_connections=4) as server:
            clients = [await server.client() for _ in range(2)]
            await settle()
            third = await server.client()
            assert await third.ended()
            assert "2 other connections of this host have not logged in yet" in str(server.problems)
            clients[0].writer.write(authenticate(1, b"yes"))
            assert await clients[0].answer() == 1
            fourth = await server.client()
            fourth.writer.write(authenticate(1, b"yes"))
            assert await fourth.answer() == 1, "those that have logged in are not in it"

    run(test)


def test_after_the_end_of_a_login_only_another_one_is_answered() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        handler = Login()
        async with served(handler) as server:
            client = await server.client()
            handler.expires = loop.time() + 60
            client.writer.write(authenticate(1, b"yes") + init(2))
            assert [await client.answer(), await client.answer()] == [1, 2]
            handler.expires = loop.time()
            client.writer.write(authenticate(3, b"yes"))
            assert await client.answer() == 3
            asked = len(handler.asked)
            # A handshake is taken up, and nothing else.
            client.writer.write(request(ApiKey.SASL_HANDSHAKE, 1, 4, b"\0\5PLAIN"))
            assert await client.answer() == 4
            client.writer.write(init(5))
            assert await client.ended()
            assert len(handler.asked) == asked + 1
            assert server.reasons() == ["session_expired"]
            assert server.server.counters["logins"] == 2

    run(test)


def test_a_login_again_is_bounded_in_time_and_lets_nothing_between() -> None:
    async def test() -> None:
        async with served(Login(), login_seconds=0.2) as server:
            for sent, why in (
                (b"", "no login within 0.2 s"),
                (init(3), "sent INIT_PRODUCER_ID during another"),
            ):
                client = await server.client()
                client.writer.write(authenticate(1, b"yes") + authenticate(2, b"begin") + sent)
                assert [await client.answer(), await client.answer()] == [1, 2]
                assert await client.ended()
                assert why in server.problems[-1].message
            assert server.reasons() == ["not_logged_in"] * 2

    run(test)
