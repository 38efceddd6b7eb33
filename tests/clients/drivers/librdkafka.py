"""librdkafka, through confluent-kafka."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.clients.drivers.serve import (
    HEARTBEAT_MS,
    LOGIN_SECONDS,
    REQUEST_SECONDS,
    SESSION_MS,
    Settings,
    Way,
    serve,
    token_of,
)

_STRATEGIES = {"range": "range", "cooperative": "cooperative-sticky"}


class Librdkafka:
    def __init__(self, bootstrap: str) -> None:
        self._common: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 3}
        self._admin = AdminClient(self._common)
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None
        self._plain: Producer | None = None
        self._way: AdminClient | None = None
        self._revoked: list[tuple[str, int]] = []
        self._read: dict[tuple[str, int], int] = {}
        self._round: dict[tuple[str, int], int] = {}

    def about(self) -> Any:
        versions = f"{confluent_kafka.libversion()[0]} ({confluent_kafka.version()})"
        return {"client": "librdkafka (confluent-kafka)", "version": versions}

    def create_topic(self, topic: str, partitions: int) -> None:
        self._admin.create_topics([NewTopic(topic, partitions, 3)])[topic].result(REQUEST_SECONDS)

    def delete_topic(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(REQUEST_SECONDS)

    def produce(self, topic: str, records: Sequence[tuple[int, str]]) -> list[int]:
        if self._plain is None:
            self._plain = Producer({**self._common, "enable.idempotence": True})
        return self._send(self._plain, topic, records)

    def subscribe(self, topics: Sequence[str], group: str, settings: Settings) -> None:
        config = {
            **self._common,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": settings.get("isolation", "read_committed"),
        }
        if settings.get("protocol") == "consumer":
            config["group.protocol"] = "consumer"
        else:
            config["session.timeout.ms"] = SESSION_MS
            config["heartbeat.interval.ms"] = HEARTBEAT_MS
            config["partition.assignment.strategy"] = _STRATEGIES[settings.get("assignor", "range")]
        if "instance" in settings:
            config["group.instance.id"] = settings["instance"]
        self._read.clear()
        self._round.clear()
        self._consumer = Consumer(config)
        self._consumer.subscribe(list(topics), on_revoke=self._note_revoked, on_lost=self._note_revoked)

    def chain(self, topics: Sequence[str], group: str, settings: Settings, id: str) -> None:
        self.subscribe(topics, group, settings)
        self.transactional(id)

    def poll(self, seconds: float, count: int) -> Any:
        assert self._consumer is not None
        records: list[tuple[str, int, int, str]] = []
        deadline = time.monotonic() + seconds
        while len(records) < count and (left := deadline - time.monotonic()) > 0:
            message = self._consumer.poll(left)
            if message is None:
                break
            if (error := message.error()) is not None:
                if error.code() == KafkaError._PARTITION_EOF or not error.fatal():
                    continue
                raise KafkaException(error)
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            assert topic is not None
            assert partition is not None
            assert offset is not None
            records.append((topic, partition, offset, bytes(message.value() or b"").decode()))
            self._read[topic, partition] = self._round[topic, partition] = offset + 1
        revoked, self._revoked = self._revoked, []
        assigned = sorted((one.topic, one.partition) for one in self._consumer.assignment())
        return {"records": records, "assigned": assigned, "revoked": revoked}

    def commit(self) -> None:
        assert self._consumer is not None
        if positions := self._positions():
            for done in self._consumer.commit(offsets=positions, asynchronous=False) or []:
                if done.error is not None:
                    raise KafkaException(done.error)

    def transactional(self, id: str) -> None:
        self._producer = Producer({**self._common, "transactional.id": id})
        self._producer.init_transactions(REQUEST_SECONDS)

    def begin(self) -> None:
        self._open().begin_transaction()

    def send(self, topic: str, records: Sequence[tuple[int, str]]) -> list[int]:
        return self._send(self._open(), topic, records)

    def send_offsets(self) -> None:
        assert self._consumer is not None
        metadata = self._consumer.consumer_group_metadata()
        offsets = [TopicPartition(*place, offset) for place, offset in self._round.items()]
        self._open().send_offsets_to_transaction(offsets, metadata, REQUEST_SECONDS)

    def end(self, commit: bool) -> None:
        self._round.clear()
        if commit:
            self._open().commit_transaction(REQUEST_SECONDS)
        else:
            self._open().abort_transaction(REQUEST_SECONDS)

    def close(self) -> None:
        consumer, self._consumer, self._producer = self._consumer, None, None
        if consumer is not None:
            consumer.close()

    def log_in(self, way: Way) -> list[str]:
        names = {
            "bootstrap": "bootstrap.servers", "protocol": "security.protocol", "ca": "ssl.ca.location",
            "certificate": "ssl.certificate.location", "key": "ssl.key.location",
            "mechanism": "sasl.mechanism", "user": "sasl.username", "password": "sasl.password",
        }  # fmt: skip
        told: dict[str, Any] = {names[key]: value for key, value in way.items() if key in names}
        if "token" in way:
            told["oauth_cb"] = lambda _: token_of(way)
        self._way = AdminClient({**told, "log_level": 0})
        return self.topics()

    def topics(self) -> list[str]:
        assert self._way is not None
        return sorted(self._way.list_topics(timeout=LOGIN_SECONDS).topics)

    def groups(self) -> list[str]:
        return [one.group_id for one in self._admin.list_consumer_groups().result(REQUEST_SECONDS).valid]

    def describe_group(self, group: str) -> Any:
        found = self._admin.describe_consumer_groups([group])[group].result(REQUEST_SECONDS)
        return {"state": found.state.name.title(), "members": len(found.members)}

    def group_offsets(self, group: str) -> list[tuple[str, int, int]]:
        asked = [confluent_kafka.ConsumerGroupTopicPartitions(group)]
        found = self._admin.list_consumer_group_offsets(asked)[group].result(REQUEST_SECONDS)
        return [(one.topic, one.partition, one.offset) for one in found.topic_partitions]

    def reset_offsets(self, group: str, offsets: Sequence[tuple[str, int, int]]) -> None:
        wanted = confluent_kafka.ConsumerGroupTopicPartitions(
            group, [TopicPartition(topic, partition, offset) for topic, partition, offset in offsets]
        )
        done = self._admin.alter_consumer_group_offsets([wanted])[group].result(REQUEST_SECONDS)
        for one in done.topic_partitions:
            if one.error is not None:
                raise KafkaException(one.error)

    def delete_group(self, group: str) -> None:
        self._admin.delete_consumer_groups([group])[group].result(REQUEST_SECONDS)

    def _open(self) -> Producer:
        assert self._producer is not None
        return self._producer

    def _positions(self) -> list[TopicPartition]:
        assert self._consumer is not None
        held = {(one.topic, one.partition) for one in self._consumer.assignment()}
        return [
            TopicPartition(topic, partition, offset)
            for (topic, partition), offset in self._read.items()
            if (topic, partition) in held
        ]

    def _note_revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._revoked += [(one.topic, one.partition) for one in partitions]

    def _send(self, producer: Producer, topic: str, records: Sequence[tuple[int, str]]) -> list[int]:
        offsets: list[int] = []
        failed: list[KafkaError] = []

        def done(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                failed.append(error)
            else:
                offsets.append(message.offset())

        for partition, value in records:
            producer.produce(topic, value.encode(), partition=partition, on_delivery=done)
            producer.flush(REQUEST_SECONDS)
        if failed:
            raise KafkaException(failed[0])
        return offsets


def code_of(error: Exception) -> str:
    if isinstance(error, KafkaException) and isinstance(error.args[0], KafkaError):
        return str(error.args[0].name())
    return type(error).__name__


if __name__ == "__main__":
    serve(Librdkafka(sys.argv[1]), code_of)
