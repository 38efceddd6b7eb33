"""Every reason has one of Kafka's codes, and Kafka's codes are known to the edge of the node alone."""

from __future__ import annotations

import ast

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.error_codes import CODES, code_of
from strandline.node.refusal import Reason, Refusal
from strandline.statemachine.kafka_errors import KafkaError, Refused
from tests import ROOT

NODE = ROOT / "node"
WIRE = "kio"


def test_every_reason_has_a_code_and_none_is_no_error() -> None:
    assert set(CODES) == set(Reason)
    assert ErrorCode.none not in CODES.values()
    assert code_of(None) is ErrorCode.none


def test_a_state_machines_error_has_kafkas_code_of_the_same_name() -> None:
    for error in KafkaError:
        assert code_of(error).name.upper() == error.name


def test_a_refusal_of_the_node_or_of_a_state_machine_has_the_code_of_its_reason() -> None:
    assert code_of(Refusal(Reason.LATE, "no answer")) is ErrorCode.request_timed_out
    assert code_of(Refusal(KafkaError.NOT_COORDINATOR)) is ErrorCode.not_coordinator
    assert code_of(Refused(KafkaError.NON_EMPTY_GROUP)) is ErrorCode.non_empty_group


def test_the_wires_codes_are_known_to_kafkas_requests_alone() -> None:
    """The contract "wire" in pyproject.toml holds it for whole packages; this one for each module."""
    knowing = {
        path.relative_to(NODE).as_posix()
        for path in NODE.rglob("*.py")
        for statement in ast.walk(ast.parse(path.read_text()))
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").split(".")[0] == WIRE
    }
    assert "kafka/handlers/produce.py" in knowing
    assert {name for name in knowing if not name.startswith("kafka/")} == set()
