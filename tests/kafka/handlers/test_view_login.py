"""The processes of views: by which listener they come, how they log in, and what they may do."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from strandline.node.config.authorization import AuthorizationSection
from strandline.node.config.listeners import ListenerSection
from strandline.node.kafka.handlers.authorizer import Authorizer
from strandline.node.kafka.handlers.scram import credential_of
from strandline.node.kafka.wire.session import ANONYMOUS, VIEWS, SaslSession
from strandline.node.views.view_login import Way, password, ways_in
from strandline.node.views.view_rights import ViewRights
from strandline.statemachine.controller.acl import Acl, Operation, PatternType, Permission, ResourceType
from strandline.statemachine.controller.acl_set import AclSet
from strandline.statemachine.controller.controller_commands import (
    AlterScramCredentials,
    DeleteTopic,
    DropViews,
)
from strandline.statemachine.controller.controller_state import ListenerAddress, NodeRegistration
from strandline.statemachine.controller.view_state import group_name
from tests.kafka.handlers.fake_cluster import config
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.handlers.sasl_logins import (
    ALL,
    ALTER,
    AUTHENTICATE,
    HANDSHAKE,
    NAMES,
    SHA_256,
    SHA_512,
    login,
)
from tests.kafka.handlers.scram_client import ScramClient, salted_password
from tests.runtime.jumping_loop import run
from tests.statemachine.view_log import A, B, Views

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
ID = ResourceType.TRANSACTIONAL_ID
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
PEM = "/etc/strandline/node.pem"
PLAIN = ListenerSection("internal", port=1)
SASL = ListenerSection("login", port=2, protocol="SASL_PLAINTEXT")
TLS = ListenerSection(
    "public",
    "0.0.0.0",
    3,
    "kafka.example.org",
    protocol="SASL_SSL",
    certificate=PEM,
    key=PEM,
    nodes_ca="/etc/strandline/ca.pem",
)


def registered(number: int, *listeners: ListenerSection, same: bool = False) -> NodeRegistration:
    told = tuple(
        ListenerAddress(one.name, one.advertised_host or one.host, one.port + (0 if same else 100 * number))
        for one in listeners
    )
    return NodeRegistration(number, 1, *told[0][1:], "127.0.0.1", 7, 8, 1, 1, False, 1, 1, told)


def way(*listeners: ListenerSection, authorized: bool = False, **more: Any) -> tuple[Way | None, str]:
    settings = AuthorizationSection(authorized)
    configured = replace(config(), named_listeners=listeners, authorization=settings)
    ports = {one.name: one.port for one in listeners}
    nodes = [registered(number, *listeners, **more) for number in (1, 2, 3)]
    found, unfit = ways_in(configured, ports, nodes)
    return next(iter(found), None), unfit


def test_a_process_comes_without_a_login_where_nothing_is_authorized_and_else_by_one() -> None:
    assert way(SASL, PLAIN) == ({"bootstrap.servers": "127.0.0.1:1"}, "")
    found, _ = way(PLAIN, SASL, authorized=True)
    assert found == {
        "bootstrap.servers": "127.0.0.1:2",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": VIEWS,
        "sasl.password": password("secret"),
    }
    assert way(PLAIN, authorized=True)[0] == {"bootstrap.servers": "127.0.0.1:1"}
    found, _ = way(TLS, SASL)
    assert found is not None
    assert found["bootstrap.servers"] == "127.0.0.1:2", "the loopback comes first"


def test_by_tls_a_process_comes_to_the_name_of_the_certificate_and_trusts_the_nodes_authorities() -> None:
    found, _ = way(TLS)
    assert found is not None
    assert found["bootstrap.servers"] == "kafka.example.org:3"
    assert found["security.protocol"] == "SASL_SSL"
    assert found["ssl.ca.location"] == "/etc/strandline/ca.pem"


@pytest.mark.parametrize(
    ("listener", "says"),
    [
        (replace(TLS, nodes_ca=""), "public: set nodes_ca to the authorities"),
        (replace(TLS, client_certificate="required", ca=PEM), "public: clients must show certificates"),
        (replace(TLS, protocol="SSL"), "public: clients show certificates by SSL"),
        (replace(SASL, mechanisms=("PLAIN",)), "login: its mechanisms have no SCRAM: add SCRAM-SHA-512"),
    ],
)
def test_a_listener_that_does_not_serve_is_passed_over_with_the_reason(
    listener: ListenerSection, says: str
) -> None:
    found, unfit = way(listener)
    assert found is None
    assert unfit.startswith(says)
    other = replace(PLAIN, host="10.0.0.1")
    assert way(listener, other, authorized=True)[0] == {"bootstrap.servers": "10.0.0.1:1"}


def test_a_listener_that_leads_to_one_node_only_does_not_serve() -> None:
    found, unfit = way(PLAIN, same=True)
    assert found is None
    assert "nodes 1 and 2 are told the same address, 127.0.0.1:1: set advertised_host" in unfit
    configured = replace(config(), named_listeners=(PLAIN, SASL))
    nodes = [registered(1, PLAIN, SASL), registered(2, SASL)]
    (ways, unfit) = ways_in(configured, {"internal": 1, "login": 2}, nodes)
    assert [one["bootstrap.servers"] for one in ways] == ["127.0.0.1:2"]
    assert unfit == "internal: node 2 has no listener of this name"
    nodes[1] = nodes[1]._replace(fenced=True)
    ways, _ = ways_in(configured, {"internal": 1, "login": 2}, nodes)
    assert [one["bootstrap.servers"] for one in ways] == ["127.0.0.1:1", "127.0.0.1:2"]


def test_the_password_is_of_the_secret_alone() -> None:
    assert password("secret") == password("secret") != password("secre")
    assert len(password("secret")) == 64
    assert "secret" not in password("secret")


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
def test_a_node_gives_the_login_to_what_knows_the_secret_only(mechanism: Any) -> None:
    async def test() -> None:
        node = FakeNode()
        name = f"SCRAM-SHA-{256 * mechanism}"
        client = ScramClient(VIEWS, password("secret"), NAMES[mechanism])
        session, answer = await login(node, client, name)
        assert answer.error_code is ErrorCode.none
        assert answer.auth_bytes == client.expected
        assert session.principal == VIEWS, "and not User:Internal:views"
        for wrong in (password("another"), "secret", ""):
            session, answer = await login(node, ScramClient(VIEWS, wrong, NAMES[mechanism]), name)
            assert answer.error_code is ErrorCode.sasl_authentication_failed
            assert (session.logged_in, session.principal) == (False, ANONYMOUS)

    run(test)


def test_no_client_can_have_the_name() -> None:
    async def test() -> None:
        node = FakeNode()
        salted = salted_password("mine", b"0123456789", 4096)
        upsertion = {
            "name": VIEWS, "mechanism": 1, "iterations": 4096, "salt": b"0123456789",
            "salted_password": salted,
        }  # fmt: skip
        answer = await node.ask(ALTER, deletions=(), upsertions=(upsertion,))
        [result] = answer.results
        assert result.error_code is ErrorCode.unacceptable_credential
        assert VIEWS in result.error_message
        assert not node.controller.machine.credentials
        # One that a release before this took is not looked at, by neither kind of login.
        known = credential_of(SHA_256, salted, b"0123456789", 4096)
        node.cluster.apply(AlterScramCredentials(VIEWS, [], [(1, *known)]))
        node.controller.hear()
        assert node.controller.machine.credentials
        session, answer = await login(node, ScramClient(VIEWS, password("secret")))
        assert session.principal == VIEWS
        _, answer = await login(node, ScramClient(VIEWS, "mine"))
        assert answer.error_code is ErrorCode.sasl_authentication_failed
        for text in ("mine", password("secret")):
            session = node.session = SaslSession("public", mechanisms=ALL)
            await node.ask(HANDSHAKE, mechanism="PLAIN")
            answer = await node.ask(AUTHENTICATE, auth_bytes=f"\0{VIEWS}\0{text}".encode())
            assert answer.error_code is ErrorCode.sasl_authentication_failed
            assert (session.logged_in, session.principal) == (False, ANONYMOUS)

    asyncio.run(test())  # with real threads


def test_rights_are_those_of_the_programs_and_end_with_them() -> None:
    log = Views()
    rights = ViewRights(lambda: log.machine)
    attempt = log.live(("v", "out", A))
    created = log.program.created
    following = log.begin(("v", "out", A), ("w", "more", B))
    [hidden] = [name for name in log.names if name != "out"]
    allowed = {
        (TOPIC, "in"): {READ, DESCRIBE},
        (TOPIC, "out"): {WRITE, DESCRIBE},
        (TOPIC, hidden): {WRITE, DESCRIBE},
        (GROUP, group_name("p", created, None)): {READ, DESCRIBE},
        (ID, group_name("p", created, None)): {WRITE, DESCRIBE},
        (GROUP, group_name("p", created, attempt)): {READ, DESCRIBE},
        (ID, group_name("p", created, attempt)): {WRITE, DESCRIBE},
        (GROUP, group_name("p", created, following)): {READ, DESCRIBE},
        (ID, group_name("p", created, following)): {WRITE, DESCRIBE},
    }
    others = [
        (TOPIC, "other"), (GROUP, "billing"), (GROUP, "view.p"),
        (GROUP, group_name("p", created, attempt + 1)), (ID, group_name("q", created, None)),
        (ID, "payments"), (CLUSTER, "kafka-cluster"), (ResourceType.USER, VIEWS),
    ]  # fmt: skip
    for kind, name in [*allowed, *others]:
        for operation in Operation:
            expected = operation in allowed.get((kind, name), ())
            assert rights.allows(operation, kind, name) == expected, (kind, name, operation)
    # A topic that is not there here cannot be told from one that comes soon; none may be made.
    assert rights.allows(WRITE, TOPIC, "unheard-of")
    assert not rights.allows(Operation.CREATE, TOPIC, "unheard-of")
    known = log.machine.topic("in")
    assert known is not None
    log.do(DeleteTopic(known.topic_id))
    log.topic(log.creation(5, "in"))
    assert not rights.allows(READ, TOPIC, "in"), "it is another topic now"
    log.do(DropViews("p", created))
    log.topic(log.creation(4, "out"))
    for kind, name in allowed:
        assert name == hidden or not rights.allows(DESCRIBE, kind, name), (kind, name)


def test_neither_entries_nor_settings_say_what_the_processes_may_do() -> None:
    asked = []

    def views(*question: Any) -> bool:
        asked.append(question)
        return bool(question[-1] == "mine")

    denied = Acl(TOPIC, "*", PatternType.LITERAL, "User:*", "*", Operation.ALL, Permission.DENY)
    allowed = denied._replace(principal=VIEWS, permission=Permission.ALLOW)
    acls = AclSet((denied, allowed))
    one = Authorizer(lambda: acls, AuthorizationSection(True, (), True), views)
    assert one.allows(VIEWS, "10.0.0.1", READ, TOPIC, "mine")
    assert not one.allows(VIEWS, "10.0.0.1", READ, TOPIC, "other")
    given = Authorizer(lambda: AclSet((allowed,)), AuthorizationSection(True), views)
    assert not given.allows_some(VIEWS, "10.0.0.1", WRITE, TOPIC)
    assert not one.allows("User:Internal:views", "10.0.0.1", READ, TOPIC, "mine")
    assert len(asked) == 2
    assert not Authorizer(AclSet, AuthorizationSection(True)).allows(VIEWS, "::1", READ, TOPIC, "mine")
