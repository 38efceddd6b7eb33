"""Logins: SCRAM and PLAIN step by step, what fails them, and that a failure tells nothing."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from datetime import timedelta
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers import sasl, scram
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.passwords import is_users_password
from strandline.node.kafka.handlers.sasl import AGAIN_SECONDS, FAILED_SECONDS
from strandline.node.kafka.handlers.scram import (
    LoginFailed,
    ScramExchange,
    ScramFailed,
    credential_of,
    stranger,
)
from strandline.node.kafka.wire.session import ANONYMOUS, SaslSession
from strandline.statemachine.controller.scram_credentials import ScramCredential, ScramMechanism
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.handlers.sasl_logins import (
    ALL,
    ALTER,
    AUTHENTICATE,
    DESCRIBE,
    HANDSHAKE,
    NAMES,
    SHA_256,
    SHA_512,
    add,
    login,
    with_users,
)
from tests.kafka.handlers.scram_client import ScramClient, salted_password
from tests.runtime.jumping_loop import run


@pytest.mark.parametrize(
    ("user", "password", "mechanism"),
    [("alice", "wonder,land=", SHA_256), ("bob", "builder", SHA_512), ("a,b=c", "odd", SHA_256)],
)
def test_the_right_password_logs_in_and_the_server_proves_itself(
    user: str, password: str, mechanism: ScramMechanism
) -> None:
    async def test() -> None:
        node = await with_users()
        client = ScramClient(user, password, NAMES[mechanism])
        session, answer = await login(node, client, f"SCRAM-SHA-{256 * mechanism}")
        assert answer.error_code is ErrorCode.none
        assert answer.auth_bytes == client.expected
        assert (session.logged_in, session.principal, session.failure) == (True, f"User:{user}", "")
        again = await node.ask(HANDSHAKE, mechanism="PLAIN")
        assert again.error_code is ErrorCode.illegal_sasl_state
        again = await node.ask(AUTHENTICATE, auth_bytes=b"")
        assert again.error_code is ErrorCode.illegal_sasl_state
        assert session.principal == f"User:{user}"

    run(test)


def test_an_unknown_user_and_a_wrong_password_look_alike() -> None:
    async def test() -> None:
        node = await with_users()
        told = []
        for user in ("alice", "nobody", "bob"):  # bob has no credential for this mechanism
            node.session = SaslSession("public", mechanisms=ALL)
            client = ScramClient(user, "wrong")
            await node.ask(HANDSHAKE, mechanism="SCRAM-SHA-256")
            first = await node.ask(AUTHENTICATE, auth_bytes=client.first())
            began = node.loop.time()
            final = await node.ask(AUTHENTICATE, auth_bytes=client.final(first.auth_bytes))
            took = node.loop.time() - began
            fields = dict(field.split("=", 1) for field in first.auth_bytes.decode().split(","))
            assert final.auth_bytes == b""
            assert not node.session.logged_in
            assert node.session.principal == ANONYMOUS
            assert node.session.failure == (
                f"a login failed: user {user!r} is unknown, or its password is wrong"
            )
            told.append(
                (first.error_code, fields["i"], final.error_code, final.error_message, round(took, 6))
            )
        assert set(told) == {
            (
                ErrorCode.none,
                "4096",
                ErrorCode.sasl_authentication_failed,
                "Authentication failed: invalid credentials",
                FAILED_SECONDS,
            )
        }

    run(test)


def test_a_stranger_s_salt_is_always_the_same_and_depends_on_the_cluster() -> None:
    one = stranger(SHA_256, "nobody", b"secret")
    assert one == stranger(SHA_256, "nobody", b"secret")
    assert one.salt != stranger(SHA_256, "nobody", b"other").salt
    assert one.salt != stranger(SHA_512, "nobody", b"secret").salt
    assert one.salt != stranger(SHA_256, "somebody", b"secret").salt
    assert len(one.salt) == 26


def test_no_proof_is_right_for_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even if the credential that it seems to have were that of a password."""
    monkeypatch.setattr(scram, "stranger", lambda *_: credential_for(stranger(*_)))
    exchange = ScramExchange(SHA_256, lambda user: None, b"secret", "server")
    client = ScramClient("nobody", "x")
    first = exchange.first(client.first())
    seems = stranger(SHA_256, "nobody", b"secret")
    known = ScramExchange(SHA_256, lambda user: credential_for(seems), b"secret", "server")
    assert known.first(client.first()) == first
    final = client.final(first)
    assert known.final(final) == client.expected
    with pytest.raises(ScramFailed, match="is unknown, or its password is wrong"):
        exchange.final(final)


def credential_for(seems: ScramCredential) -> ScramCredential:
    salted = salted_password("x", seems.salt, seems.iterations)
    return credential_of(SHA_256, salted, seems.salt, seems.iterations)


