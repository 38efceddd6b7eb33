"""A node with users, and a client's login at it."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.apis import ApiKey
from strandline.node.kafka.wire.session import SaslSession
from strandline.statemachine.controller.scram_credentials import ScramMechanism
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.handlers.scram_client import ScramClient, salted_password

HANDSHAKE, AUTHENTICATE = ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE
ALTER, DESCRIBE = ApiKey.ALTER_USER_SCRAM_CREDENTIALS, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS
ALL = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
SHA_256, SHA_512 = ScramMechanism
NAMES = {SHA_256: "sha256", SHA_512: "sha512"}


async def add(node: FakeNode, user: str, password: str, mechanism: ScramMechanism = SHA_256) -> None:
    salted = salted_password(password, b"0123456789", 4096, NAMES[mechanism])
    upsertion = {
        "name": user, "mechanism": int(mechanism), "iterations": 4096,
        "salt": b"0123456789", "salted_password": salted,
    }  # fmt: skip
    answer = await node.ask(ALTER, deletions=(), upsertions=(upsertion,))
    assert [one.error_code for one in answer.results] == [ErrorCode.none]


async def with_users() -> FakeNode:
    node = FakeNode()
    await add(node, "alice", "wonder,land=")
    await add(node, "bob", "builder", SHA_512)
    await add(node, "a,b=c", "odd")
    return node


async def login(node: FakeNode, client: ScramClient, mechanism: str = "SCRAM-SHA-256") -> Any:
    """The session, and the last answer."""
    session = node.session = SaslSession("public", mechanisms=ALL)
    answer = await node.ask(HANDSHAKE, mechanism=mechanism)
    assert (answer.error_code, answer.mechanisms) == (ErrorCode.none, ALL)
    answer = await node.ask(AUTHENTICATE, auth_bytes=client.first())
    if answer.error_code is ErrorCode.none:
        assert not session.logged_in
        answer = await node.ask(AUTHENTICATE, auth_bytes=client.final(answer.auth_bytes))
    return session, answer
