"""A controller with a log in front of it, and short ways to write its commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack

from strandline.statemachine.controller.controller import Controller, Result
from strandline.statemachine.controller.controller_commands import (
    DERIVED,
    Bootstrap,
    Command,
    CreateTopic,
    RegisterNode,
    encode,
)
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.kafka_errors import KafkaError, Refused


def topic_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def registration(
    node: int,
    boot_id: int = 0,
    *,
    replaces: int = 0,
    levels: tuple[int, int] = (1, 1),
    folder: int = 0,
    rack: str = "",
) -> RegisterNode:
    """Node n listens on 9000+n, 7000+n and 8000+n; its first boot id is 100+n."""
    return RegisterNode(
        node, boot_id or 100 + node, replaces,
        f"kafka{node}", 9000 + node, f"mesh{node}", 7000 + node, 8000 + node, *levels, 1_000,
        folder or 500 + node, (), rack,
    )  # fmt: skip


class Log:
    """Applies commands as entries of one log, all in term 1; `nodes` nodes are registered first.

    `level` is the cluster's feature level; above 1 the cluster is founded with it.
    """

    def __init__(self, nodes: int = 0, *, level: int = 1, racks: Sequence[str] = ()) -> None:
        self.checkpoints: list[tuple[int, bytes]] = []
        self.machine = Controller(lambda index, captured: self.checkpoints.append((index, captured())))
        self.index = self.term = 1
        self.entries: list[bytes] = []
        self.machine.begin_term(1, 1, 1)
        if level > 1:
            self.do(Bootstrap("a", "i", level))
        for node in range(1, nodes + 1):
            rack = racks[node - 1] if racks else ""
            self.do(registration(node, levels=(1, max(1, level)), rack=rack))

    def do(self, command: Command) -> Result:
        self.index += 1
        self.entries.append(encode(command))
        return self.machine.apply(self.index, self.term, self.entries[-1])

    def refused(self, command: Command) -> tuple[KafkaError, str]:
        """Apply a command that must be refused, and must leave no trace but its index."""
        before = self.state()
        result = self.do(command)
        assert isinstance(result, Refused), result
        assert self.state() == before
        return result.error, result.message

    def state(self) -> dict[str, Any]:
        """The snapshot's fields, but for the index."""
        fields: dict[str, Any] = msgpack.unpackb(self.machine.snapshot())
        assert fields.pop("applied_index") == self.index
        return fields

    def fenced(self, node: int) -> bool:
        return self.machine.nodes[node].fenced

    def topic(self, command: Command) -> Topic:
        result = self.do(command)
        assert isinstance(result, Topic), result
        return result

    def creation(
        self,
        number: int,
        name: str | None = None,
        *,
        partitions: int = 1,
        replication_factor: int = 1,
        assignments: Sequence[Sequence[int]] | None = None,
        configs: Sequence[tuple[str, str | None]] = (),
        made_at: int | None = None,
    ) -> CreateTopic:
        """The command that creates topic `number`, called t<number> unless it is named."""
        if assignments is not None:
            partitions = replication_factor = DERIVED
        return CreateTopic(
            topic_id(number),
            f"t{number}" if name is None else name,
            partitions,
            replication_factor,
            assignments,
            configs,
            self.index if made_at is None else made_at,
        )
