"""aiokafka, which has a protocol implementation of its own."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import aiokafka  # type: ignore[import-untyped]
from aiokafka.abc import AbstractTokenProvider  # type: ignore[import-untyped]
from aiokafka.admin import AIOKafkaAdminClient, NewTopic  # type: ignore[import-untyped]
from aiokafka.coordinator.assignors.range import RangePartitionAssignor  # type: ignore[import-untyped]
from aiokafka.errors import KafkaError, for_code  # type: ignore[import-untyped]

from tests.clients.drivers.serve import (
    HEARTBEAT_MS,
    LOGIN_SECONDS,
    SESSION_MS,
    Settings,
    Way,
    serve,
    tls_of,
    token_of,
)

_GRACE_SECONDS: Final = 0.05


class Revoked(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
    """Keeps what is taken away."""

    def __init__(self) -> None:
        self.partitions: list[tuple[str, int]] = []

    async def on_partitions_revoked(self, revoked: Any) -> None:
        self.partitions += [(one.topic, one.partition) for one in revoked]

    async def on_partitions_assigned(self, assigned: Any) -> None:
        pass


class Provider(AbstractTokenProvider):  # type: ignore[misc]
    """Gives the token of this moment."""

    def __init__(self, way: Way) -> None:
        self._way = way

    async def token(self) -> str:
        return token_of(self._way)[0]


class Aiokafka:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin: Any = None
        self._consumer: Any = None
        self._producer: Any = None
        self._plain: Any = None
        self._way: Any = None
        self._group = ""
        self._listener = Revoked()
        self._read: dict[Any, int] = {}
        self._round: dict[Any, int] = {}

    def about(self) -> Any:
        return {"client": "aiokafka", "version": aiokafka.__version__}

    async def create_topic(self, topic: str, partitions: int) -> None:
        made = await (await self._administration()).create_topics([NewTopic(topic, partitions, 3)])
        _check(made.topic_errors[0][1])

    async def delete_topic(self, topic: str) -> None:
        _check((await (await self._administration()).delete_topics([topic])).topic_error_codes[0][1])

    async def produce(self, topic: str, records: Sequence[tuple[int, str]]) -> list[int]:
        if self._plain is None:
            self._plain = aiokafka.AIOKafkaProducer(
                bootstrap_servers=self._bootstrap, enable_idempotence=True
            )
            await self._plain.start()
        return await self._send(self._plain, topic, records)

    async def subscribe(self, topics: Sequence[str], group: str, settings: Settings) -> None:
        self._group, self._listener = group, Revoked()
        self._read.clear()
        self._round.clear()
        self._consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=group,
            group_instance_id=settings.get("instance"),
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level=settings.get("isolation", "read_committed"),
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            partition_assignment_strategy=[RangePartitionAssignor],
        )
        # In this order: a start with a subscription waits until it has joined, for which others have to poll.
        await self._consumer.start()
        self._consumer.subscribe(list(topics), listener=self._listener)

    async def chain(self, topics: Sequence[str], group: str, settings: Settings, id: str) -> None:
        await self.subscribe(topics, group, settings)
        await self.transactional(id)

    async def poll(self, seconds: float, count: int) -> Any:
        records: list[tuple[str, int, int, str]] = []
        deadline = time.monotonic() + seconds
        while len(records) < count and (left := deadline - time.monotonic()) > 0:
            wanted = self._consumer.getmany(timeout_ms=int(left * 1000), max_records=count - len(records))
            try:
                found = await asyncio.wait_for(wanted, left + _GRACE_SECONDS)
            except TimeoutError:  # its group is rebalancing, for which the others have to poll
                break
            for place, messages in found.items():
                records += [
                    (place.topic, place.partition, one.offset, one.value.decode()) for one in messages
                ]
                self._read[place] = self._round[place] = messages[-1].offset + 1
        revoked, self._listener.partitions = self._listener.partitions, []
        assigned = sorted((one.topic, one.partition) for one in self._consumer.assignment())
        return {"records": records, "assigned": assigned, "revoked": revoked}

    async def commit(self) -> None:
        if positions := self._positions():
            await self._consumer.commit(positions)

    async def transactional(self, id: str) -> None:
        self._producer = aiokafka.AIOKafkaProducer(bootstrap_servers=self._bootstrap, transactional_id=id)
        await self._producer.start()

    async def begin(self) -> None:
        await self._producer.begin_transaction()

    async def send(self, topic: str, records: Sequence[tuple[int, str]]) -> list[int]:
        return await self._send(self._producer, topic, records)

    async def send_offsets(self) -> None:
        await self._producer.send_offsets_to_transaction(dict(self._round), self._group)

    async def end(self, commit: bool) -> None:
        self._round.clear()
        await (self._producer.commit_transaction() if commit else self._producer.abort_transaction())

    async def close(self) -> None:
        consumer, producer, self._consumer, self._producer = self._consumer, self._producer, None, None
        if consumer is not None:
            await consumer.stop()
        if producer is not None:
            await producer.stop()

    async def log_in(self, way: Way) -> list[str]:
        names = {
            "bootstrap": "bootstrap_servers", "protocol": "security_protocol", "mechanism": "sasl_mechanism",
            "user": "sasl_plain_username", "password": "sasl_plain_password",
        }  # fmt: skip
        told: dict[str, Any] = {names[key]: value for key, value in way.items() if key in names}
        if "token" in way:
            told["sasl_oauth_token_provider"] = Provider(way)
        self._way = AIOKafkaAdminClient(**told, ssl_context=tls_of(way))
        async with asyncio.timeout(LOGIN_SECONDS):
            await self._way.start()
        return await self.topics()

    async def topics(self) -> list[str]:
        async with asyncio.timeout(LOGIN_SECONDS):
            return sorted(await self._way.list_topics())

    async def groups(self) -> list[str]:
        return [one[0] for one in await (await self._administration()).list_consumer_groups()]

    async def describe_group(self, group: str) -> Any:
        ((described,),) = [
            answer.groups for answer in await (await self._administration()).describe_consumer_groups([group])
        ]
        _check(described[0])
        return {"state": described[2], "members": len(described[5])}

    async def group_offsets(self, group: str) -> list[tuple[str, int, int]]:
        found = await (await self._administration()).list_consumer_group_offsets(group)
        return [(place.topic, place.partition, told.offset) for place, told in found.items()]

    def reset_offsets(self, group: str, offsets: Sequence[tuple[str, int, int]]) -> None:
        raise NotImplementedError("aiokafka sets no offsets from outside of a group")

    def delete_group(self, group: str) -> None:
        raise NotImplementedError("aiokafka deletes no groups")

    async def _administration(self) -> Any:
        if self._admin is None:
            self._admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
            await self._admin.start()
        return self._admin

    def _positions(self) -> dict[Any, int]:
        held = self._consumer.assignment()
        return {place: offset for place, offset in self._read.items() if place in held}

    async def _send(self, producer: Any, topic: str, records: Sequence[tuple[int, str]]) -> list[int]:
        return [
            (await producer.send_and_wait(topic, value.encode(), partition=partition)).offset
            for partition, value in records
        ]


def _check(error: int) -> None:
    if error:
        raise for_code(error)


def code_of(error: Exception) -> str:
    """aiokafka names its errors by class; the message is Kafka's own name, where there is one."""
    if isinstance(error, KafkaError) and type(error).__dict__.get("message"):
        return str(type(error).message)
    return type(error).__name__


if __name__ == "__main__":
    serve(Aiokafka(sys.argv[1]), code_of)
