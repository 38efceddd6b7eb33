"""A transaction through whole simulated nodes: requests, coordinator, verification, markers, takeover."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from strandline.node.broker.broker import Broker
from strandline.node.kafka.handlers.handler import TABLE
from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.node.kafka.wire.codec import RequestHeader
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import response_types
from tests.controller.brokers import Brokers
from tests.kafka.wire.batches import Record, build
from tests.kafka.wire.entities import entity_of

ID = "payments"
TRANSACTIONAL = 1 << 4
NONE = ErrorCode.none
AGAIN = {
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.not_leader_or_follower,
}
OLD, NEW = {"produce": 11, "end": 4}, {"produce": 12, "end": 5}
"""Versions of a client of transactions before KIP-890, and of one after."""


async def ask(broker: Broker, key: ApiKey, version: int | None = None, **fields: Any) -> Any:
    version = APIS[key].last if version is None else version
    payload = entity_of(load_request_schema(key, version), fields)
    request = Request(RequestHeader(key, version, 1, None), payload, "127.0.0.1", 100, 1)
    return await TABLE[key](broker, request, response_types(key, version))


class Producer:
    """A transactional producer that always finds its way, as clients do."""

    def __init__(self, made: Brokers, partitions: int, versions: dict[str, int]) -> None:
        self.made = made
        self.versions = versions
        self.topic = made.create_topic(next(iter(made.brokers)), "orders", partitions)
        self.producer_id = self.epoch = -1
        self.sequences = [0] * partitions
        self.init()

    @property
    def any(self) -> int:
        return next(iter(self.made.brokers))

    def coordinator(self) -> int:
        find = ask(self.made.brokers[self.any], ApiKey.FIND_COORDINATOR, key_type=1, coordinator_keys=(ID,))
        (found,) = self.made.run(self.any, find).coordinators
        return int(found.node_id)

    def ended(self, key: ApiKey, version: int | None = None, **fields: Any) -> Any:
        """The coordinator's answer once it is not to be asked again."""
        for _ in range(200):
            node = self.coordinator()
            if node in self.made.brokers:
                answer = self.made.run(node, ask(self.made.brokers[node], key, version, **fields))
                if answer.error_code not in AGAIN:
                    return answer
            self.made.world.run(until=self.made.world.now + 0.1)
        raise AssertionError(f"{key.name} was never answered for good")

    def init(self) -> None:
        answer = self.ended(
            ApiKey.INIT_PRODUCER_ID, transactional_id=ID, transaction_timeout=timedelta(minutes=1),
            producer_id=-1, producer_epoch=-1,
        )  # fmt: skip
        assert answer.error_code is NONE
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequences = [0] * len(self.sequences)

    def add(self, *numbers: int) -> None:
        """What only a client before KIP-890 does."""
        fields = {"name": "orders", "partitions": numbers}
        answer = None
        for _ in range(100):
            node = self.coordinator()
            answer = self.made.run(node, ask(
                self.made.brokers[node], ApiKey.ADD_PARTITIONS_TO_TXN, 3, transactional_id=ID,
                v3_and_below_transactional_id=ID, producer_id=self.producer_id,
                v3_and_below_producer_id=self.producer_id, producer_epoch=self.epoch,
                v3_and_below_producer_epoch=self.epoch, topics=[fields],
                v3_and_below_topics=[fields],
            ))  # fmt: skip
            (results,) = answer.results_by_topic_v3_and_below
            codes = {one.partition_error_code for one in results.results_by_partition}
            if not codes & AGAIN:
                assert codes == {NONE}
                return
            self.made.world.run(until=self.made.world.now + 0.1)
        raise AssertionError(answer)

    def send(self, number: int) -> ErrorCode:
        """Three records into one partition."""
        records = [Record(b"value", int(1000 * self.made.world.now))] * 3
        claim = (self.producer_id, self.epoch, self.sequences[number])
        batch = build(records, producer=claim, attributes=TRANSACTIONAL)
        node = self.leader(number)
        answer = self.made.run(node, ask(
            self.made.brokers[node], ApiKey.PRODUCE, self.versions["produce"], transactional_id=ID,
            acks=-1, timeout=timedelta(seconds=5),
            topic_data=[{"name": "orders", "partition_data": [{"index": number, "records": batch}]}],
        ))  # fmt: skip
        code: ErrorCode = answer.responses[0].partition_responses[0].error_code
        if code is NONE:
            self.sequences[number] += 3
        return code

    def end(self, *, commit: bool) -> None:
        answer = self.ended(
            ApiKey.END_TXN, self.versions["end"], transactional_id=ID, producer_id=self.producer_id,
            producer_epoch=self.epoch, committed=commit,
        )  # fmt: skip
        assert answer.error_code is NONE
        if self.versions["end"] >= 5:
            assert (answer.producer_id, answer.producer_epoch) == (self.producer_id, self.epoch + 1)
            self.epoch = answer.producer_epoch
            self.sequences = [0] * len(self.sequences)

    # Looking.

    def leader(self, number: int) -> int:
        def leading() -> list[int]:
            return [
                node
                for node, broker in self.made.brokers.items()
                if (partition := broker.partitions.get(self.topic.topic_id, number)) and partition.leads
            ]

        self.made.wait(lambda: len(leading()) == 1)
        return leading()[0]

    def ends(self, number: int) -> tuple[int, int]:
        """The last stable offset and the high watermark of a partition."""
        partition = self.made.brokers[self.leader(number)].partitions.get(self.topic.topic_id, number)
        assert partition is not None
        return partition.last_stable_offset, partition.high_watermark

    def settled(self, *ends: int) -> None:
        """Every partition ends there, with nothing open."""
        self.made.wait(
            lambda: [self.ends(number) for number in range(len(ends))] == [(end, end) for end in ends]
        )