def test_the_example_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    credential = credential_of(SHA_256, salted_password("pencil", salt, 4096), salt, 4096)
    exchange = ScramExchange(SHA_256, lambda user: credential, b"", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = exchange.first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = exchange.final(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_a_recorded_login_cannot_be_played_again() -> None:
    credential = credential_of(SHA_256, salted_password("pencil", b"salt", 4096), b"salt", 4096)
    client = ScramClient("user", "pencil")
    recorded = ScramExchange(SHA_256, lambda user: credential, b"", "first")
    final = client.final(recorded.first(client.first()))
    assert recorded.final(final) == client.expected
    later = ScramExchange(SHA_256, lambda user: credential, b"", "other")
    later.first(client.first())
    with pytest.raises(ScramFailed):
        later.final(final)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"", "is not SCRAM's"),
        (b"\xff", "not UTF-8"),
        (b"n,,n=user", "is not SCRAM's"),
        (b"n,,n=,r=x", "is not SCRAM's"),
        (b"n,,m=ext,n=user,r=x", "is not SCRAM's"),
        (b"n,,n=us=er,r=x", "not escaped"),
        (b"p=tls-unique,,n=user,r=x", "channel binding"),
        (b"n,a=admin,n=user,r=x", "asks to act"),
        (b"n,,n=" + b"x" * 256 + b",r=x", "has 256 characters"),
    ],
)
def test_a_first_message_that_is_wrong(message: bytes, words: str) -> None:
    with pytest.raises(ScramFailed, match=words):
        ScramExchange(SHA_256, lambda user: None, b"", "n").first(message)


@pytest.mark.parametrize(
    "change",
    [
        lambda final: b"",
        lambda final: final.replace(b"c=biws", b"c=eSws"),
        lambda final: final.replace(b"r=r", b"r=R"),
        lambda final: final[:-4] + b"AAA=",
        lambda final: final[: final.index(b",p=")] + b",p=AAAA",
        lambda final: final[: final.index(b",p=")] + b",p=A",
        lambda final: final[: final.index(b",p=")],
    ],
)
def test_a_final_message_that_is_wrong(change: Any) -> None:
    credential = credential_of(SHA_256, salted_password("pencil", b"salt", 4096), b"salt", 4096)
    exchange = ScramExchange(SHA_256, lambda user: credential, b"", "n")
    client = ScramClient("user", "pencil")
    final = client.final(exchange.first(client.first()))
    assert change(final) != final
    with pytest.raises(ScramFailed):
        exchange.final(change(final))


@pytest.mark.parametrize("other", [{"binding": "eSws"}, {"suffix": "x"}])
def test_a_proof_of_another_binding_or_nonce_is_no_proof(other: dict[str, str]) -> None:
    """The client knows the password, and signs what was not agreed on."""
    credential = credential_of(SHA_256, salted_password("pencil", b"salt", 4096), b"salt", 4096)
    exchange = ScramExchange(SHA_256, lambda user: credential, b"", "n")
    client = ScramClient("user", "pencil")
    final = client.final(exchange.first(client.first()), **other)
    with pytest.raises(ScramFailed):
        exchange.final(final)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
@pytest.mark.parametrize("password", [None, "another"])
def test_a_user_that_goes_or_changes_during_its_login_is_not_let_in(
    monkeypatch: pytest.MonkeyPatch, mechanism: str, password: str | None
) -> None:
    async def test() -> None:
        node, compare = await with_users(), is_users_password
        admin, own = node.session, SaslSession("public", mechanisms=ALL)

        async def change() -> None:
            node.session = admin
            if password is not None:
                await add(node, "alice", password)
            else:
                gone = {"name": "alice", "mechanism": int(SHA_256)}
                answer = await node.ask(ALTER, deletions=(gone,), upsertions=())
                assert answer.results[0].error_code is ErrorCode.none
            node.session = own

        async def compared(*given: Any, **more: Any) -> bool:
            right = await compare(*given, **more)
            await change()
            return right

        monkeypatch.setattr(sasl, "is_users_password", compared)
        node.session, client = own, ScramClient("alice", "wonder,land=")
        await node.ask(HANDSHAKE, mechanism=mechanism)
        if mechanism == "PLAIN":
            answer = await node.ask(AUTHENTICATE, auth_bytes=b"\0alice\0wonder,land=")
        else:
            answer = await node.ask(AUTHENTICATE, auth_bytes=client.first())
            await change()
            answer = await node.ask(AUTHENTICATE, auth_bytes=client.final(answer.auth_bytes))
        assert answer.error_code is ErrorCode.sasl_authentication_failed
        assert not own.logged_in

    asyncio.run(test())  # with real threads


