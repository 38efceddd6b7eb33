"""Users' SCRAM credentials in the controller: what is kept, what is refused, and what is published."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from strandline.statemachine.controller import scram_credentials
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_commands import (
    AlterScramCredentials,
    ControllerCheckpoint,
    encode,
)
from strandline.statemachine.kafka_errors import KafkaError
from strandline.statemachine.machine import Corruption
from tests.statemachine.controller_harness import Log

A, B = bytes(range(32)), bytes(range(64))
ALICE = (1, 4096, b"salt", A, A[::-1])


def upsert(user: str, *rows: Any) -> AlterScramCredentials:
    return AlterScramCredentials(user, (), rows)


def test_a_user_has_one_credential_for_each_mechanism() -> None:
    log = Log()
    assert log.do(upsert("alice", ALICE, (2, 8192, b"s", B, B))) == 2
    assert log.do(upsert("bob", ALICE)) == 1
    assert log.do(upsert("alice", (1, 5000, b"other", A, A))) == 2
    assert log.machine.credentials["alice", 1] == (5000, b"other", A, A)
    assert log.do(AlterScramCredentials("alice", (1,), ())) == 1
    assert set(log.machine.credentials) == {("alice", 2), ("bob", 1)}
    assert log.do(AlterScramCredentials("alice", (2,), (ALICE,))) == 1
    assert set(log.machine.credentials) == {("alice", 1), ("bob", 1)}


def test_a_snapshot_has_them_and_what_is_published_has_not() -> None:
    log = Log()
    log.do(upsert("alice", ALICE))
    log.do(ControllerCheckpoint())
    again = Controller(lambda *_: None)
    again.restore(log.machine.snapshot())
    assert again.credentials == log.machine.credentials
    assert again.snapshot() == log.machine.snapshot()
    (_, published) = log.checkpoints[-1]
    assert msgpack.unpackb(published)["credentials"] == []
    assert A not in published
    assert A in log.machine.snapshot()


def test_a_snapshot_before_them_is_read() -> None:
    log = Log(nodes=2)
    fields = msgpack.unpackb(log.machine.snapshot())
    fields["format"] = 5
    del fields["credentials"], fields["acls"], fields["view_programs"], fields["client_quotas"]
    again = Controller(lambda *_: None)
    again.restore(msgpack.packb(fields))
    assert again.snapshot() == log.machine.snapshot()


@pytest.mark.parametrize(
    ("command", "error", "message"),
    [
        (upsert("", ALICE), KafkaError.UNACCEPTABLE_CREDENTIAL, "1 to 255 characters"),
        (upsert("x" * 256, ALICE), KafkaError.UNACCEPTABLE_CREDENTIAL, "1 to 255 characters"),
        (upsert("a", (3, 4096, b"s", A, A)), KafkaError.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM"),
        (upsert("a", (1, 4095, b"s", A, A)), KafkaError.UNACCEPTABLE_CREDENTIAL, "Too few iterations"),
        (upsert("a", (1, 16385, b"s", A, A)), KafkaError.UNACCEPTABLE_CREDENTIAL, "Too many iterations"),
        (upsert("a", (1, 4096, b"", A, A)), KafkaError.UNACCEPTABLE_CREDENTIAL, "1 to 1024 bytes"),
        (upsert("a", (1, 4096, b"s", B, A)), KafkaError.UNACCEPTABLE_CREDENTIAL, "length of the mechanism"),
        (upsert("a", ALICE, ALICE), KafkaError.DUPLICATE_RESOURCE, "altered twice"),
        (AlterScramCredentials("there", (1,), (ALICE,)), KafkaError.DUPLICATE_RESOURCE, "altered twice"),
        (AlterScramCredentials("there", (2,), (ALICE,)), KafkaError.RESOURCE_NOT_FOUND, "does not exist"),
        (AlterScramCredentials("there", (7,), ()), KafkaError.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM"),
    ],
)
def test_each_refusal_changes_nothing(
    command: AlterScramCredentials, error: KafkaError, message: str
) -> None:
    log = Log()
    log.do(upsert("there", ALICE))
    refused, told = log.refused(command)
    assert refused is error
    assert message in told


def test_credentials_are_bounded_and_old_ones_can_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scram_credentials, "MAX_CREDENTIALS", 2)
    log = Log()
    for user in ("a", "b"):
        log.do(upsert(user, ALICE))
    assert log.refused(upsert("c", ALICE))[0] is KafkaError.POLICY_VIOLATION
    assert log.do(upsert("a", (1, 9000, b"s", A, A))) == 1


@pytest.mark.parametrize("row", [(1, 4096, "s", A, A), (1, 4096, b"s", A), (2**31, 4096, b"s", A, A)])
def test_what_no_node_may_write_down(row: Any) -> None:
    with pytest.raises(Corruption):
        encode(upsert("a", row))
