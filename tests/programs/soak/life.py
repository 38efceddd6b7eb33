"""A topic from its creation to its deletion: who writes to it, who follows it, and what became of it all."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping
from typing import Any

from tests.programs.failover.cluster.nodes import Nodes, NotWell
from tests.programs.soak.ledger import Stream
from tests.programs.soak.load import Writer
from tests.programs.soak.reading import Follower
from tests.programs.soak.topics import Administration, Topic

_CREATE_SECONDS = 60.0
_FLUSH_SECONDS = 90.0
_IDLE_RECORDS = 40
_POLL_SECONDS = 0.1


class Life:
    """One life of a topic. `numbers` numbers the streams of the whole run."""

    def __init__(self, topic: Topic, nodes: Nodes, rate: float, numbers: itertools.count[int]) -> None:
        self.topic = topic
        self.topic_id: str | None = None
        self.low_asked: dict[int, int] = {}
        """Offsets that DeleteRecords was asked for, the highest of each partition."""
        self.low_told: dict[int, int] = {}
        """First offsets that it answered."""
        self._nodes = nodes
        each = rate * topic.share / topic.producers if topic.share else 50_000.0
        self.writers = [
            Writer(
                nodes.bootstrap,
                Stream(next(numbers), topic.name, topic.partitions),
                each,
                None if topic.share else _IDLE_RECORDS,
            )
            for _ in range(topic.producers)
        ]
        self.follower = Follower(nodes.bootstrap, f"follower of {topic.name}", self.places)

    @property
    def places(self) -> list[tuple[str, int]]:
        return [(self.topic.name, partition) for partition in range(self.topic.partitions)]

    @property
    def streams(self) -> Mapping[int, Stream]:
        return {writer.stream.number: writer.stream for writer in self.writers}

    async def begin(self, administration: Administration, before: str | None = None) -> None:
        """Create the topic, which had the id `before` in its last life, and let the load at it."""
        deadline = time.monotonic() + _CREATE_SECONDS
        await asyncio.to_thread(administration.create, self.topic, _CREATE_SECONDS)
        while not await self._led(before):
            if time.monotonic() > deadline:
                raise NotWell(f"{self.topic.name} has no leaders after {_CREATE_SECONDS:g} s")
            await asyncio.sleep(_POLL_SECONDS)
        for writer in self.writers:
            writer.start()
        self.follower.start()

    async def doom(self) -> None:
        """The topic is about to be deleted: nobody follows it any more, and its writers may fail."""
        await asyncio.to_thread(self.follower.stop)
        for writer in self.writers:
            writer.doom()

    async def end(self) -> None:
        """No more load; what has no answer yet gets none."""
        await asyncio.to_thread(self.follower.stop)
        for writer in self.writers:
            await asyncio.to_thread(writer.drop)

    async def quiet(self) -> list[str]:
        """End the writers, wait for their answers, and for the follower to come to the end."""
        found = []
        for writer in self.writers:
            writer.stop()
        deadline = time.monotonic() + _FLUSH_SECONDS
        for writer in self.writers:
            left = await asyncio.to_thread(writer.wait, max(0.1, deadline - time.monotonic()))
            if left:
                found.append(f"{left} records for {self.topic.name} have no answer though all nodes are well")
        try:
            behind = await asyncio.to_thread(self.follower.caught_up, _FLUSH_SECONDS)
        except TimeoutError as error:
            behind = str(error)
        await asyncio.to_thread(self.follower.stop)
        return found + ([behind] if behind else [])

    def problems(self) -> list[str]:
        """What writers and follower found so far."""
        told = [
            f"stream {writer.stream.number} for {self.topic.name}: {writer.problem}"
            for writer in self.writers
            if writer.problem is not None
        ]
        return told + self.follower.findings

    async def trimmed(self, administration: Administration, partition: int, offset: int) -> bool:
        """DeleteRecords; whether it was answered."""
        self.low_asked[partition] = max(offset, self.low_asked.get(partition, 0))
        told = await asyncio.to_thread(administration.trim, self.topic.name, partition, offset)
        if told is None:
            return False
        self.low_told[partition] = max(told, self.low_told.get(partition, 0))
        return True

    async def _led(self, before: str | None) -> bool:
        known: Any = await self._nodes.ask(f"/api/topics/{self.topic.name}")
        self.topic_id = known["topic_id"]
        leaders = [each["leader"] for each in known["partitions"]]
        return self.topic_id != before and len(leaders) == self.topic.partitions and None not in leaders
