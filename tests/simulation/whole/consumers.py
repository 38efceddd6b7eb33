"""Consumers: long polls over all partitions, from the first offset on, never sent back and never misled."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.apis import ApiKey
from strandline.node.kafka.wire.record_batch import BatchHeader, read_header
from tests.simulation.whole.client import GONE, PASSING, Client, Directory
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.objects import Place
from tests.simulation.whole.wire import Lost

ANSWER_SECONDS = 2.5
CALM_SECONDS = 6.0
"""The same once the faults are over: reading many small objects one after the other takes its time."""
CALM_BYTES = 16_384
_NO_EPOCH = -1


class Consumer(Client):
    """Reads everything there is, wherever metadata says that it is led."""

    def __init__(
        self, cluster: WholeCluster, directory: Directory, name: str, machine: int, version: int = 0
    ) -> None:
        super().__init__(cluster, directory, name, machine)
        self.version = version or self.rng.choice((11, 12, 13, 16, 18))
        self.isolation = 0
        self.positions: dict[Place, int] = {}
        self.records = 0
        self.outcomes: Counter[str] = Counter()
        self._epochs: dict[Place, int] = {}
        self._gone: dict[Place, None] = {}
        self._starts: dict[Place, int] = {}
        """Where this consumer last had to begin anew."""
        self._believes = 0.0 if self.forgetful else 0.7
        """Share of partitions whose leader epoch is sent along."""
        self._max_wait = self.rng.choice((0.05, 0.3, 1.0))
        self._min_bytes = self.rng.choice((1, 1, 1000))
        self._max_bytes = self.rng.choice((1, 500, 1 << 20))
        self._patience = ANSWER_SECONDS
        self._looks = 0.05
        if cluster.plan.hasty_consumers:
            self._max_wait, self._looks = 0.05, 0.5
        self.spawn(self._work())

    @property
    def by_name(self) -> bool:
        return self.version < 13

    def hurry(self) -> None:
        """From now on take what there is, at once."""
        self._max_wait, self._min_bytes, self._max_bytes = 0.1, 1, CALM_BYTES
        self._patience = CALM_SECONDS

    def restored(self, ends: Mapping[Place, int]) -> None:
        """Go on in a restored cluster, whose partitions end here."""
        self._gone = {place: None for place in self._gone if self.directory.gone(place)}
        for place in [*self.positions]:
            end = ends.get(place, 0)
            if self.positions[place] > end:
                self.positions[place] = end
                self._epochs.pop(place, None)
                self._starts.pop(place, None)

    async def _work(self) -> None:
        await self.pause()
        while not self.stopped:
            by_node: dict[int, list[Place]] = {}
            for place in self.directory.known_places(stable=self.by_name):
                if place in self._gone:
                    continue
                if place in self.leaders:
                    by_node.setdefault(self.leaders[place][0], []).append(place)
                else:
                    self.outcomes["no leader"] += 1
            moved = await asyncio.gather(*(self._fetch(node, places) for node, places in by_node.items()))
            if not all(moved) or not by_node or self.rng.random() < self._looks:
                await self.refresh()
                await self.pause()

    async def _fetch(self, node: int, places: list[Place]) -> bool:
        """One request; whether it went well."""
        self.rng.shuffle(places)
        topics: dict[bytes, dict[str, Any]] = {}
        for place in places:
            topic = topics.setdefault(place.topic_id, {**self.asked(place), "partitions": []})
            believed = self.leaders[place][1] if self.rng.random() < self._believes else _NO_EPOCH
            topic["partitions"].append(
                {
                    "partition": place.partition,
                    "fetch_offset": self.positions.get(place, 0),
                    "current_leader_epoch": believed,
                    "last_fetched_epoch": _NO_EPOCH if self.forgetful else self._epochs.get(place, _NO_EPOCH),
                    "partition_max_bytes": self._max_bytes,
                }
            )
        try:
            answer = await self.wire.ask(
                node, ApiKey.FETCH, self.version, self._patience, replica_id=-1,
                max_wait=timedelta(seconds=self._max_wait), min_bytes=self._min_bytes, max_bytes=1 << 20,
                isolation_level=self.isolation, session_id=0, session_epoch=-1, topics=list(topics.values()),
            )  # fmt: skip
        except Lost:
            self.outcomes["lost"] += 1
            return False
        well = True
        for topic_id, topic in zip(topics, answer.responses, strict=True):
            for partition in topic.partitions:
                well = self._take(Place(topic_id, partition.partition_index), partition) and well
        return well

    def _take(self, place: Place, answer: Any) -> bool:
        code = answer.error_code
        self.outcomes[code.name] += 1
        if code in GONE and self.directory.gone(place):
            self._gone[place] = None
        if code is ErrorCode.offset_out_of_range and self._begins_anew(place):
            return True
        if code is not ErrorCode.none:
            if code not in PASSING and not self.directory.gone(place):
                at = self.positions.get(place, 0)
                self.ledger.broken("consumers", f"{self.name} at {at} of {place} was answered {code.name}")
            return False
        diverging = getattr(answer, "diverging_epoch", None)
        if diverging is not None and diverging.epoch != _NO_EPOCH:
            self.ledger.broken("consumers", f"{self.name} was told that {place} diverges: {diverging}")
            return False
        self._records(place, bytes(answer.records or b""))
        return True

    def _begins_anew(self, place: Place) -> bool:
        """Go on where the partition begins now, if what comes next here was deleted."""
        start = self.ledger.retention.start_offset(place)
        if self.positions.get(place, 0) >= start:
            return False
        self.positions[place] = self._starts[place] = start
        # The record before the new position was not read: its epoch is not known.
        self._epochs.pop(place, None)
        return True

    def _records(self, place: Place, data: bytes) -> None:
        start = 0
        while start < len(data):
            size = 12 + int.from_bytes(data[start + 8 : start + 12], "big")
            batch = data[start : start + size]
            start += size
            header = read_header(batch)
            offset = int.from_bytes(batch[:8], "big")
            epoch = int.from_bytes(batch[12:16], "big", signed=True)
            expected = self.positions.get(place, 0)
            if self._starts.get(place) == expected and offset < expected < offset + header.record_count:
                pass  # the partition begins in the middle of this batch
            elif offset != expected:
                self.ledger.broken("consumers", f"{self.name} expects {expected} of {place}, got {offset}")
                return
            if epoch < self._epochs.get(place, _NO_EPOCH):
                self.ledger.broken("leader epochs", f"{self.name}: {epoch} follows a later one in {place}")
            if not self._given(place, offset, batch, header):
                return
            self._epochs[place] = epoch
            self.positions[place] = offset + header.record_count
            self.records += header.record_count

    def _given(self, place: Place, offset: int, batch: bytes, header: BatchHeader) -> bool:
        """Take a batch that follows what was read before; false when it is a finding."""
        return self.ledger.read(place, offset, batch, self.name) is not None
