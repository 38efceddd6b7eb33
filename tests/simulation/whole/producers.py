"""Producers: with an id, as librdkafka sends (what fails drains and goes out again, in order, under the same
sequences), and without one, where each batch is sent once and its answer is taken at its word."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.apis import ApiKey
from tests.kafka.wire.batches import Record, build
from tests.simulation.whole.client import GONE, Client, Directory
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.ledger import Sent
from tests.simulation.whole.objects import BODY, Place
from tests.simulation.whole.retention import START_MS
from tests.simulation.whole.wire import Connection, Lost

IN_FLIGHT = 5
PATIENCE = 1.5
"""How much longer than the broker may take a producer waits."""
INIT_SECONDS = 1.5
LONGEST_SLEEP = 10.0
"""Seconds that a producer which is stopped may sleep on."""

RETRIABLE = (
    ErrorCode.not_leader_or_follower,
    ErrorCode.leader_not_available,
    ErrorCode.request_timed_out,
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.kafka_storage_error,
    ErrorCode.out_of_order_sequence_number,
    *GONE,
)
UNKNOWN = (ErrorCode.request_timed_out, ErrorCode.not_enough_replicas_after_append)
"""The batch may be there, now or later; under every other error it is not."""


@dataclass(eq=False)
class Lane:
    """A producer's batches for one partition."""

    place: Place
    identity: str
    producer_id: int
    total: int
    """How many it is to write; fewer when the run ends first."""
    pending: list[Sent] = field(default_factory=list)
    """Made and not acknowledged, in order."""
    sequences: dict[Sent, bytes] = field(default_factory=dict)
    """The bytes to send."""
    made: int = 0
    sequence: int = 0
    abandoned: bool = False
    lost: bool = False
    """What was acknowledged is not in the cluster that was restored."""
    more: asyncio.Event = field(default_factory=asyncio.Event)


