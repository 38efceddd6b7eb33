"""The record of actions: who did what, with which outcome, and that no stranger can flood it."""

from __future__ import annotations

import logging
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from strandline.node.config.authorization import AuthorizationSection
from strandline.node.kafka.handlers import action_log
from strandline.node.kafka.handlers.action_log import CHANGES, MAX_NAMES, ActionLog
from strandline.node.kafka.handlers.authorizer import Authorizer
from strandline.node.kafka.handlers.handler import BrokerHandler
from strandline.node.kafka.wire.apis import ApiKey
from strandline.node.kafka.wire.codec import RequestHeader
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.session import Session
from strandline.node.runtime.line_bound import BURST, LINES_PER_SECOND, LineBound
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.handlers.sasl_logins import login, with_users
from tests.kafka.handlers.scram_client import ScramClient
from tests.runtime.jumping_loop import run


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def request(user: str = "User:alice", key: ApiKey = ApiKey.FETCH, payload: Any = None) -> Request:
    return Request(RequestHeader(key, 1, 1, None), payload, "10.0.0.1", 1, 1, Session("public", user))


@pytest.fixture(autouse=True)
def _heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "strandline.actions")


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    names = ("action", "principal", "host", "listener", "request", "operation", "resource", "errors")
    return {name: vars(record)[name] for name in names if name in vars(record)}


