"""Short ways to read what Fetch answered."""

from __future__ import annotations

import asyncio
from typing import Any

from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.record_batch import boundaries, read_header
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.handlers.fake_partition import FakePartition
from tests.kafka.wire.batches import Record, build


def parts(response: Any) -> list[Any]:
    return [one for topic in response.responses for one in topic.partitions]


def only(response: Any) -> Any:
    (part,) = parts(response)
    return part


def codes(response: Any) -> list[ErrorCode]:
    return [one.error_code for one in parts(response)]


def bases(part: Any) -> list[int]:
    """Base offsets of the batches in an answer."""
    return [read_header(part.records, start).base_offset for start, _ in boundaries(part.records)]


def waiting(node: FakeNode, *args: Any, **fields: Any) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(node.fetch(*args, **fields))


class Rights:
    """An authorizer that refuses some topics, and some clients."""

    def __init__(self) -> None:
        self.refused: set[str] = set()
        self.principals: set[str] = set()

    def allows(self, principal: str, host: str, operation: Any, kind: Any, name: str) -> bool:
        return name not in self.refused and principal not in self.principals


COMMITTED = 1
P, Q = 7, 8


def batch(sequence: int = 0, *, producer: int = P, epoch: int = 0, count: int = 1, size: int = 1) -> bytes:
    records = [Record(bytes(size))] * count
    return build(records, producer=(producer, epoch, sequence), attributes=0x10)


def made(partitions: int = 1) -> tuple[FakeNode, FakePartition]:
    node = FakeNode()
    node.topic(partitions=partitions)
    return node, node.partition()


def aborted(part: Any) -> list[tuple[int, int]]:
    return [(one.producer_id, one.first_offset) for one in part.aborted_transactions]


def kept(part: Any) -> list[int]:
    """Base offsets of the batches that a client keeps, by the rule of KIP-98's consumer."""
    waiting_for = sorted((one.first_offset, one.producer_id) for one in part.aborted_transactions)
    aborting: set[int] = set()
    found = []
    for start, _ in boundaries(part.records):
        head = read_header(part.records, start)
        while waiting_for and waiting_for[0][0] <= head.next_offset - 1:
            aborting.add(waiting_for.pop(0)[1])
        if head.is_control:
            aborting.discard(head.producer_id)
        elif not (head.is_transactional and head.producer_id in aborting):
            found.append(head.base_offset)
    return found
