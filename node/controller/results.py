"""Encoding of the controller's answer to a command on its way from the leader to the asking node.

The local replica will apply the same entry, but may do so before the answer comes, or get it inside a
snapshot; so the answer itself travels, as msgpack's types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from strandline.statemachine.controller.controller import Result
from strandline.statemachine.controller.controller_commands import ProducerIdBlock
from strandline.statemachine.controller.controller_snapshot import node_from, node_row, topic_from
from strandline.statemachine.controller.controller_state import NodeRegistration, Topic
from strandline.statemachine.kafka_errors import KafkaError, Refused


def pack(result: Result) -> list[Any]:
    """`[kind, value]`; named tuples are arrays to msgpack."""
    value = node_row(result) if isinstance(result, NodeRegistration) else result
    return [_KINDS[type(result)], value]


def unpack(packed: Any) -> Result:
    """Read what `pack` gave; raises ValueError for anything else."""
    try:
        kind, value = packed
        return _READERS[kind](value)
    except Exception as error:
        raise ValueError(f"an answer of the controller's leader cannot be read: {error}") from error


_KINDS: Final[dict[type, str]] = {
    Topic: "topic",
    NodeRegistration: "node",
    ProducerIdBlock: "ids",
    Refused: "refused",
    bool: "bool",
    int: "int",
    str: "str",
}
_READERS: Final[dict[str, Callable[[Any], Result]]] = {
    "topic": topic_from,
    "node": node_from,
    "ids": lambda value: ProducerIdBlock(*value),
    "refused": lambda value: Refused(KafkaError(value[0]), value[1]),
    "bool": bool,
    "int": int,
    "str": str,
}
