"""Whoever operates the cluster: creates, grows, deletes and creates again, through the Kafka port."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from node.kafka.apis import ApiKey
from tests.simulation.whole.client import Client, Directory, TopicKnown
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.wire import Lost

ANSWER_SECONDS = 3.0
SERVER_SECONDS = 2.0
_PASSING = (ErrorCode.request_timed_out,)


class Operator(Client):
    """One thing at a time, each tried until it is known what became of it."""

    def __init__(self, cluster: WholeCluster, directory: Directory, machine: int) -> None:
        super().__init__(cluster, directory, "operator", machine)
        self.finished: dict[str, int] = {}
        self.ready = False
        """The first topics are there."""
        self._names = 0
        self.spawn(self._work())

    async def _work(self) -> None:
        plan = self.cluster.plan
        for count in plan.topics:
            await self._create(self._name(), count)
        self.ready = True
        while plan.admin:
            await asyncio.sleep(self.rng.expovariate(1 / plan.admin_interval))
            if self.stopped:
                return
            kind = self.rng.choice(plan.admin)
            await getattr(self, f"_do_{kind}")()
            self.finished[kind] = self.finished.get(kind, 0) + 1

    def _name(self) -> str:
        self._names += 1
        return f"topic-{self._names}"

    async def _do_create(self) -> None:
        if len(self.directory.live(stable=False)) < 4:
            await self._create(self._name(), self.rng.choice((1, 2)))

    async def _do_grow(self) -> None:
        topic = self.rng.choice(self.directory.live(stable=False))
        if topic.partitions < 5:
            await self._grow(topic, topic.partitions + self.rng.choice((1, 2)))

    async def _do_delete(self) -> None:
        victims = [topic for topic in self.directory.live(stable=False) if not topic.stable]
        if victims:
            await self._delete(self.rng.choice(victims))
        else:
            await self._create(self._name(), 1)

    async def _do_recreate(self) -> None:
        victims = [topic for topic in self.directory.live(stable=False) if not topic.stable]
        if not victims:
            await self._create(self._name(), 1)
            return
        topic = self.rng.choice(victims)
        await self._delete(topic)
        await self._create(topic.name, self.rng.choice((1, topic.partitions)))

    async def _ask(self, key: int, version: int, **fields: Any) -> Any:
        """The answer of some node; None when there was none."""
        try:
            return await self.wire.ask(
                self.rng.choice(self.wire.nodes), key, version, ANSWER_SECONDS,
                timeout=timedelta(seconds=SERVER_SECONDS), **fields,
            )  # fmt: skip
        except Lost:
            await self.pause()
            return None

    async def _create(self, name: str, count: int) -> None:
        asked = {
            "name": name, "num_partitions": count, "replication_factor": 3, "assignments": [], "configs": [],
        }  # fmt: skip
        tried = False
        while True:
            answer = await self._ask(ApiKey.CREATE_TOPICS, 7, topics=[asked], validate_only=False)
            if answer is None:
                tried = True
                continue
            (result,) = answer.topics
            code = result.error_code
            if code is ErrorCode.none:
                self._known(name, result.topic_id.bytes, count)
                return
            if code is ErrorCode.topic_already_exists and tried:
                topic_id = await self._id_of(name)
                if topic_id is not None:
                    self._known(name, topic_id, count)
                    return
            elif code not in (*_PASSING, ErrorCode.invalid_replication_factor):
                # Too few live nodes for so many replicas: true for a while.
                self.ledger.broken("operator", f"creating {name}: {code.name} {result.error_message}")
                return
            tried = True
            await self.pause()

    def _known(self, name: str, topic_id: bytes, count: int) -> None:
        if any(topic.topic_id == topic_id for topic in self.directory.topics):
            self.ledger.broken("operator", f"{name} was created under an id that was used before")
        stable = not self.directory.topics
        self.directory.topics.append(TopicKnown(name, topic_id, count, stable))

    async def _id_of(self, name: str) -> bytes | None:
        old = {topic.topic_id for topic in self.directory.topics}
        answer = await self._ask(
            ApiKey.METADATA, 12, topics=[{"name": name, "topic_id": None}], allow_auto_topic_creation=False
        )
        if answer is None or answer.topics[0].error_code is not ErrorCode.none:
            return None
        topic_id: bytes = answer.topics[0].topic_id.bytes
        return None if topic_id in old else topic_id

    async def _grow(self, topic: TopicKnown, count: int) -> None:
        while True:
            asked = {"name": topic.name, "count": count, "assignments": None}
            answer = await self._ask(ApiKey.CREATE_PARTITIONS, 3, topics=[asked], validate_only=False)
            code = answer.results[0].error_code if answer is not None else ErrorCode.request_timed_out
            if code in (ErrorCode.none, ErrorCode.invalid_partitions):
                # The latter: an attempt without an answer did it.
                topic.partitions = count
                return
            if code not in (*_PASSING, ErrorCode.invalid_replication_factor):
                self.ledger.broken("operator", f"growing {topic.name}: {code.name}")
                return
            await self.pause()

    async def _delete(self, topic: TopicKnown) -> None:
        topic.doomed = True
        tried = False
        while True:
            asked = {"name": None, "topic_id": UUID(bytes=topic.topic_id)}
            answer = await self._ask(ApiKey.DELETE_TOPICS, 6, topics=[asked])
            code = answer.responses[0].error_code if answer is not None else ErrorCode.request_timed_out
            if code is ErrorCode.none or (tried and code is ErrorCode.unknown_topic_id):
                return
            if code not in _PASSING:
                self.ledger.broken("operator", f"deleting {topic.name}: {code.name}")
                return
            tried = True
            await self.pause()