def test_a_refusal_is_told_once_a_minute_with_its_number(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    actions = ActionLog(clock)
    for second in range(100):
        clock.now = second
        actions.refusal(request(), "READ", "TOPIC", "orders")
    assert caplog.messages == [
        "User:alice from 10.0.0.1: may not READ TOPIC:orders, asked by FETCH",
        "User:alice from 10.0.0.1: may not READ TOPIC:orders, asked by FETCH (59 times more before)",
    ]
    assert fields_of(caplog.records[0]) == {
        "action": "refusal", "principal": "User:alice", "host": "10.0.0.1", "listener": "public",
        "request": "FETCH", "operation": "READ", "resource": "TOPIC:orders",
    }  # fmt: skip


def test_a_flood_of_refusals_is_bounded_and_hides_no_change(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    actions = ActionLog(clock)
    for number in range(10 * BURST):
        actions.refusal(request(), "READ", "TOPIC", f"t{number}")
    assert len(caplog.messages) == BURST
    payload = SimpleNamespace(groups_names=("g",))
    actions.change(request(key=ApiKey.DELETE_GROUPS, payload=payload), (ErrorCode.none,))
    assert caplog.messages[-1] == "User:alice from 10.0.0.1: DELETE_GROUPS of g: done"
    clock.now = 1.0
    actions.refusal(request(), "READ", "TOPIC", "last")
    assert caplog.messages[-1].endswith(f"({9 * BURST} lines of this kind were left out)")
    for second in range(50):
        clock.now = 100.0 + second
        for number in range(100):
            actions.refusal(request(), "READ", "TOPIC", f"n{second}-{number}")
    assert len(caplog.messages) <= 2 * BURST + 2 + 50 * LINES_PER_SECOND


@pytest.mark.parametrize(
    "code", [ErrorCode.group_authorization_failed, ErrorCode.invalid_request], ids=lambda code: code.name
)
def test_a_flood_of_changes_that_are_refused_hides_no_change(
    caplog: pytest.LogCaptureFixture, code: ErrorCode
) -> None:
    clock = Clock()
    actions = ActionLog(clock)

    def deletion(user: str, *names: str) -> Request:
        return request(user, ApiKey.DELETE_GROUPS, SimpleNamespace(groups_names=names))

    for number in range(10 * BURST):
        actions.change(deletion("User:mallory", f"g{number}"), (code,))
    assert len(caplog.messages) == BURST
    assert fields_of(caplog.records[0])["action"] == "attempt"
    actions.change(deletion("User:alice", "g", "h"), (code, ErrorCode.none))
    assert caplog.messages[-1] == f"User:alice from 10.0.0.1: DELETE_GROUPS of g, h: 1 {code.name}"
    assert fields_of(caplog.records[-1])["action"] == "change"


def test_a_change_whose_end_is_not_known_is_told_as_a_change(caplog: pytest.LogCaptureFixture) -> None:
    actions = ActionLog(Clock())
    payload = SimpleNamespace(groups_names=("g",))
    actions.change(request(key=ApiKey.DELETE_GROUPS, payload=payload), (ErrorCode.request_timed_out,))
    assert fields_of(caplog.records[0])["action"] == "change"


def test_requests_that_change_nothing_are_not_told(caplog: pytest.LogCaptureFixture) -> None:
    actions = ActionLog(Clock())
    actions.change(request(key=ApiKey.DELETE_GROUPS, payload=SimpleNamespace(groups_names=())), ())
    without_places = SimpleNamespace(markers=(SimpleNamespace(producer_id=7, topics=()),))
    actions.change(request(key=ApiKey.WRITE_TXN_MARKERS, payload=without_places), ())
    tried = SimpleNamespace(topics=(SimpleNamespace(name="t"),), validate_only=True)
    actions.change(request(key=ApiKey.CREATE_TOPICS, payload=tried), (ErrorCode.none,))
    assert caplog.messages == []


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action_log, "MAX_REMEMBERED", 3)
    actions = ActionLog(Clock())
    for number in range(10):
        actions.refusal(request(), "READ", "TOPIC", f"t{number}")
    assert len(actions._told) == 3


def test_names_are_cut(caplog: pytest.LogCaptureFixture) -> None:
    actions = ActionLog(Clock())
    actions.refusal(request("User:" + "x" * 5000), "READ", "TOPIC", "y" * 30_000)
    payload = SimpleNamespace(groups_names=[f"g{number}" for number in range(10_000)])
    actions.change(request(key=ApiKey.DELETE_GROUPS, payload=payload), (ErrorCode.none,))
    assert max(map(len, caplog.messages)) < 1000
    assert len(vars(caplog.records[1])["resources"]) == MAX_NAMES + 1


def test_a_bucket_fills_with_time() -> None:
    bound = LineBound(0.0)
    assert [bound.take(0.0) for _ in range(BURST)] == [0] * BURST
    assert bound.take(0.0) is None
    assert bound.take(1 / LINES_PER_SECOND) == 1
    assert bound.take(1 / LINES_PER_SECOND) is None
    assert [bound.take(1e6) for _ in range(BURST + 1)] == [1, *[0] * (BURST - 1), None]


def test_requests_that_change_are_told_with_their_outcome(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        node = FakeNode()
        node.session = Session("public", "User:alice")
        handler = BrokerHandler(node.context)
        new = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
        topics = tuple(SimpleNamespace(name=name, **new) for name in ("good", "bad name"))
        payload = SimpleNamespace(topics=topics, timeout=timedelta(seconds=1), validate_only=False)
        asked = Request(
            RequestHeader(ApiKey.CREATE_TOPICS, 7, 1, None), payload, "127.0.0.1", 1, 1, node.session
        )
        await handler.handle(asked)

    run(test)
    (line,) = caplog.messages
    assert line == ("User:alice from 127.0.0.1: CREATE_TOPICS of good, bad name: 1 invalid_topic_exception")
    assert fields_of(caplog.records[0])["errors"] == {"invalid_topic_exception": 1}


def test_what_was_not_asked_for_by_name_is_no_refusal(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        node = FakeNode()
        node.topic("t")
        node.authorizer = Authorizer(lambda: node.controller.machine.acls, AuthorizationSection(True))
        fields = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": True}
        await node.ask(ApiKey.METADATA, topics=None, **fields)
        await node.ask(ApiKey.METADATA, 0, topics=[])
        await node.ask(ApiKey.LIST_GROUPS, states_filter=[], types_filter=[])
        cluster = {"endpoint_type": 1, "include_cluster_authorized_operations": True}
        await node.ask(ApiKey.DESCRIBE_CLUSTER, include_fenced_brokers=False, **cluster)
        assert caplog.messages == []
        await node.ask(ApiKey.METADATA, topics=[{"name": "t", "topic_id": None}], **fields)
        assert caplog.messages == [
            "User:ANONYMOUS from 127.0.0.1: may not DESCRIBE TOPIC:t, asked by METADATA"
        ]

    run(test)


def test_a_login_is_told_without_its_password(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        node = await with_users()
        await login(node, ScramClient("alice", "wonder,land=", "sha256"))

    run(test)
    (line,) = caplog.messages
    assert line == "User:alice from 127.0.0.1: logged in by SCRAM-SHA-256"


def test_every_request_that_alters_or_deletes_is_recorded() -> None:
    verbs = (
        "CREATE_",
        "DELETE_",
        "ALTER_",
        "INCREMENTAL_",
        "ELECT_",
        "UPDATE_",
        "UNREGISTER_",
        "WRITE_TXN",
        "OFFSET_DELETE",
    )
    assert {key for key in ApiKey if key.name.startswith(verbs)} == set(CHANGES)
