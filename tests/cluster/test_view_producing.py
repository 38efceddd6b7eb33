"""A version's producer at a played cluster: what it says in which order, also where a line ends."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from types import SimpleNamespace as Entity
from typing import Any
from uuid import UUID

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from aiokafka.record.default_records import DefaultRecordBatch  # type: ignore[import-untyped]
from confluent_kafka import KafkaError, KafkaException
from kio.schema.errors import ErrorCode

from strandline.cluster.view_worker import limits, producing, way
from strandline.cluster.view_worker.node_link import TopicPlace
from strandline.cluster.view_worker.producing import LeaderProducer
from strandline.node.kafka.wire.record_batch import BatchLimits, validate_produced
from strandline.snapshot.connection import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    ANSWER_SECONDS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    Api,
    ConnectionLost,
)
from strandline.snapshot.producing import brokers

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # its import reads resources in an old way
    from kafka.partitioner.default import murmur2  # type: ignore[import-untyped]

NAMES = {
    INIT_PRODUCER_ID: "init",
    ADD_PARTITIONS_TO_TXN: "add",
    PRODUCE: "produce",
    ADD_OFFSETS_TO_TXN: "group",
    TXN_OFFSET_COMMIT: "offsets",
    END_TXN: "end",
}
REAL_REQUEST_SECONDS = producing.REQUEST_SECONDS
OLD, NEW = UUID(int=1), UUID(int=2)
PLACE = TopicPlace("out", 1, True, 1 << 20, NEW.bytes)
THREE = TopicPlace("three", 3, True, 1 << 20, NEW.bytes)


class Cluster:
    """Node 1 leads all and coordinates all; `loses` answers are not heard, though the request is taken."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.epoch = -1
        self.unknown = 0
        """Times that no node knows a topic."""
        self.tells: list[UUID] = []
        """The ids of topics in the next answers: that of the one which had the name before, at times."""
        self.loses: list[str] = []
        self.codes: dict[str, list[ErrorCode]] = {}
        self.logs: dict[tuple[str, int], list[bytes]] = {}
        self.sequences: dict[tuple[str, int], tuple[int, int]] = {}
        self.offsets: dict[tuple[str, int], tuple[int, str]] = {}

    def answer(self, api: Api, request: Any) -> Any:
        if api is METADATA:
            self.unknown -= 1
            code = ErrorCode.unknown_topic_or_partition if self.unknown >= 0 else ErrorCode.none
            topic_id = self.tells.pop(0) if self.tells else NEW
            topics = [
                Entity(
                    name=one.name,
                    topic_id=topic_id,
                    error_code=code,
                    partitions=[Entity(partition_index=at, leader_id=1) for at in range(3)],
                )
                for one in request.topics
            ]
            return Entity(brokers=[Entity(node_id=1, host="h", port=1)], topics=topics)
        if api is FIND_COORDINATOR:
            return Entity(error_code=ErrorCode.none, host="h", port=1)
        name = NAMES[api]
        self.said.append(name)
        code = self.codes[name].pop(0) if self.codes.get(name) else ErrorCode.none
        answer = self._taken(api, request, code)
        if name in self.loses:
            self.loses.remove(name)
            raise ConnectionLost("h:1: it has closed the connection")
        return answer

    def _taken(self, api: Api, request: Any, code: ErrorCode) -> Any:
        if api is INIT_PRODUCER_ID:
            known = (request.producer_id, request.producer_epoch)
            if code is ErrorCode.none and known not in ((-1, -1), (9, self.epoch)):
                code = ErrorCode.producer_fenced
            self.epoch += 1
            return Entity(error_code=code, producer_id=9, producer_epoch=self.epoch)
        if api is ADD_PARTITIONS_TO_TXN:
            results = [Entity(results_by_partition=[Entity(partition_error_code=code)])]
            return Entity(results_by_topic_v3_and_below=results)
        if api is PRODUCE:
            responses = []
            for topic in request.topic_data:
                parts = []
                for one in topic.partition_data:
                    place = topic.name, one.index
                    found = self._append(place, one.records, code)
                    parts.append(Entity(index=one.index, error_code=found, error_message=None))
                responses.append(Entity(name=topic.name, partition_responses=parts))
            return Entity(responses=responses)
        if api is TXN_OFFSET_COMMIT:
            for topic in request.topics:
                for one in topic.partitions:
                    told = one.committed_offset, one.committed_metadata
                    self.offsets[topic.name, one.partition_index] = told
            return Entity(topics=[Entity(partitions=[Entity(error_code=code)])])
        return Entity(error_code=code)

    def _append(self, place: tuple[str, int], data: bytes, code: ErrorCode) -> ErrorCode:
        if code is not ErrorCode.none:
            return code
        (batch,) = validate_produced(bytes(data), version=9, limits=BatchLimits(1 << 20))
        assert batch.is_transactional
        epoch, following = self.sequences.get(place, (-1, 0))
        expected = following if batch.producer_epoch == epoch else 0
        if batch.base_sequence < expected:
            return ErrorCode.duplicate_sequence_number
        assert batch.base_sequence == expected, "a hole"
        count = sum(1 for _ in DefaultRecordBatch(bytes(data)))
        self.sequences[place] = batch.producer_epoch, expected + count
        self.logs.setdefault(place, []).append(bytes(data))
        return ErrorCode.none


