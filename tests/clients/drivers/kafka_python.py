"""kafka-python, which has a protocol implementation of its own."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

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

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas with importlib's old functions
    import kafka  # type: ignore[import-untyped]
    from kafka.admin import KafkaAdminClient, NewTopic  # type: ignore[import-untyped]
    from kafka.coordinator.assignors.cooperative_sticky import (  # type: ignore[import-untyped]
        CooperativeStickyAssignor,
    )
    from kafka.coordinator.assignors.range import RangePartitionAssignor  # type: ignore[import-untyped]
    from kafka.errors import KafkaError  # type: ignore[import-untyped]
    from kafka.net.sasl.oauth import AbstractTokenProvider  # type: ignore[import-untyped]
    from kafka.structs import OffsetAndMetadata, TopicPartition  # type: ignore[import-untyped]

LEAST_POLL_SECONDS = 0.5
"""The fewer polls, the fewer joins end between two of them: see `subscribe`."""
_STRATEGIES = {"range": RangePartitionAssignor, "cooperative": CooperativeStickyAssignor}


class Revoked(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
    """Keeps what is taken away."""

    def __init__(self) -> None:
        self.partitions: list[tuple[str, int]] = []

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.partitions += [(one.topic, one.partition) for one in revoked]

    def on_partitions_assigned(self, assigned: Any) -> None:
        pass


class Provider(AbstractTokenProvider):  # type: ignore[misc]
    """Gives the token of this moment."""

    def __init__(self, way: Way) -> None:
        self._way = way

    def token(self) -> str:
        return token_of(self._way)[0]

    def extensions(self) -> dict[str, str]:
        return {}


class KafkaPython:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._made: KafkaAdminClient | None = None
        self._consumer: Any = None
        self._producer: Any = None
        self._plain: Any = None
        self._way: Any = None
        self._listener = Revoked()
        self._read: dict[Any, Any] = {}
        self._round: dict[Any, Any] = {}

    def about(self) -> Any:
        return {"client": "kafka-python", "version": kafka.__version__}

    def create_topic(self, topic: str, partitions: int) -> None:
        self._admin.create_topics([NewTopic(topic, partitions, 3)])

    def delete_topic(self, topic: str) -> None:
        self._admin.delete_topics([topic])

    def produce(self, topic: str, records: Sequence[tuple[int, str]]) -> list[int]:
        if self._plain is None:
            self._plain = kafka.KafkaProducer(bootstrap_servers=self._bootstrap, enable_idempotence=True)
        return self._send(self._plain, topic, records)

    def subscribe(self, topics: Sequence[str], group: str, settings: Settings) -> None:
        self._listener = Revoked()
        self._read.clear()
        self._round.clear()
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=group,
            group_instance_id=settings.get("instance"),
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level=settings.get("isolation", "read_committed"),
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            partition_assignment_strategy=[_STRATEGIES[settings.get("assignor", "range")]],
        )
        # A member whose join ends between two of its polls stands still for ever (3.0.12: the answer to its
        # SyncGroup is dropped, and it sends no heartbeat any more). Whoever knows its topics joins once.
        deadline = time.monotonic() + REQUEST_SECONDS
        while not all(map(self._consumer.partitions_for_topic, topics)) and time.monotonic() < deadline:
            time.sleep(0.02)
        self._consumer.subscribe(list(topics), listener=self._listener)

    def chain(self, topics: Sequence[str], group: str, settings: Settings, id: str) -> None:
        self.subscribe(topics, group, settings)
        self.transactional(id)

    def poll(self, seconds: float, count: int) -> Any:
        records: list[tuple[str, int, int, str]] = []
        deadline = time.monotonic() + seconds
        while len(records) < count and (left := deadline - time.monotonic()) > 0:
            wait = max(left, LEAST_POLL_SECONDS)
            found = self._consumer.poll(timeout_ms=int(wait * 1000), max_records=count - len(records))
            for place, messages in found.items():
                records += [
                    (place.topic, place.partition, one.offset, one.value.decode()) for one in messages
                ]
                behind = OffsetAndMetadata(messages[-1].offset + 1, "", -1)
                self._read[place] = self._round[place] = behind
        revoked, self._listener.partitions = self._listener.partitions, []
        assigned = sorted((one.topic, one.partition) for one in self._consumer.assignment())
        return {"records": records, "assigned": assigned, "revoked": revoked}

    def commit(self) -> None:
        if positions := self._positions():
            self._consumer.commit(positions)

    def transactional(self, id: str) -> None:
        self._producer = kafka.KafkaProducer(bootstrap_servers=self._bootstrap, transactional_id=id)
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, records: Sequence[tuple[int, str]]) -> list[int]:
        return self._send(self._producer, topic, records)

    def send_offsets(self) -> None:
        self._producer.send_offsets_to_transaction(dict(self._round), self._consumer.group_metadata())

    def end(self, commit: bool) -> None:
        self._round.clear()
        if commit:
            self._producer.commit_transaction()
        else:
            self._producer.abort_transaction()

    def close(self) -> None:
        consumer, producer, self._consumer, self._producer = self._consumer, self._producer, None, None
        if consumer is not None:
            consumer.close()
        if producer is not None:
            producer.close(timeout=1)

    def log_in(self, way: Way) -> list[str]:
        names = {
            "bootstrap": "bootstrap_servers", "protocol": "security_protocol", "ca": "ssl_cafile",
            "certificate": "ssl_certfile", "key": "ssl_keyfile", "mechanism": "sasl_mechanism",
            "user": "sasl_plain_username", "password": "sasl_plain_password",
        }  # fmt: skip
        told: dict[str, Any] = {names[key]: value for key, value in way.items() if key in names}
        if "token" in way:
            told["sasl_oauth_token_provider"] = Provider(way)
        self._way = KafkaAdminClient(**told, bootstrap_timeout_ms=LOGIN_SECONDS * 1000)
        return self.topics()

    def topics(self) -> list[str]:
        return sorted(self._way.list_topics())

    def groups(self) -> list[str]:
        return [one["group_id"] for one in self._admin.list_groups()]

    def describe_group(self, group: str) -> Any:
        described = self._admin.describe_groups([group])[group]
        return {"state": described["group_state"], "members": len(described["members"])}

    def group_offsets(self, group: str) -> list[tuple[str, int, int]]:
        found = self._admin.list_group_offsets({group: None})[group]
        return [(place.topic, place.partition, told.offset) for place, told in found.items()]

    def reset_offsets(self, group: str, offsets: Sequence[tuple[str, int, int]]) -> None:
        self._admin.alter_group_offsets(
            group,
            {
                TopicPartition(topic, partition): OffsetAndMetadata(offset, "", -1)
                for topic, partition, offset in offsets
            },
        )

    def delete_group(self, group: str) -> None:
        outcome = self._admin.delete_groups([group])[group]
        if outcome != "OK":
            raise getattr(kafka.errors, outcome)

    @property
    def _admin(self) -> KafkaAdminClient:
        if self._made is None:
            self._made = KafkaAdminClient(bootstrap_servers=self._bootstrap)
        return self._made

    def _positions(self) -> dict[Any, Any]:
        held = self._consumer.assignment()
        return {place: offset for place, offset in self._read.items() if place in held}

    def _send(self, producer: Any, topic: str, records: Sequence[tuple[int, str]]) -> list[int]:
        return [
            producer.send(topic, value.encode(), partition=partition).get(timeout=REQUEST_SECONDS).offset
            for partition, value in records
        ]


def code_of(error: Exception) -> str:
    """kafka-python names its errors by class; the message is Kafka's own name, where there is one."""
    if isinstance(error, KafkaError) and type(error).__dict__.get("message"):
        return str(type(error).message)
    return type(error).__name__


if __name__ == "__main__":
    serve(KafkaPython(sys.argv[1]), code_of)
