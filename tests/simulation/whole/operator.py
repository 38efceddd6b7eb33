"""Whoever operates the cluster: creates, grows, deletes and creates again, through the Kafka port."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.apis import ApiKey
from tests.simulation.whole.client import PASSING, Client, Directory, TopicKnown
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.objects import Place
from tests.simulation.whole.producers import UNKNOWN
from tests.simulation.whole.wire import Lost

ANSWER_SECONDS = 3.0
SERVER_SECONDS = 2.0
_PASSING = (ErrorCode.request_timed_out,)
_HIGH_WATERMARK = -1
_EVERYTHING = 1 << 62


class Operator(Client):
    """One thing at a time, each tried until it is known what became of it."""

    refused_deletions: tuple[ErrorCode, ...] = (*PASSING, *UNKNOWN, ErrorCode.not_enough_replicas)
    """Codes under which DeleteRecords may fail."""

    def __init__(self, cluster: WholeCluster, directory: Directory, machine: int, names: int = 0) -> None:
        """`names`: the number of names that were given to topics; without any, the first ones are made."""
        super().__init__(cluster, directory, "operator", machine)
        self.finished: dict[str, int] = {}
        self.ready = False
        """The first topics are there."""
        self.names = names
        self.spawn(self._work())

    async def _work(self) -> None:
        plan = self.cluster.plan
        if not self.names:
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
        self.names += 1
        return f"topic-{self.names}"

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

    async def _do_move(self) -> None:
        """A partition goes to other nodes, or a move is cancelled; whichever nodes are away just then."""
        topic = self.rng.choice(self.directory.live(stable=False))
        number = self.rng.randrange(topic.partitions)
        nodes = self.cluster.plan.nodes
        target: list[int] | None = self.rng.sample(nodes, self.rng.randint(self.cluster.plan.fewest, 3))
        if self.rng.random() < 0.2:
            target = None
        asked = {"name": topic.name, "partitions": [{"partition_index": number, "replicas": target}]}
        answer = await self._ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, topics=[asked])
        code = answer.responses[0].partitions[0].error_code if answer is not None else ErrorCode.none
        if code is ErrorCode.none:
            self.finished["moved"] = self.finished.get("moved", 0) + 1
        elif code not in (
            *_PASSING, ErrorCode.invalid_replica_assignment, ErrorCode.no_reassignment_in_progress
        ):  # fmt: skip
            self.ledger.broken("operator", f"moving {topic.name}-{number} to {target}: {code.name}")

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
            "name": name, "num_partitions": count, "replication_factor": 3, "assignments": [],
            "configs": self._configs(),
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

    def _configs(self) -> list[dict[str, str]]:
        """What the plan has for every topic; else retention by time, by size or none."""
        plan, rng = self.cluster.plan, self.rng
        if plan.topic_configs:
            return [{"name": name, "value": value} for name, value in plan.topic_configs]
        if rng.random() >= plan.shrinking:
            return []
        if rng.random() < 0.5:
            return [{"name": "retention.ms", "value": str(rng.choice(plan.retention_ms))}]
        return [{"name": "retention.bytes", "value": str(rng.choice(plan.retention_bytes))}]

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

    async def _do_delete_records(self) -> None:
        """Records up to one that is known to be there, or all; done or not, once asked it may happen."""
        topic = self.rng.choice(self.directory.live(stable=False))
        place = Place(topic.topic_id, self.rng.randrange(topic.partitions))
        await self.refresh()
        if place not in self.leaders:
            return
        ends = [offset + batch.records for offset, batch in self.ledger.seen.get(place, {}).items()]
        highest = max(ends, default=0)
        offset = self.rng.choice(
            (_HIGH_WATERMARK, highest, *[self.rng.randint(0, highest) for _ in range(6)])
        )
        self.ledger.retention.asked(
            topic.name, place.partition, _EVERYTHING if offset == _HIGH_WATERMARK else offset
        )
        asked = {"name": topic.name, "partitions": [{"partition_index": place.partition, "offset": offset}]}
        try:
            answer = await self.wire.ask(
                self.leaders[place][0], ApiKey.DELETE_RECORDS, 2, ANSWER_SECONDS, topics=[asked],
                timeout=timedelta(seconds=SERVER_SECONDS),
            )  # fmt: skip
        except Lost:
            return
        (told,) = answer.topics[0].partitions
        if told.error_code is ErrorCode.none:
            self.finished["records"] = self.finished.get("records", 0) + 1
            if told.low_watermark < offset:
                self.ledger.broken("operator", f"{place} begins at {told.low_watermark}, not at {offset}")
        elif told.error_code not in self.refused_deletions and not self.directory.gone(place):
            self.ledger.broken("operator", f"deleting up to {offset} of {place}: {told.error_code.name}")
