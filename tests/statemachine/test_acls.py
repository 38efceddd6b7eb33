"""Access control entries: what is kept, what is refused, and each decision against a plain model."""

from __future__ import annotations

from collections.abc import Sequence

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.statemachine.controller import acl_set
from strandline.statemachine.controller.acl import (
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    fault,
    filter_fault,
)
from strandline.statemachine.controller.acl_set import AclSet, Client
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_commands import MAX_ACLS_AT_ONCE, AlterAcls, encode
from strandline.statemachine.kafka_errors import KafkaError
from strandline.statemachine.machine import Corruption
from tests.statemachine.controller_harness import Log

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
LITERAL, PREFIXED, MATCH, ANY = PatternType.LITERAL, PatternType.PREFIXED, PatternType.MATCH, PatternType.ANY
ALLOW, DENY = Permission.ALLOW, Permission.DENY
ALICE = Acl(TOPIC, "orders", LITERAL, "User:alice", "*", Operation.READ, ALLOW)

# The model: every entry is looked at, in words as near to Kafka's documentation as they can be.

IMPLIED = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}


def about(acl: Acl, kind: int, name: str) -> bool:
    if acl.resource_type != kind:
        return False
    if acl.pattern_type == PREFIXED:
        return name.startswith(acl.name)
    return acl.name in (name, "*")


def expected(acls: Sequence[Acl], client: Client, operation: Operation, kind: int, name: str) -> bool | None:
    mine = [acl for acl in acls if about(acl, kind, name)]
    if not mine:
        return None
    mine = [acl for acl in mine if acl.principal in ("User:*", client.principal)]
    mine = [acl for acl in mine if acl.host in ("*", client.host)]
    exact = {operation, Operation.ALL}
    if any(acl.permission == DENY and acl.operation in exact for acl in mine):
        return False
    granting = exact | IMPLIED.get(operation, set())
    return any(acl.permission == ALLOW and acl.operation in granting for acl in mine)


def expected_some(acls: Sequence[Acl], client: Client, operation: Operation, kind: int) -> bool:
    """Kafka's authorizeByResourceType: an allowed pattern that no denied one covers as a whole."""
    mine = [
        acl
        for acl in acls
        if acl.resource_type == kind
        and acl.principal in ("User:*", client.principal)
        and acl.host in ("*", client.host)
        and acl.operation in (operation, Operation.ALL)
    ]
    denied = [acl for acl in mine if acl.permission == DENY]
    if any(acl.name == "*" and acl.pattern_type == LITERAL for acl in denied):
        return False
    for acl in mine:
        if acl.permission == DENY:
            continue
        if acl.name == "*" and acl.pattern_type == LITERAL:
            return True
        covered = any(
            acl.name.startswith(one.name)
            if one.pattern_type == PREFIXED
            else acl.pattern_type == LITERAL and one.name == acl.name
            for one in denied
        )
        if not covered:
            return True
    return False


words = st.sampled_from(["a", "ab", "abc", "abd", "b", "*", "orders"])
operations = st.sampled_from([one for one in Operation if one is not Operation.ANY])
principals = st.sampled_from(["User:alice", "User:bob", "User:*", "Group:alice"])
hosts = st.sampled_from(["*", "10.0.0.1", "10.0.0.2"])
kinds = st.sampled_from([TOPIC, GROUP])
acls = st.builds(
    Acl, kinds, words, st.sampled_from([LITERAL, PREFIXED]), principals, hosts, operations,
    st.sampled_from([ALLOW, ALLOW, DENY]),
)  # fmt: skip
clients = st.builds(Client, st.sampled_from(["User:alice", "User:bob"]), st.sampled_from(["10.0.0.1", "::1"]))