class Line:
    """A connection to the node."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._asked: Any = None

    def ask(self, api: Api, request: Any) -> Any:
        return self._cluster.answer(api, request)

    def send(self, api: Api, request: Any) -> None:
        self._asked = api, request

    def answered(self) -> bool:
        return False

    def receive(self) -> Any:
        return self._cluster.answer(*self._asked)

    def close(self) -> None:
        """Nothing is left open."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    found = Cluster()

    def line(host: str, port: int, login: Mapping[str, str], client_id: str) -> Line:
        assert (host, port, client_id) == ("h", 1, "view.p.1")
        return Line(found)

    monkeypatch.setattr(way, "BrokerConnection", line)
    monkeypatch.setattr(producing, "REQUEST_SECONDS", 5.0)
    monkeypatch.setattr(brokers, "_FIRST_PAUSE_SECONDS", 0.001)
    return found


@pytest.fixture
def producer(cluster: Cluster) -> LeaderProducer:
    made = LeaderProducer({"bootstrap.servers": "h:1"}, "view.p.1")
    made.connect()
    made.take_over()
    return made


def column(*values: bytes | None) -> Any:
    return pa.array(values, pa.large_binary())


def records(cluster: Cluster, topic: str, partition: int) -> list[tuple[bytes | None, bytes | None]]:
    logs = cluster.logs.get((topic, partition), [])
    return [(one.key, one.value) for data in logs for one in DefaultRecordBatch(data)]


def test_a_transaction_has_records_and_offsets_and_the_next_one_goes_on(
    cluster: Cluster, producer: LeaderProducer
) -> None:
    producer.write(PLACE, column(b"a", b"b"), column(b"1", None))
    producer.commit({("in", 0): 7, ("in", 1): 8}, "told")
    whole = ["add", "produce", "group", "offsets", "end"]
    assert cluster.said == ["init", *whole]
    producer.write(PLACE, column(b"c"), column(b"2"))
    producer.commit({("in", 0): 9}, "more")
    assert cluster.said == ["init", *whole, *whole]
    assert records(cluster, "out", 0) == [(b"a", b"1"), (b"b", None), (b"c", b"2")]
    assert cluster.offsets == {("in", 0): (9, "more\0"), ("in", 1): (8, "told\0")}, "as librdkafka has them"
    producer.commit({("in", 0): 10}, "no record")
    assert cluster.said[-3:] == ["group", "offsets", "end"]
    producer.commit({}, "nothing")
    assert len(cluster.said) == 14, "a transaction without anything is none"


def test_keys_go_where_kafkas_clients_send_them_in_their_order(
    cluster: Cluster, producer: LeaderProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BATCH_BYTES", 300)
    keys = [b'["%d"]' % (at % 40) for at in range(200)]
    producer.write(THREE, column(*keys), column(*(b"%d" % at for at in range(200))))
    producer.commit({}, "")
    found = [records(cluster, "three", partition) for partition in range(3)]
    assert all(len(cluster.logs["three", partition]) > 3 for partition in range(3)), "many batches each"
    of_key = {key: at for at, some in enumerate(found) for key, _ in some}
    assert of_key == {key: (murmur2(key) & 0x7FFFFFFF) % 3 for key in keys}
    for key in set(keys):
        values = [value for some in found for one, value in some if one == key]
        assert values == [b"%d" % at for at in range(200) if keys[at] == key]


@pytest.mark.parametrize("lost", ["add", "produce", "group", "offsets", "end"])
def test_what_was_interrupted_comes_into_no_later_transaction(
    cluster: Cluster, producer: LeaderProducer, lost: str
) -> None:
    """A node may take the request late; by then it is one of an epoch that has ended."""
    cluster.loses = [lost]
    producer.write(PLACE, column(b"a"), column(b"1"))
    producer.commit({("in", 0): 7}, "told")
    assert cluster.said[-1] == "init"
    assert cluster.epoch == 1
    producer.write(PLACE, column(b"b"), column(b"2"))
    producer.commit({("in", 0): 8}, "more")
    assert cluster.said[-1] == "end"
    assert records(cluster, "out", 0) == [(b"a", b"1"), (b"b", b"2")]
    assert cluster.offsets == {("in", 0): (8, "more\0")}


def test_a_producer_that_was_shut_out_does_not_come_back(cluster: Cluster, producer: LeaderProducer) -> None:
    cluster.loses = ["end"]
    cluster.epoch += 1  # another process has begun meanwhile
    producer.write(PLACE, column(b"a"), column(b"1"))
    with pytest.raises(KafkaException) as raised:
        producer.commit({("in", 0): 7}, "told")
    assert raised.value.args[0].code() == KafkaError._FENCED


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("add", ErrorCode.concurrent_transactions),
        ("add", ErrorCode.not_coordinator),
        ("produce", ErrorCode.not_leader_or_follower),
        ("produce", ErrorCode.unknown_topic_or_partition),
        ("offsets", ErrorCode.coordinator_load_in_progress),
        ("end", ErrorCode.concurrent_transactions),
    ],
)
def test_what_passes_is_waited_for(
    cluster: Cluster, producer: LeaderProducer, what: str, code: ErrorCode
) -> None:
    cluster.codes[what] = [code, code]
    producer.write(PLACE, column(b"a"), column(b"1"))
    producer.commit({("in", 0): 7}, "told")
    assert cluster.said.count(what) == 3
    assert records(cluster, "out", 0) == [(b"a", b"1")]