@pytest.mark.parametrize("versions", [OLD, NEW], ids=["v1", "v2"])
def test_a_transaction_is_open_until_its_markers_are_in_every_partition(versions: dict[str, int]) -> None:
    with Brokers() as made:
        producer = Producer(made, 3, versions)
        for round_, commit in enumerate((True, False, True)):
            if versions is OLD:
                producer.add(0, 1, 2)
            for number in range(3):
                assert producer.send(number) is NONE
                # Records are there, and no reader of committed ones gets to see them.
                assert producer.ends(number) == (4 * round_, 4 * round_ + 3)
            producer.end(commit=commit)
            producer.settled(*[4 * (round_ + 1)] * 3)
        # And the coordinator knows it.
        tables = [broker.coordinators for broker in made.brokers.values()]
        made.wait(
            lambda: not any(one.machine.prepared for table in tables for one in table.led_transactions())
        )


@pytest.mark.parametrize("versions", [OLD, NEW], ids=["v1", "v2"])
def test_the_next_coordinator_finishes_what_was_decided(versions: dict[str, int]) -> None:
    with Brokers(leader_rebalance=False) as made:
        producer = Producer(made, 2, versions)
        if versions is OLD:
            producer.add(0, 1)
        for number in range(2):
            assert producer.send(number) is NONE
        first = producer.coordinator()
        producer.end(commit=True)
        # The answer comes when it is decided; what is still to be done dies with this node.
        made.crash(first)
        producer.settled(4, 4)
        assert producer.coordinator() != first


def test_who_comes_with_the_same_id_ends_what_was_open_and_fences_the_other() -> None:
    with Brokers() as made:
        zombie = Producer(made, 1, NEW)
        assert zombie.send(0) is NONE
        successor = object.__new__(Producer)
        vars(successor).update(vars(zombie))
        successor.sequences = [0]
        successor.init()
        assert (successor.producer_id, successor.epoch) > (zombie.producer_id, zombie.epoch)
        # Its open transaction was aborted first, and it gets nothing in any more.
        successor.settled(4)
        assert zombie.send(0) in (ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced)
        assert successor.send(0) is NONE
        successor.end(commit=True)
        successor.settled(8)