@pytest.mark.parametrize(
    ("token", "user"),
    [
        (b"\0alice\0wonder,land=", "alice"),
        (b"alice\0alice\0wonder,land=", "alice"),
        (b"\0bob\0builder", "bob"),
        (b"\0alice\0wrong", None),
        (b"\0nobody\0x", None),
        (b"\0alice\0", None),
        (b"bob\0alice\0wonder,land=", None),
        (b"\0alice", None),
        (b"\0" + b"x" * 60_000 + b"\0y", None),
        (b"\0alice\0a\0b", None),
        (b"\xff\0\xff\0\xff", None),
    ],
)
def test_plain_compares_with_the_credential_of_scram(token: bytes, user: str | None) -> None:
    async def test() -> None:
        node = await with_users()
        session = node.session = SaslSession("public", mechanisms=ALL)
        await node.ask(HANDSHAKE, mechanism="PLAIN")
        answer = await node.ask(AUTHENTICATE, auth_bytes=token)
        assert session.logged_in == (user is not None)
        assert len(session.failure) < 1000
        assert session.principal == (ANONYMOUS if user is None else f"User:{user}")
        expected = ErrorCode.sasl_authentication_failed if user is None else ErrorCode.none
        assert answer.error_code is expected

    asyncio.run(test())  # with real threads