@pytest.mark.parametrize("what", ["add", "produce", "group", "offsets", "end"])
@pytest.mark.parametrize("code", [ErrorCode.invalid_producer_epoch, ErrorCode.topic_authorization_failed])
def test_what_does_not_pass_ends_the_process(
    cluster: Cluster, producer: LeaderProducer, what: str, code: ErrorCode
) -> None:
    cluster.codes[what] = [code]
    with pytest.raises(KafkaException):  # noqa: PT012
        producer.write(PLACE, column(b"a"), column(b"1"))
        producer.commit({("in", 0): 7}, "told")


def test_a_topic_that_has_got_its_name_is_waited_for(cluster: Cluster, producer: LeaderProducer) -> None:
    cluster.unknown = 3
    producer.write(PLACE, column(b"a"), column(b"1"))
    producer.commit({}, "")
    assert records(cluster, "out", 0) == [(b"a", b"1")]


@pytest.mark.parametrize("tells", [[OLD], [OLD, OLD], [NEW, OLD], [OLD, NEW, OLD, OLD, NEW, OLD]])
def test_nothing_is_written_before_the_coordinator_knows_which_topic_has_the_name(
    cluster: Cluster, producer: LeaderProducer, monkeypatch: pytest.MonkeyPatch, tells: list[UUID]
) -> None:
    """After a cutover the name of a changed view is another topic's: what came into the old one was lost."""
    cluster.tells = [*tells]
    answer, told = cluster.answer, []

    def noted(api: Api, request: Any) -> Any:
        found = answer(api, request)
        told.append([one.topic_id for one in found.topics] if api is METADATA else NAMES.get(api))
        return found

    monkeypatch.setattr(cluster, "answer", noted)
    for _ in range(2):
        producer.write(PLACE, column(b"a"), column(b"1"))
        producer.commit({}, "")
    assert [[one] for one in tells] == told[: len(tells)]
    assert told[: told.index("add")][-2:] == [[NEW], [NEW]], "those of its leaders, and of the coordinator"
    assert [NEW] not in told[told.index("add") :], "it is asked once"
    cluster.codes["add"] = [ErrorCode.not_coordinator]
    producer.write(PLACE, column(b"b"), column(b"2"))
    producer.commit({}, "")
    told.clear()
    producer.write(PLACE, column(b"c"), column(b"3"))
    producer.commit({}, "")
    assert told[:3] == [[NEW], [NEW], "add"], "another coordinator may be behind"
    # Also one that has the place of the first between the question and the partitions that it adds.
    told.clear()
    cluster.codes["add"], cluster.tells = [ErrorCode.not_coordinator], [OLD]
    producer.write(PLACE, column(b"d"), column(b"4"))
    found = None
    assert told == ["add", found, [OLD], found, [NEW], "add"]


@pytest.mark.parametrize("what", ["add", "produce", "group", "offsets", "end"])
def test_what_a_node_that_stands_still_was_asked_is_asked_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """It is silent for as long as an answer may take; another node has its place by then."""
    monkeypatch.setattr(producing, "REQUEST_SECONDS", REAL_REQUEST_SECONDS)
    made = LeaderProducer({"bootstrap.servers": "h:1"}, "view.p.1")
    made.take_over()
    late = [0.0]
    clock = Entity(monotonic=lambda: time.monotonic() + late[0], sleep=lambda _: None)
    monkeypatch.setattr("strandline.snapshot.producing.brokers.time", clock)
    answer = cluster.answer

    def silent(api: Api, request: Any) -> Any:
        if not late[0] and NAMES.get(api) == what:
            late[0] = ANSWER_SECONDS
            raise ConnectionLost("h:1: no answer for 30 s")
        return answer(api, request)

    monkeypatch.setattr(cluster, "answer", silent)
    made.write(PLACE, column(b"a"), column(b"1"))
    made.commit({("in", 0): 7}, "told")
    assert late[0]
    assert records(cluster, "out", 0) == [(b"a", b"1")]
    assert cluster.offsets == {("in", 0): (7, "told\0")}