@settings(max_examples=400, deadline=None)
@given(st.lists(acls, max_size=12), st.lists(acls, max_size=4), clients)
def test_each_decision_is_the_models(added: list[Acl], removed: list[Acl], client: Client) -> None:
    machine = AclSet()
    machine.alter(AlterAcls(added, ()))
    machine.alter(AlterAcls((), removed))
    left = [acl for acl in dict.fromkeys(added) if acl not in removed]
    assert list(machine) == left
    for kind in (TOPIC, GROUP):
        for operation in Operation:
            for name in ("a", "ab", "abcd", "orders", "*", "z"):
                found = machine.decide(client, operation, kind, name)
                assert found == expected(left, client, operation, kind, name), (operation, kind, name)
            assert machine.allows_some(client, operation, kind) == expected_some(
                left, client, operation, kind
            )
    assert AclSet(left).__dict__ == machine.__dict__ | {"version": 0}


def test_a_deny_outweighs_and_implies_nothing() -> None:
    alice, bob = Client("User:alice", "::1"), Client("User:bob", "::1")
    denied = ALICE._replace(permission=DENY, host="::1")
    everyone = Acl(TOPIC, "*", LITERAL, "User:*", "*", Operation.READ, ALLOW)
    machine = AclSet((denied, everyone))
    assert machine.decide(alice, Operation.READ, TOPIC, "orders") is False
    assert machine.decide(alice, Operation.DESCRIBE, TOPIC, "orders") is True  # by everyone's READ
    assert machine.decide(bob, Operation.READ, TOPIC, "orders") is True
    assert machine.decide(bob, Operation.READ, GROUP, "orders") is None


@pytest.mark.parametrize(
    ("host", "client", "same"),
    [
        ("2001:db8:0:0:0:0:0:1", "2001:db8::1", True),
        ("2001:DB8::1", "2001:db8::1", True),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("2001:db8::2", "2001:db8::1", False),
        ("10.0.0.2", "::ffff:10.0.0.1", False),
        ("no address", "2001:db8::1", False),
        ("10.0.0.1", "10.0.0.11", False),
        ("10.0.0.1", "not:an:address", False),
    ],
)
def test_a_deny_holds_for_every_spelling_of_an_address(host: str, client: str, same: bool) -> None:
    everyone = Acl(TOPIC, "*", LITERAL, "User:*", "*", Operation.READ, ALLOW)
    machine = AclSet((everyone, ALICE._replace(permission=DENY, host=host)))
    assert machine.decide(Client("User:alice", client), Operation.READ, TOPIC, "orders") is not same


def test_entries_come_and_go_and_survive_a_snapshot() -> None:
    log = Log()
    bob = ALICE._replace(principal="User:bob")
    assert log.do(AlterAcls((ALICE, bob, ALICE), ())) == 2
    assert log.do(AlterAcls((ALICE,), (bob, bob))) == 1
    again = Controller(lambda *_: None)
    again.restore(log.machine.snapshot())
    assert list(again.acls) == [ALICE]
    assert again.snapshot() == log.machine.snapshot()


def test_a_snapshot_before_them_is_read() -> None:
    log = Log(nodes=2)
    fields = msgpack.unpackb(log.machine.snapshot())
    fields["format"] = 6
    del fields["acls"], fields["view_programs"], fields["client_quotas"]
    again = Controller(lambda *_: None)
    again.restore(msgpack.packb(fields))
    assert again.snapshot() == log.machine.snapshot()


