"""Transactions on three real nodes, in the newest versions of the requests: each partition adds itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.apis import ApiKey
from tests.clients.wire import Wire
from tests.cluster.real_cluster import RealCluster, running_cluster
from tests.kafka.handlers.fetch_answers import aborted, kept
from tests.kafka.wire.batches import Record, build

ADDS, OLD, ABORTS = 12, 9, 11
"""Versions of Produce: the first that adds partitions; one that does not; one that knows how to abort."""
SECONDS = 40.0


class Session:
    """What a client with transactions knows: its coordinator, the partitions' leaders, its id and epoch.

    Topic and transactional id have the same name.
    """

    def __init__(self, bootstrap: str, name: str) -> None:
        self.name = name
        self._any = Wire(bootstrap.split(",")[0])
        topic = {"name": name, "num_partitions": 2, "replication_factor": 3}
        asked = {"topics": [topic], "timeout": timedelta(seconds=SECONDS)}
        assert self._any.ask(ApiKey.CREATE_TOPICS, 7, asked).topics[0].error_code is ErrorCode.none
        self._leaders: dict[int, Wire] = {}
        self._coordinator = Wire(self._find_coordinator())
        given = self._coordinator.ask(
            ApiKey.INIT_PRODUCER_ID,
            4,
            {
                "transactional_id": name,
                "transaction_timeout": timedelta(seconds=60),
                "producer_id": -1,
                "producer_epoch": -1,
            },
        )
        assert given.error_code is ErrorCode.none
        self.producer, self.epoch = given.producer_id, given.producer_epoch

    def close(self) -> None:
        for wire in (self._any, self._coordinator, *self._leaders.values()):
            wire.socket.close()

    def _find_coordinator(self) -> str:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            asked = {"key_type": 1, "coordinator_keys": [self.name]}
            (found,) = self._any.ask(ApiKey.FIND_COORDINATOR, 4, asked).coordinators
            if found.error_code is ErrorCode.none:
                return f"{found.host}:{found.port}"
            time.sleep(0.1)
        raise AssertionError("no coordinator")

    def ask(self, number: int, key: ApiKey, version: int, values: dict[str, Any]) -> Any:
        """The answer for one partition by its leader, which may have moved since the topic was created."""
        deadline = time.monotonic() + SECONDS
        while True:
            if number not in self._leaders:
                asked = {"topics": [{"name": self.name}]}
                described = self._any.ask(ApiKey.METADATA, 9, asked)
                nodes = {one.node_id: f"{one.host}:{one.port}" for one in described.brokers}
                parts = {one.partition_index: one.leader_id for one in described.topics[0].partitions}
                self._leaders[number] = Wire(nodes[parts[number]])
            answer = self._leaders[number].ask(key, version, values)
            (topic,) = (
                answer.markers[0].topics
                if key == ApiKey.WRITE_TXN_MARKERS
                else (answer.responses if key in (ApiKey.PRODUCE, ApiKey.FETCH) else answer.topics)
            )
            (part,) = topic.partition_responses if key == ApiKey.PRODUCE else topic.partitions
            if part.error_code is not ErrorCode.not_leader_or_follower or time.monotonic() > deadline:
                return part
            self._leaders.pop(number).socket.close()
            time.sleep(0.1)

    def produce(self, number: int, sequence: int, *, epoch: int | None = None, version: int = ADDS) -> Any:
        claim = (self.producer, self.epoch if epoch is None else epoch, sequence)
        records = build([Record(b"v")], producer=claim, attributes=0x10)
        asked = {
            "transactional_id": self.name,
            "acks": -1,
            "timeout": timedelta(seconds=SECONDS),
            "topic_data": [{"name": self.name, "partition_data": [{"index": number, "records": records}]}],
        }
        return self.ask(number, ApiKey.PRODUCE, version, asked)

    def end(self, commit: bool) -> None:
        asked = {
            "transactional_id": self.name,
            "producer_id": self.producer,
            "producer_epoch": self.epoch,
            "committed": commit,
        }
        told = self._coordinator.ask(ApiKey.END_TXN, 5, asked)
        assert told.error_code is ErrorCode.none
        self.epoch = told.producer_epoch

    def read(self, number: int) -> Any:
        part = {"partition": number, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        asked = {
            "max_wait": timedelta(0),
            "max_bytes": 1 << 20,
            "isolation_level": 1,
            "session_epoch": -1,
            "topics": [{"topic": self.name, "partitions": [part]}],
        }
        return self.ask(number, ApiKey.FETCH, 11, asked)

    def stable(self, number: int, offset: int) -> Any:
        """What is read once the last stable offset is there: markers come behind EndTxn's answer."""
        deadline = time.monotonic() + SECONDS
        while (part := self.read(number)).last_stable_offset < offset and time.monotonic() < deadline:
            time.sleep(0.02)
        assert part.last_stable_offset == offset
        return part


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with running_cluster(tmp_path_factory.mktemp("transactions")) as running:
        yield running


@pytest.fixture
def session(cluster: RealCluster, request: pytest.FixtureRequest) -> Iterator[Session]:
    made = Session(cluster.bootstrap, request.node.name)
    yield made
    made.close()


def test_a_transaction_from_its_first_batch_to_its_marker(session: Session) -> None:
    first = session.epoch
    assert session.produce(0, 3).error_code is ErrorCode.out_of_order_sequence_number
    assert [session.produce(0, n).base_offset for n in (0, 1)] == [0, 1]
    assert session.produce(1, 0).error_code is ErrorCode.none
    assert session.produce(0, 1).base_offset == 1, "a retry"
    part = session.read(0)
    assert (part.high_watermark, part.last_stable_offset, part.records or b"") == (2, 0, b"")

    session.end(commit=True)
    assert session.epoch == first + 1
    assert kept(session.stable(0, 3)) == [0, 1]
    assert kept(session.stable(1, 2)) == [0]
    zombie = session.produce(0, 2, epoch=first)
    assert zombie.error_code is ErrorCode.invalid_producer_epoch

    assert session.produce(0, 0).base_offset == 3, "the next transaction, in an epoch of its own"
    assert session.read(0).last_stable_offset == 3
    session.end(commit=False)
    part = session.stable(0, 5)
    assert (kept(part), aborted(part)) == ([0, 1], [(session.producer, 3)])

    # Older clients add their partitions themselves, and this one has not.
    assert session.produce(0, 0, version=OLD).error_code is ErrorCode.invalid_txn_state
    assert session.produce(0, 0, version=ABORTS).error_code is ErrorCode.transaction_abortable
    asked = {"topics": [{"name": session.name, "partition_indexes": [0]}]}
    told = session.ask(0, ApiKey.DESCRIBE_PRODUCERS, 0, asked)
    (producer,) = told.active_producers
    assert (producer.producer_id, producer.producer_epoch) == (session.producer, session.epoch)
    assert (producer.last_sequence, producer.current_txn_start_offset) == (-1, -1)


def test_an_operator_ends_what_hangs(session: Session) -> None:
    assert session.produce(0, 0).error_code is ErrorCode.none
    marker = {
        "producer_id": session.producer,
        "producer_epoch": session.epoch,
        "transaction_result": False,
        "topics": [{"name": session.name, "partition_indexes": [0]}],
        "coordinator_epoch": 0,
    }
    told = session.ask(0, ApiKey.WRITE_TXN_MARKERS, 1, {"markers": [marker]})
    assert told.error_code is ErrorCode.none
    assert kept(session.stable(0, 2)) == []
    assert session.produce(0, 1).error_code is ErrorCode.invalid_txn_state, "this transaction is over here"
