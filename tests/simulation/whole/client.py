"""What all simulated Kafka clients share: a machine of their own, metadata, the topics they may know."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.apis import ApiKey
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.objects import Place
from tests.simulation.whole.wire import Lost, Wire

METADATA_SECONDS = 1.0
BACKOFF_SECONDS = (0.02, 0.08)
_LEADERLESS = -1

GONE = (ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition)
"""What a client is told of a topic that is deleted, and of one that a node has not heard of yet."""

PASSING = (
    ErrorCode.not_leader_or_follower,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_leader_epoch,
    ErrorCode.kafka_storage_error,
    *GONE,
)
"""What a client is told while leadership moves, or the store fails: it asks again."""


@dataclass(eq=False, slots=True)
class TopicKnown:
    """One topic that was created, from its creation to its deletion; a name may come again, this does not."""

    name: str
    topic_id: bytes
    partitions: int
    stable: bool
    """Never deleted: for clients whose requests name topics, which cannot tell one from a later one."""
    doomed: bool = False
    """Its deletion was asked for: nothing of it need be there."""
    asked: dict[str, Any] = field(init=False)
    """How a request names it: each version takes the field it knows."""

    def __post_init__(self) -> None:
        self.asked = {"name": self.name, "topic": self.name, "topic_id": UUID(bytes=self.topic_id)}


class Directory:
    """The topics, as whoever operates the cluster knows them."""

    def __init__(self) -> None:
        self.topics: list[TopicKnown] = []

    def live(self, *, stable: bool) -> list[TopicKnown]:
        return [topic for topic in self.topics if not topic.doomed and (topic.stable or not stable)]

    def places(self, *, stable: bool) -> list[Place]:
        """Partitions one may write to and read; with `stable` those of topics that stay."""
        return [
            Place(topic.topic_id, number)
            for topic in self.live(stable=stable)
            for number in range(topic.partitions)
        ]

    def known_places(self, *, stable: bool) -> list[Place]:
        """Also those of deleted topics: a client learns of that when it is told."""
        return [
            Place(topic.topic_id, number)
            for topic in self.topics
            if topic.stable or not stable
            for number in range(topic.partitions)
        ]

    def restored(self, there: Mapping[bytes, tuple[str, int]]) -> None:
        """The topics are these now: name and number of partitions by id."""
        for topic in self.topics:
            topic.doomed = topic.topic_id not in there
            topic.partitions = there.get(topic.topic_id, ("", topic.partitions))[1]
        known = {topic.topic_id for topic in self.topics}
        for topic_id, (name, count) in there.items():
            if topic_id not in known:
                self.topics.append(TopicKnown(name, topic_id, count, stable=False))

    def topic(self, place: Place) -> TopicKnown:
        wanted = place.topic_id
        for topic in self.topics:
            if topic.topic_id == wanted:
                return topic
        raise LookupError(f"no topic has the id {wanted.hex()}")

    def gone(self, place: Place) -> bool:
        topic = self.topic(place)
        return topic.doomed or place.partition >= topic.partitions


class Client:
    """A client on a machine of its own."""

    def __init__(self, cluster: WholeCluster, directory: Directory, name: str, machine: int) -> None:
        self.cluster = cluster
        self.directory = directory
        self.name = name
        self.world = cluster.world
        self.ledger = cluster.ledger
        self.rng = self.world.rng(f"client {name}")
        self.leaders: dict[Place, tuple[int, int]] = {}
        """Node and leader epoch, as the last metadata had it."""
        self.forgetful = self.rng.random() < 0.3
        """Believes whatever node it asked last, as clients from before leader epochs do."""
        self.stopped = False
        """Nothing new is begun."""
        self.tasks: list[asyncio.Task[Any]] = []
        sim = self.world.add_node(machine)
        sim.start(lambda _: None)
        self.sim = sim
        self.wire = Wire(sim, name, cluster.plan.nodes)

    def spawn(self, coro: Coroutine[Any, Any, Any]) -> None:
        def start() -> None:
            self.tasks.append(self.sim.spawn(coro))

        self.sim.call(start)

    @property
    def done(self) -> bool:
        return all(task.done() for task in self.tasks)

    def stop(self) -> None:
        self.stopped = True

    def close(self) -> None:
        """Break off whatever is left."""
        for task in self.tasks:
            if not task.done():  # else asyncio would take its exception for one that was looked at
                task.cancel()
        self.wire.close()

    async def pause(self) -> None:
        await asyncio.sleep(self.rng.uniform(*BACKOFF_SECONDS))

    async def refresh(self) -> None:
        """Ask some node who leads what; what cannot be had stays as it was."""
        node = self.rng.choice(self.wire.nodes)
        try:
            answer = await self.wire.ask(node, ApiKey.METADATA, 12, METADATA_SECONDS, topics=None)
        except Lost:
            return
        for topic in answer.topics:
            for partition in topic.partitions:
                place = Place(topic.topic_id.bytes, partition.partition_index)
                if partition.leader_id == _LEADERLESS:
                    continue
                known = self.leaders.get(place)
                if known is None or self.forgetful or partition.leader_epoch >= known[1]:
                    self.leaders[place] = (partition.leader_id, partition.leader_epoch)

    def asked(self, place: Place) -> dict[str, Any]:
        """How a request names the topic of a place; it is not to be changed."""
        return self.directory.topic(place).asked