def test_the_version_tells_of_each_change() -> None:
    machine = AclSet()
    for command in (AlterAcls((ALICE,), ()), AlterAcls((), (ALICE,))):
        before = machine.version
        machine.alter(command)
        assert machine.version > before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"resource_type": 1}, "Invalid resourceType 1"),
        ({"resource_type": 8}, "Invalid resourceType 8"),
        ({"resource_type": CLUSTER}, "name for the CLUSTER resource is kafka-cluster"),
        ({"name": ""}, "Resource name should not be empty"),
        ({"pattern_type": MATCH}, "Invalid patternType 2"),
        ({"operation": 1}, "Invalid operation 1"),
        ({"operation": 99}, "Invalid operation 99"),
        ({"permission": 1}, "Invalid permissionType 1"),
        ({"principal": "alice"}, "no colon"),
        ({"host": "x" * 4097}, "at most 4096"),
    ],
)
def test_each_refusal_changes_nothing(changes: dict[str, object], message: str) -> None:
    log = Log()
    log.do(AlterAcls((ALICE,), ()))
    good = ALICE._replace(name="other")
    error, told = log.refused(AlterAcls((good, ALICE._replace(**changes)), (ALICE,)))  # type: ignore[arg-type]
    assert error is KafkaError.INVALID_REQUEST
    assert message in told
    assert list(log.machine.acls) == [ALICE]


def test_they_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_set, "MAX_ACLS", 2)
    log = Log()
    rows = [ALICE._replace(name=name) for name in "abc"]
    log.do(AlterAcls(rows[:2], ()))
    assert log.refused(AlterAcls(rows, ()))[0] is KafkaError.POLICY_VIOLATION
    assert log.do(AlterAcls(rows[:2], ())) == 2
    assert log.do(AlterAcls((), rows)) == 0
    monkeypatch.setattr(acl_set, "MAX_CHARACTERS", 30)
    assert log.do(AlterAcls(rows[:2], ())) == 2
    log.do(AlterAcls((), rows))
    assert log.refused(AlterAcls((ALICE._replace(name="x" * 20),), ()))[0] is KafkaError.POLICY_VIOLATION


def test_a_command_with_too_many_is_never_written_down() -> None:
    rows = [ALICE._replace(name=str(number)) for number in range(MAX_ACLS_AT_ONCE + 1)]
    encode(AlterAcls(rows[1:], rows[1:]))
    with pytest.raises(Corruption):
        encode(AlterAcls(rows, ()))


# Filters, by hand from KIP-290.

EVERY = AclFilter(ResourceType.ANY, None, ANY, None, None, Operation.ANY, Permission.ANY)
PREFIX = Acl(TOPIC, "ord", PREFIXED, "User:bob", "10.0.0.1", Operation.WRITE, DENY)
STAR = Acl(TOPIC, "*", LITERAL, "User:*", "*", Operation.DESCRIBE, ALLOW)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (EVERY, [ALICE, PREFIX, STAR]),
        (EVERY._replace(resource_type=GROUP), []),
        (EVERY._replace(name="orders"), [ALICE]),
        (EVERY._replace(name="orders", pattern_type=MATCH), [ALICE, PREFIX, STAR]),
        (EVERY._replace(name="other", pattern_type=MATCH), [STAR]),
        (EVERY._replace(name="ord", pattern_type=PREFIXED), [PREFIX]),
        (EVERY._replace(name="ord", pattern_type=LITERAL), []),
        (EVERY._replace(pattern_type=LITERAL), [ALICE, STAR]),
        (EVERY._replace(principal="User:bob"), [PREFIX]),
        (EVERY._replace(host="*"), [ALICE, STAR]),
        (EVERY._replace(operation=Operation.DESCRIBE), [STAR]),
        (EVERY._replace(permission=DENY), [PREFIX]),
    ],
)
def test_a_filter_finds_what_kafka_s_finds(wanted: AclFilter, found: list[Acl]) -> None:
    assert [acl for acl in (ALICE, PREFIX, STAR) if wanted.matches(acl)] == found
    assert filter_fault(wanted) is None


@pytest.mark.parametrize("field", ["resource_type", "pattern_type", "operation", "permission"])
def test_a_filter_with_an_unknown_number_is_refused(field: str) -> None:
    for number in (0, 77):
        assert filter_fault(AclFilter(**{**EVERY._asdict(), field: number})) is not None


def test_a_valid_entry_has_no_fault() -> None:
    for acl in (ALICE, PREFIX, STAR):
        assert fault(acl) is None
