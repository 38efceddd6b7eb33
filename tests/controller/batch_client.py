"""A client of whole brokers: it writes batches to each partition, and knows what was acknowledged."""

from __future__ import annotations

import asyncio
from collections import Counter

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.error_codes import code_of
from strandline.node.partition.batch import ProducedBatch
from strandline.node.refusal import Refusal
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.partition.partition_commands import Appended
from tests.controller.brokers import Brokers
from tests.kafka.wire.batches import Record, build

LOST_SECONDS = 3.0
"""Time after which a batch without an answer is sent again."""


def leaders(brokers: Brokers, topic: Topic) -> list[int]:
    """The node that leads each partition and takes records, 0 where there is none."""
    found = [0] * len(topic.partitions)
    for node, broker in brokers.brokers.items():
        for number in range(len(topic.partitions)):
            partition = broker.partitions.get(topic.topic_id, number)
            if partition is not None and partition.leads:
                found[number] = node
    return found


class BatchClient:
    """Writes to every partition, one batch after the other, wherever its leader is."""

    def __init__(self, brokers: Brokers, topic: Topic) -> None:
        self.acked = Counter[int]()
        self.failed = Counter[ErrorCode]()
        self._brokers = brokers
        self._topic = topic
        self._tries = Counter[int]()
        """By partition, the number of the last batch that was sent, or answered: an answer ends it."""
        self._unsure: set[int] = set()
        """Partitions whose last batch was refused, and may be there all the same: it is sent until it is
        acknowledged, also once the client is off."""
        self.on = True
        for number in range(len(topic.partitions)):
            brokers.world.call_later(0.0, self._send, number)

    def _send(self, number: int) -> None:
        node = leaders(self._brokers, self._topic)[number]
        if not self.on and number not in self._unsure:
            return
        if not node:
            self._brokers.world.call_later(0.01, self._send, number)
            return
        self._brokers.world.nodes[node].call(self._take, node, number)

    def _take(self, node: int, number: int) -> None:
        partition = self._brokers.brokers[node].partitions.get(self._topic.topic_id, number)
        assert partition is not None
        sequence = self.acked[number]
        data = build([Record(b"value")], producer=(1000 + number, 0, sequence))
        batch = ProducedBatch(data, 1, 0, 1000 + number, 0, sequence, number)
        self._tries[number] += 1
        attempt = self._tries[number]
        partition.append(batch).add_done_callback(lambda done: self._answered(number, attempt, done))
        self._brokers.world.call_later(LOST_SECONDS, self._lost, number, attempt)

    def _lost(self, number: int, attempt: int) -> None:
        """The node may have crashed with the batch: send it again, unless it was answered."""
        if self._tries[number] == attempt:
            self._tries[number] += 1
            self._unsure.add(number)
            self._send(number)

    def _answered(self, number: int, attempt: int, done: asyncio.Future[Appended | Refusal]) -> None:
        if self._tries[number] != attempt:
            return
        self._tries[number] += 1
        result = done.result()
        if isinstance(result, Appended):
            assert result.base_offset == self.acked[number]
            self.acked[number] += 1
            self._unsure.discard(number)
        else:
            self._unsure.add(number)
            self.failed[code_of(result)] += 1
        self._brokers.world.call_later(0.02, self._send, number)
