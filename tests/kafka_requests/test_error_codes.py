"""Every reason has one of Kafka's codes, and Kafka's codes are known to the edge of the node alone."""

from __future__ import annotations

import ast
from pathlib import Path

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.error_codes import CODES, code_of
from strandline.node.refusal import Reason, Refusal
from strandline.statemachine.kafka_errors import KafkaError

NODE = Path(__file__).parent.parent.parent / "node"
WIRE = "kio"
STILL = ("coordinator/groups", "coordinator/replica.py")
"""Groups answer with the wire's codes still."""


def test_every_reason_has_a_code_and_none_is_no_error() -> None:
    assert set(CODES) == set(Reason)
    assert ErrorCode.none not in CODES.values()


def test_a_state_machines_code_is_kafkas_under_the_same_name() -> None:
    for error in KafkaError:
        code = code_of(Refusal(error))
        assert (int(code), code.name.upper()) == (int(error), error.name)


def test_the_wires_codes_are_known_to_kafkas_requests_alone() -> None:
    knowing = {
        path.relative_to(NODE).as_posix()
        for path in NODE.rglob("*.py")
        for statement in ast.walk(ast.parse(path.read_text()))
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").split(".")[0] == WIRE
    }
    assert "kafka/handlers/produce.py" in knowing
    others = {name for name in knowing if not name.startswith("kafka/")}
    assert {name for name in others if not name.startswith(STILL)} == {"process.py"}