class Producer(Client):
    """One client that writes to some partitions at a time, a few batches to each, then to others."""

    def __init__(
        self, cluster: WholeCluster, directory: Directory, name: str, machine: int, *, idempotent: bool
    ) -> None:
        super().__init__(cluster, directory, name, machine)
        self.idempotent = idempotent
        self.version = self.rng.choice((9, 12, 13, 13, 13))
        self.lanes: list[Lane] = []
        self.outcomes: Counter[str] = Counter()
        self.sent: list[Sent] = []
        """Without an id: everything, in the order in which it was sent."""
        self._identities = 0
        self._seconds = cluster.plan.seconds_to_answer
        for _ in range(cluster.plan.lanes):
            self.spawn(self._work())

    def restored(self, lost: Collection[tuple[str, Place]]) -> None:
        """Learn of which producers a restored cluster lacks what was acknowledged, and where."""
        for lane in self.lanes:
            lane.lost = lane.lost or (lane.identity, lane.place) in lost

    refused_with: tuple[ErrorCode, ...] = ()
    """Codes under which, besides those that pass, a batch of a producer without an id may be refused."""

    @property
    def by_name(self) -> bool:
        return self.version < 13

    async def _work(self) -> None:
        producer_id, used = -1, set[Place]()
        await self.pause()
        while not self.stopped:
            if self.idempotent and (producer_id < 0 or self.rng.random() < 0.6):
                producer_id, used = await self._named(), set()
                continue_with = producer_id >= 0
            else:
                continue_with = True
            places = [place for place in self.directory.places(stable=self.by_name) if place not in used]
            if not continue_with or not places:
                await self.refresh()
                await self.pause()
                if not places:
                    producer_id = -1
                continue
            place = self.rng.choice(places)
            used.add(place)
            self._identities += 1
            identity = f"{self.name}.{producer_id}" if self.idempotent else f"{self.name}/{self._identities}"
            lane = Lane(place, identity, producer_id, self.rng.randint(4, 16))
            self.lanes.append(lane)
            await (self._drive(lane) if self.idempotent else self._once(lane))

    async def _named(self) -> int:
        """A producer id, or -1."""
        node = self.rng.choice(self.wire.nodes)
        try:
            answer = await self.wire.ask(
                node, ApiKey.INIT_PRODUCER_ID, 4, INIT_SECONDS,
                transactional_id=None, transaction_timeout=timedelta(seconds=1), producer_id=-1,
                producer_epoch=-1,
            )  # fmt: skip
        except Lost:
            return -1
        if answer.error_code is not ErrorCode.none:
            return -1
        self._identities += 1
        self.ledger.named(answer.producer_id, f"{self.name} {self._identities}")
        return int(answer.producer_id)

    # Batches.

    def _make(self, lane: Lane) -> Sent:
        count = self.rng.choice((1, 1, 2, 3))
        label = f"{lane.identity} {lane.place} {lane.made} ".encode()
        filler = b"x" * self.rng.choice((0, 10, 100, 400))
        time = START_MS + int(1000 * self.world.now)
        producer = (lane.producer_id, 0, lane.sequence) if self.idempotent else (-1, -1, -1)
        data = self._built(label + filler, time, count, producer)
        batch = Sent(lane.identity, lane.made, lane.place, count, data[BODY:], self.idempotent)
        lane.made += 1
        lane.sequence += count
        lane.sequences[batch] = data
        self.ledger.made(batch)
        return batch

    def _built(self, text: bytes, time: int, count: int, producer: tuple[int, int, int]) -> bytes:
        """The bytes of a batch of so many records, which no other has; `text` is in no other either."""
        return build([Record(text, time)] * count, producer=producer)

    def _arrivals(self, lane: Lane) -> Iterator[float]:
        """Pauses between batches; some come in bursts."""
        burst = 0
        while lane.made < lane.total:
            burst = burst - 1 if burst else self.rng.choice((0, 0, 0, 5))
            yield 0.0 if burst else self.rng.expovariate(1 / self.cluster.plan.think_seconds)

    async def _sleep(self, seconds: float) -> None:
        """Sleep so long, or less when the producer is stopped: a pause is sometimes minutes long."""
        while seconds > 0 and not self.stopped:
            await asyncio.sleep(min(seconds, LONGEST_SLEEP))
            seconds -= LONGEST_SLEEP

    def _send(self, connection: Connection, lane: Lane, batch: Sent, acks: int = -1) -> asyncio.Future[Any]:
        data = {"index": lane.place.partition, "records": lane.sequences[batch]}
        future = connection.send(
            ApiKey.PRODUCE, self.version, answered=acks != 0, transactional_id=None, acks=acks,
            timeout=timedelta(seconds=self._seconds),
            topic_data=[{**self.asked(lane.place), "partition_data": [data]}],
        )  # fmt: skip
        if not future.done():
            timer = self.wire.loop.call_later(self._seconds * PATIENCE, connection.give_up)
            future.add_done_callback(lambda _: timer.cancel())
        return future

    def _read(self, future: asyncio.Future[Any]) -> tuple[ErrorCode | None, int]:
        """The code and offset of an answer; None when there was none."""
        if future.exception() is not None:
            self.outcomes["lost"] += 1
            return None, -1
        answer = future.result().responses[0].partition_responses[0]
        self.outcomes[answer.error_code.name] += 1
        return answer.error_code, answer.base_offset

    async def _leader(self, lane: Lane) -> Connection | None:
        if lane.place not in self.leaders or self.rng.random() < 0.3:
            await self.refresh()
        known = self.leaders.get(lane.place)
        if known is None:
            return None
        try:
            return await self.wire.connection(known[0])
        except Lost:
            await self.refresh()
            return None

    # With an id.

    async def _drive(self, lane: Lane) -> None:
        making = self.wire.loop.create_task(self._keep_making(lane))
        while lane.made < lane.total or lane.pending:
            if lane.abandoned:
                break
            if self.stopped and (not lane.pending or lane.lost or self.directory.gone(lane.place)):
                lane.abandoned = bool(lane.pending)
                break
            connection = await self._leader(lane)
            if connection is not None and await self._stream(lane, connection):
                await self.refresh()
            await self.pause()
        making.cancel()

    async def _keep_making(self, lane: Lane) -> None:
        for seconds in self._arrivals(lane):
            await self._sleep(seconds)
            if self.stopped:
                break
            lane.pending.append(self._make(lane))
            lane.more.set()
        lane.total = lane.made
        lane.more.set()

    async def _stream(self, lane: Lane, connection: Connection) -> bool:
        """Send in order until something fails, then wait until nothing is under way. Whether it failed."""
        flight: deque[tuple[Sent, asyncio.Future[Any]]] = deque()
        following, failed = 0, False
        while True:
            while not failed and following < len(lane.pending):
                batch = lane.pending[following]
                if batch.number >= lane.pending[0].number + IN_FLIGHT:
                    break  # a broker remembers so many batches of a producer, and no more
                future = self._send(connection, lane, batch)
                future.add_done_callback(lambda _: lane.more.set())
                flight.append((batch, future))
                following += 1
            while flight and flight[0][1].done():
                batch, future = flight.popleft()
                if self._answered(lane, batch, future):
                    lane.pending.remove(batch)
                    del lane.sequences[batch]
                    following -= 1
                else:
                    failed = True
            if not flight and (failed or self.stopped or lane.made >= lane.total):
                if failed or following >= len(lane.pending):
                    return failed
                continue
            if flight or following >= len(lane.pending):
                lane.more.clear()
                await lane.more.wait()

    def _answered(self, lane: Lane, batch: Sent, future: asyncio.Future[Any]) -> bool:
        code, offset = self._read(future)
        if code is ErrorCode.none:
            self.ledger.acked(batch, offset)
            return True
        if code is None:
            return False
        if self.directory.gone(lane.place):
            # Told so, or somewhere in the middle of it.
            lane.abandoned = lane.abandoned or code in GONE or self.stopped
            return False
        if code not in RETRIABLE:
            self.ledger.broken("answers", f"{batch} was answered {code.name}")
        elif code is ErrorCode.out_of_order_sequence_number and lane.lost:
            lane.abandoned = True
        elif code is ErrorCode.out_of_order_sequence_number and lane.pending[0] is batch:
            self.ledger.broken("sequences", f"{batch}: all before it is acknowledged, and it is out of order")
        return False

    # Without one.

    async def _once(self, lane: Lane) -> None:
        acks = self.rng.choice((-1, -1, 1, 0))
        under_way: deque[asyncio.Future[Any]] = deque()
        connection: Connection | None = None
        for seconds in self._arrivals(lane):
            await self._sleep(seconds)
            if self.stopped or lane.abandoned:
                break
            if connection is None or not connection.open or self.rng.random() < 0.1:
                connection = await self._leader(lane)
            if connection is None:
                await self.pause()
                continue
            batch = self._make(lane)
            batch.connection = connection.number
            self.sent.append(batch)
            future = self._send(connection, lane, batch, acks)
            if acks:
                future.add_done_callback(partial(self._told, lane, batch))
                under_way.append(future)
            while len(under_way) > IN_FLIGHT:
                await asyncio.wait([under_way.popleft()])
        if under_way:
            await asyncio.wait([*under_way])
        if self.stopped or connection is None or not connection.open:
            return
        await self.refresh()

    def _told(self, lane: Lane, batch: Sent, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            return
        code, offset = self._read(future)
        if code is None:
            return
        if self.directory.gone(batch.place):
            lane.abandoned = code in GONE
            return
        if code is ErrorCode.none:
            self.ledger.acked(batch, offset)
        elif code not in (*RETRIABLE, *self.refused_with):
            self.ledger.broken("answers", f"{batch} was answered {code.name}")
        elif code not in UNKNOWN:
            batch.refused = code.name
