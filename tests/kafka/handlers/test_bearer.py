"""Logins by OAUTHBEARER step by step: what is proved, when it ends, and that a failure tells nothing."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.bearer import INVALID_TOKEN, BearerExchange
from strandline.node.kafka.handlers.sasl import AGAIN_SECONDS, FAILED_SECONDS, LONGEST_SECONDS
from strandline.node.kafka.handlers.scram import LoginFailed
from strandline.node.kafka.wire.session import ANONYMOUS, VIEWS, SaslSession
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.handlers.sasl_logins import AUTHENTICATE, HANDSHAKE
from tests.oauth.issuer import token, tokens

BOTH = ("SCRAM-SHA-256", "OAUTHBEARER")


def message(bearer: str, user: str = "", more: str = "") -> bytes:
    return f"n,{user},\x01auth=Bearer {bearer}\x01{more}\x01".encode()


def node_of(folder: Path, **session: Any) -> FakeNode:
    node = FakeNode()
    node.now_ms = int(time.time() * 1000)
    node.session = SaslSession("public", mechanisms=BOTH, tokens=tokens(folder), **session)
    return node


async def login(node: FakeNode, first: bytes) -> Any:
    agreed = await node.ask(HANDSHAKE, mechanism="OAUTHBEARER")
    assert (agreed.error_code, agreed.mechanisms) == (ErrorCode.none, BOTH)
    return await node.ask(AUTHENTICATE, auth_bytes=first)


@pytest.mark.parametrize("user", ["", "a=alice"])
@pytest.mark.parametrize("more", ["", "traceId=1-2 3\x01scope=a,b\x01"])
def test_a_right_token_logs_in_until_it_ends(tmp_path: Path, user: str, more: str) -> None:
    async def test() -> None:
        node = node_of(tmp_path)
        answer = await login(node, message(token(exp=int(node.now_ms / 1000) + 90), user, more))
        session: Any = node.session
        assert (answer.error_code, answer.auth_bytes) == (ErrorCode.none, b"")
        assert timedelta(seconds=88) < answer.session_lifetime < timedelta(seconds=91)
        assert (session.logged_in, session.principal, session.failure) == (True, "User:alice", "")
        assert session.mechanism == "OAUTHBEARER"
        assert session.expires == pytest.approx(node.loop.time() + 90, abs=2)

    asyncio.run(test())  # with real threads


def test_the_earlier_end_counts(tmp_path: Path) -> None:
    async def test() -> None:
        node = node_of(tmp_path, max_seconds=50.0)
        answer = await login(node, message(token()))
        assert answer.session_lifetime == timedelta(seconds=50)
        node = node_of(tmp_path)
        answer = await login(node, message(token(exp=10**15)))
        assert answer.session_lifetime == timedelta(seconds=LONGEST_SECONDS)
        node = node_of(tmp_path)
        answer = await login(node, message(token(exp=int(time.time()) - 10)))  # clocks may differ
        assert answer.session_lifetime == timedelta(seconds=AGAIN_SECONDS)

    asyncio.run(test())


def test_a_wrong_token_is_told_nothing_and_the_next_message_ends_the_login(tmp_path: Path) -> None:
    async def test() -> None:
        told = []
        for wrong in (token(iss="other"), token(exp=5), token("rsa-9"), "x.y.z", token(sub=VIEWS)):
            node = node_of(tmp_path)
            session: Any = node.session
            began = node.loop.time()
            answer = await login(node, message(wrong))
            assert node.loop.time() - began >= FAILED_SECONDS
            assert (answer.error_code, answer.auth_bytes) == (ErrorCode.none, INVALID_TOKEN)
            assert (session.logged_in, session.failure) == (False, "")
            # Also a right token comes too late.
            answer = await node.ask(AUTHENTICATE, auth_bytes=message(token()))
            assert session.principal == ANONYMOUS
            assert session.failure.startswith("a login failed: the token") or "no key" in session.failure
            told.append((answer.error_code, answer.error_message, answer.auth_bytes))
        assert set(told) == {
            (ErrorCode.sasl_authentication_failed, "Authentication failed: invalid credentials", b"")
        }

    asyncio.run(test())


def test_a_token_of_one_user_logs_in_no_other(tmp_path: Path) -> None:
    async def test() -> None:
        node = node_of(tmp_path)
        assert (await login(node, message(token(), "a=admin"))).auth_bytes == INVALID_TOKEN
        node = node_of(tmp_path)
        await login(node, message(token()))
        answer = await login(node, message(token(sub="bob")))
        session: Any = node.session
        assert answer.error_code is ErrorCode.sasl_authentication_failed
        assert "Cannot change principals" in answer.error_message
        assert session.principal == "User:alice"

    asyncio.run(test())


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"\x01",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer x",
        b"n,,\x01auth=Basic eA==\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"y,,\x01auth=Bearer x\x01\x01",
        b"n,a=,\x01auth=Bearer x\x01\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
        b"\0alice\0wonderland",
    ],
)
def test_a_message_that_is_not_oauthbearer_s_fails_at_once(tmp_path: Path, wrong: bytes) -> None:
    async def test() -> None:
        node = node_of(tmp_path)
        answer = await login(node, wrong)
        assert answer.error_code is ErrorCode.sasl_authentication_failed
        assert "OAUTHBEARER" in str(getattr(node.session, "failure", ""))

    asyncio.run(test())


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: f"n,,\x01auth={text}\x01\x01".encode()))
def test_whatever_comes_is_no_login(data: bytes) -> None:
    class Tokens:
        def check(self, _: str) -> Any:
            raise LoginFailed("a token")

    exchange = BearerExchange(Tokens())  # type: ignore[arg-type]

    async def test() -> None:
        with pytest.raises(LoginFailed):
            await exchange.step(data, asyncio.get_running_loop())

    asyncio.run(test())


def test_tokens_take_turns_by_address_with_passwords(tmp_path: Path) -> None:
    async def test() -> None:
        node = node_of(tmp_path)
        async with node.login_turns.turn("10.0.0.8"), node.login_turns.turn("10.0.0.9"):
            waiting = asyncio.ensure_future(login(node, message(token())))
            await asyncio.sleep(0.05)
            session: Any = node.session
            assert not session.logged_in, "two are compared already"
        assert (await waiting).error_code is ErrorCode.none
        assert session.logged_in

    asyncio.run(test())