def test_guesses_from_one_address_keep_no_login_from_another_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two passwords are compared at a time, and the addresses have their turns one after the other."""
    compared: list[str] = []

    async def slowly(_: Any, user: str, *__: Any, **___: Any) -> bool:
        await asyncio.sleep(0.01)
        compared.append(user)
        return user == "alice"

    monkeypatch.setattr(sasl, "is_users_password", slowly)

    async def one(node: FakeNode, user: str, address: str) -> bool:
        token = f"\0{user}\0guess".encode()
        with contextlib.suppress(LoginFailed):
            return await sasl._by_password(cast("BrokerContext", node), token, address) == user
        return False

    async def test() -> None:
        node = await with_users()
        guesses = [one(node, f"guess{number}", "10.0.0.9") for number in range(100)]
        right = one(node, "alice", "10.0.0.7")
        assert (await asyncio.gather(*guesses, right))[-1]
        assert compared.index("alice") <= 4

    run(test)


def test_steps_out_of_order() -> None:
    async def test() -> None:
        node = await with_users()
        assert (await node.ask(HANDSHAKE, mechanism="PLAIN")).error_code is ErrorCode.illegal_sasl_state
        answer = await node.ask(AUTHENTICATE, auth_bytes=b"\0alice\0wonder,land=")
        assert answer.error_code is ErrorCode.illegal_sasl_state
        for mechanism, code, mechanisms, failure in (
            ("GSSAPI", ErrorCode.unsupported_sasl_mechanism, ("PLAIN",), "'GSSAPI' is not one of PLAIN"),
            ("SCRAM-SHA-256", ErrorCode.unsupported_sasl_mechanism, ("PLAIN",), "is not one of PLAIN"),
        ):
            session = node.session = SaslSession("public", mechanisms=("PLAIN",))
            answer = await node.ask(HANDSHAKE, mechanism=mechanism)
            assert (answer.error_code, answer.mechanisms) == (code, mechanisms)
            assert failure in session.failure
        session = node.session = SaslSession("public", mechanisms=ALL)
        answer = await node.ask(AUTHENTICATE, auth_bytes=b"\0alice\0wonder,land=")
        assert answer.error_code is ErrorCode.illegal_sasl_state
        assert session.failure == "the client sent SaslAuthenticate without a SaslHandshake"
        session = node.session = SaslSession("public", mechanisms=ALL)
        await node.ask(HANDSHAKE, mechanism="PLAIN")
        assert (await node.ask(HANDSHAKE, mechanism="PLAIN")).error_code is ErrorCode.illegal_sasl_state
        assert session.failure == "the client sent a second SaslHandshake"

    run(test)


# The next login on a connection (KIP-368).


async def plain(node: FakeNode, token: bytes) -> Any:
    agreed = await node.ask(HANDSHAKE, mechanism="PLAIN")
    return agreed, await node.ask(AUTHENTICATE, auth_bytes=token)


def test_a_login_has_an_end_that_is_told_and_another_takes_its_place() -> None:
    async def test() -> None:
        node = await with_users()
        session, answer = await login(node, ScramClient("alice", "wonder,land="))
        assert (session.expires, answer.session_lifetime) == (None, timedelta(0))
        session = node.session = SaslSession("public", mechanisms=ALL, max_seconds=4.5)
        for times in (1, 2, 3):
            before = node.loop.time()
            _, answer = await plain(node, b"\0alice\0wonder,land=")
            assert answer.error_code is ErrorCode.none
            assert answer.session_lifetime == timedelta(seconds=4.5)
            assert session.expires is not None
            assert before + 4.5 <= session.expires <= node.loop.time() + 4.5
            assert (session.logins, session.principal, session.failure) == (times, "User:alice", "")
            # The second may come at once, each later one a second after the one before.
            if times > 1:
                early, answer = await plain(node, b"\0alice\0wonder,land=")
                assert early.error_code is answer.error_code is ErrorCode.illegal_sasl_state
                assert session.failure == ""
                await asyncio.sleep(AGAIN_SECONDS)

    asyncio.run(test())  # with real threads


@pytest.mark.parametrize(
    ("mechanism", "token", "told"),
    [
        ("PLAIN", b"\0bob\0builder", "Cannot change principals during re-authentication from User:alice"),
        ("PLAIN", b"\0alice\0wrong", "Authentication failed: invalid credentials"),
        ("SCRAM-SHA-256", ScramClient("alice", "wonder,land=").first(), "is not supported for re-auth"),
    ],
)
def test_another_login_is_by_the_same_user_and_mechanism(mechanism: str, token: bytes, told: str) -> None:
    async def test() -> None:
        node = await with_users()
        session = node.session = SaslSession("public", mechanisms=ALL, max_seconds=60.0)
        await plain(node, b"\0alice\0wonder,land=")
        agreed = await node.ask(HANDSHAKE, mechanism=mechanism)
        answer = await node.ask(AUTHENTICATE, auth_bytes=token)
        assert (agreed.error_code, answer.error_code) == (
            ErrorCode.none, ErrorCode.sasl_authentication_failed,
        )  # fmt: skip
        assert told in answer.error_message
        assert session.failure.startswith("a login failed: ")
        assert (session.principal, session.logins) == ("User:alice", 1)

    asyncio.run(test())


# Credentials by Kafka's requests.


def test_credentials_are_described_and_each_user_has_its_own_answer() -> None:
    async def test() -> None:
        node = await with_users()
        await add(node, "bob", "builder", SHA_256)
        answer = await node.ask(DESCRIBE, users=None)
        told = {
            one.user: sorted((i.mechanism, i.iterations) for i in one.credential_infos)
            for one in answer.results
        }
        assert told == {"alice": [(1, 4096)], "bob": [(1, 4096), (2, 4096)], "a,b=c": [(1, 4096)]}
        asked = [{"name": name} for name in ("alice", "nobody", "bob", "bob")]
        answer = await node.ask(DESCRIBE, users=asked)
        assert [(one.user, one.error_code) for one in answer.results] == [
            ("alice", ErrorCode.none),
            ("nobody", ErrorCode.resource_not_found),
            ("bob", ErrorCode.duplicate_resource),
        ]
        answer = await node.ask(
            ALTER,
            deletions=tuple({"name": name, "mechanism": 1} for name in ("alice", "nobody")),
            upsertions=(
                {"name": "few", "mechanism": 1, "iterations": 1, "salt": b"s", "salted_password": b"p"},
                {"name": "odd", "mechanism": 9, "iterations": 4096, "salt": b"s", "salted_password": b"p"},
            ),
        )
        assert [(one.user, one.error_code) for one in answer.results] == [
            ("alice", ErrorCode.none),
            ("nobody", ErrorCode.resource_not_found),
            ("few", ErrorCode.unacceptable_credential),
            ("odd", ErrorCode.unsupported_sasl_mechanism),
        ]
        session, answer = await login(node, ScramClient("alice", "wonder,land="))
        assert answer.error_code is ErrorCode.sasl_authentication_failed
        assert not session.logged_in

    run(test)


# Hostile input.


@settings(max_examples=300, deadline=None)
@given(
    st.binary(max_size=200) | st.text("nyp=,abr0 \0é", max_size=60).map(str.encode), st.binary(max_size=200)
)
def test_whatever_comes_is_an_answer_or_a_login_that_fails(first: bytes, final: bytes) -> None:
    exchange = ScramExchange(SHA_256, lambda user: None, b"secret", "nonce")
    for step, message in ((exchange.first, first), (exchange.final, final), (exchange.final, b"n,,n=a,r=b")):
        with contextlib.suppress(ScramFailed):
            assert step(message).startswith(b"r=")


@pytest.mark.parametrize("part", [b",p=A", b",a=", b"=", b"=2C", b"A"])
@pytest.mark.parametrize("head", [b"n,,n=u,r=x", b"c=biws,r=x", b"n,,n=", b""])
def test_a_message_as_long_as_a_frame_costs_little(head: bytes, part: bytes) -> None:
    message = head + part * (64 * 1024 // len(part)) + b"\n"
    exchange = ScramExchange(SHA_256, lambda user: None, b"secret", "nonce")
    exchange.first(b"n,,n=user,r=x")
    began = time.process_time()
    for step in (exchange.final, ScramExchange(SHA_256, lambda user: None, b"", "n").first):
        with contextlib.suppress(ScramFailed):
            step(message)
    assert time.process_time() - began < 0.5
