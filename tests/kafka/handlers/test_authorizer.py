"""The authorizer: super users, what is remembered and for how long; and the requests that change ACLs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from strandline.node.config.authorization import AuthorizationSection
from strandline.node.kafka.handlers import authorizer as authorizer_module
from strandline.node.kafka.handlers.authorizer import Authorizer
from strandline.node.kafka.wire.apis import ApiKey
from strandline.node.kafka.wire.session import Session
from strandline.statemachine.controller.acl import Acl, Operation, PatternType, Permission, ResourceType
from strandline.statemachine.controller.acl_set import AclSet
from strandline.statemachine.controller.controller_commands import MAX_ACLS_AT_ONCE, AlterAcls
from tests.kafka.handlers.fake_node import FakeNode
from tests.runtime.jumping_loop import run

TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
ALICE = Acl(TOPIC, "orders", PatternType.LITERAL, "User:alice", "*", READ, Permission.ALLOW)
HERE = "127.0.0.1"


def section(*super_users: str, everyone: bool = False) -> AuthorizationSection:
    return AuthorizationSection(True, super_users, everyone)


def test_without_acls_only_super_users_may_act() -> None:
    one = Authorizer(AclSet, section("User:admin"))
    assert one.allows("User:admin", HERE, WRITE, TOPIC, "orders")
    assert one.allows_some("User:admin", HERE, WRITE, TOPIC)
    assert not one.allows("User:alice", HERE, WRITE, TOPIC, "orders")
    assert not one.allows_some("User:alice", HERE, WRITE, TOPIC)


def test_a_deny_does_not_hold_a_super_user() -> None:
    denied = ALICE._replace(permission=Permission.DENY, principal="User:*", operation=Operation.ALL)
    acls = AclSet((denied, denied._replace(name="*")))
    one = Authorizer(lambda: acls, section("User:admin", everyone=True))
    assert one.allows("User:admin", HERE, READ, TOPIC, "orders")
    assert one.allows_some("User:admin", HERE, READ, TOPIC)
    assert not one.allows("User:alice", HERE, READ, TOPIC, "orders")
    assert not one.allows_some("User:alice", HERE, READ, TOPIC)


def test_everyone_may_act_where_there_is_no_acl_if_that_is_so_set() -> None:
    acls = AclSet((ALICE,))
    one = Authorizer(lambda: acls, section(everyone=True))
    assert one.allows("User:bob", HERE, WRITE, TOPIC, "other")
    assert not one.allows("User:bob", HERE, WRITE, TOPIC, "orders")
    assert one.allows_some("User:bob", HERE, WRITE, TOPIC)


def test_a_producer_of_one_prefix_may_write_some_topic() -> None:
    acls = AclSet((ALICE._replace(name="ord", pattern_type=PatternType.PREFIXED, operation=WRITE),))
    one = Authorizer(lambda: acls, section())
    assert one.allows_some("User:alice", HERE, WRITE, TOPIC)
    assert not one.allows_some("User:alice", HERE, WRITE, ResourceType.GROUP)
    assert not one.allows_some("User:bob", HERE, WRITE, TOPIC)


@pytest.mark.parametrize("letter", ["x", "\u00e9", "\u4e2d", "\U0001f600"])
def test_a_name_that_is_remembered_takes_little_memory_in_any_script(letter: str) -> None:
    acls = AclSet()
    one = Authorizer(lambda: acls, section())
    for length in (1, 100, 249, 300, 512, 4096, 32_767):
        assert not one.allows("User:alice", HERE, READ, TOPIC, letter * length)
    names = [name for *_, name in one._known if name is not None]
    assert letter in names
    assert max(map(sys.getsizeof, names)) <= 600


changes = st.lists(
    st.tuples(
        st.booleans(),
        st.sampled_from(
            [ALICE._replace(name=name, permission=kind) for name in ("a", "b") for kind in (2, 3)]
        ),
    ),
    max_size=6,
)


@settings(max_examples=100, deadline=None)
@given(changes, st.integers(1, 3))
def test_what_is_remembered_is_what_a_new_one_decides(steps: list[tuple[bool, Acl]], bound: int) -> None:
    acls = AclSet()
    with patch.object(authorizer_module, "MAX_REMEMBERED", bound):
        one = Authorizer(lambda: acls, section())
        for number, (adds, acl) in enumerate(steps):
            acls.alter(AlterAcls((acl,), ()) if adds else AlterAcls((), (acl,)))
            if number == 3:
                acls = AclSet(acls)  # a snapshot was installed, whose version is lower
            fresh = Authorizer(partial(AclSet, acls), section())
            for name in ("a", "b", "a", "x" * 600):
                for operation in (READ, DESCRIBE, WRITE):
                    asked = ("User:alice", HERE, operation, TOPIC, name)
                    assert one.allows(*asked) == fresh.allows(*asked)
            assert len(one._known) <= bound
            assert all(len(key[4] or "") <= 512 for key in one._known)


def test_it_may_be_made_before_the_controller_s_replica() -> None:
    def none_yet() -> AclSet:
        raise LookupError

    with pytest.raises(LookupError):
        Authorizer(none_yet, section()).allows("User:alice", HERE, READ, TOPIC, "t")


def test_a_decision_is_made_once() -> None:
    acls = AclSet((ALICE,))
    one = Authorizer(lambda: acls, section())
    with patch.object(AclSet, "decide", autospec=True, side_effect=AclSet.decide) as decide:
        for _ in range(3):
            assert one.allows("User:alice", HERE, READ, TOPIC, "orders")
            assert not one.allows("User:bob", HERE, READ, TOPIC, "orders")
            assert not one.allows("User:alice", HERE, READ, TOPIC, "other")
    assert decide.call_count == 3


# Requests.

ROW: dict[str, Any] = {
    "resource_type": 2, "resource_name": "orders", "resource_pattern_type": 3, "principal": "User:alice",
    "host": "*", "operation": 3, "permission_type": 3,
}  # fmt: skip
EVERY: dict[str, Any] = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
    "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip


def at_node(test: Callable[[FakeNode], Any], *, authorized: bool = True) -> None:
    async def live() -> None:
        node = FakeNode()
        if authorized:
            acls = lambda: node.controller.machine.acls  # noqa: E731
            node.authorizer = Authorizer(acls, section("User:admin"))
        node.session = Session("public", "User:admin")
        await test(node)

    run(live)


async def create(node: FakeNode, *rows: dict[str, Any], version: int | None = None) -> list[ErrorCode]:
    answer = await node.ask(ApiKey.CREATE_ACLS, version, creations=rows)
    return [one.error_code for one in answer.results]


async def described(node: FakeNode, version: int | None = None, **wanted: Any) -> list[tuple[Any, ...]]:
    answer = await node.ask(ApiKey.DESCRIBE_ACLS, version, **{**EVERY, **wanted})
    assert answer.error_code is ErrorCode.none, answer
    return [
        (one.resource_type, one.resource_name, one.pattern_type, acl.principal, acl.host, acl.operation)
        for one in answer.resources
        for acl in one.acls
    ]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acls_are_made_found_and_removed(version: int) -> None:
    async def test(node: FakeNode) -> None:
        bob = {**ROW, "principal": "User:bob", "operation": 4}
        assert await create(node, ROW, bob, version=version) == [ErrorCode.none] * 2
        assert await create(node, ROW, version=version) == [ErrorCode.none]
        rows = [(2, "orders", 3, "User:alice", "*", 3), (2, "orders", 3, "User:bob", "*", 4)]
        assert await described(node, version) == rows
        assert await described(node, version, principal_filter="User:bob") == rows[1:]
        filters = [{**EVERY, "operation": 4}, {**EVERY, "resource_name_filter": "none"}]
        answer = await node.ask(ApiKey.DELETE_ACLS, version, filters=filters)
        found = [[one.principal for one in result.matching_acls] for result in answer.filter_results]
        assert found == [["User:bob"], []]
        assert await described(node, version) == rows[:1]

    at_node(test)


def test_a_faulty_acl_is_refused_by_itself() -> None:
    async def test(node: FakeNode) -> None:
        bad = {**ROW, "resource_type": 4}
        assert await create(node, bad, ROW) == [ErrorCode.invalid_request, ErrorCode.none]
        assert await create(node, bad) == [ErrorCode.invalid_request]
        assert len(await described(node)) == 1
        answer = await node.ask(ApiKey.DELETE_ACLS, filters=[{**EVERY, "operation": 99}, EVERY])
        assert [one.error_code for one in answer.filter_results] == [
            ErrorCode.invalid_request,
            ErrorCode.none,
        ]
        assert await described(node) == []
        answer = await node.ask(ApiKey.DESCRIBE_ACLS, **{**EVERY, "permission_type": 0})
        assert answer.error_code is ErrorCode.invalid_request

    at_node(test)


def test_a_request_with_too_many_is_refused_and_all_can_be_removed_at_once() -> None:
    async def test(node: FakeNode) -> None:
        rows = [{**ROW, "resource_name": f"t{number}"} for number in range(MAX_ACLS_AT_ONCE + 1)]
        assert {*(await create(node, *rows))} == {ErrorCode.invalid_request}
        assert {*(await create(node, *rows[1:]))} == {ErrorCode.none}
        assert {*(await create(node, ROW))} == {ErrorCode.none}
        answer = await node.ask(ApiKey.DELETE_ACLS, filters=[EVERY] * (MAX_ACLS_AT_ONCE + 1))
        assert {one.error_code for one in answer.filter_results} == {ErrorCode.invalid_request}
        answer = await node.ask(ApiKey.DELETE_ACLS, filters=[EVERY])
        assert len(answer.filter_results[0].matching_acls) == MAX_ACLS_AT_ONCE + 1
        assert await described(node) == []

    at_node(test)


def test_without_authorization_there_are_no_acls() -> None:
    async def test(node: FakeNode) -> None:
        assert await create(node, ROW) == [ErrorCode.security_disabled]
        answer = await node.ask(ApiKey.DESCRIBE_ACLS, **EVERY)
        assert (answer.error_code, answer.resources) == (ErrorCode.security_disabled, ())
        assert "authorization.enabled" in answer.error_message
        answer = await node.ask(ApiKey.DELETE_ACLS, filters=[EVERY])
        assert [one.error_code for one in answer.filter_results] == [ErrorCode.security_disabled]
        assert len(node.controller.machine.acls) == 0

    at_node(test, authorized=False)


def test_a_change_counts_for_a_client_that_is_connected() -> None:
    async def test(node: FakeNode) -> None:
        node.topic("orders")

        async def fetched() -> ErrorCode:
            node.session = Session("public", "User:alice")
            answer = await node.fetch({("orders", 0): 0})
            node.session = Session("public", "User:admin")
            return cast(ErrorCode, answer.responses[0].partitions[0].error_code)

        assert await fetched() is ErrorCode.topic_authorization_failed
        await create(node, ROW)
        assert await fetched() is ErrorCode.none
        await create(node, {**ROW, "permission_type": 2, "principal": "User:*"})
        assert await fetched() is ErrorCode.topic_authorization_failed

    at_node(test)
