"""Producers and a consumer of the simulated partition, and what they know when the run is over."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import NamedTuple

from strandline.node.kafka.wire.record_batch import read_header
from strandline.node.objectstore.store import StoreError
from strandline.node.partition.batch import AppendResult, ProducedBatch
from strandline.node.refusal import Reason, Refusal
from strandline.statemachine.partition.partition_commands import Appended
from tests.kafka.wire.batches import Record, build
from tests.partition.cluster import PartitionCluster

IN_FLIGHT = 4
GIVE_UP_SECONDS = 4.0
STAMP = 1_700_000_000_000


class Written(NamedTuple):
    """A batch as its producer knows it, and as it can be told from its bytes."""

    producer: int
    number: int
    """Its place in the order of its producer; connections count from 1000 on."""


class Producer:
    """Sends `total` batches, in order, up to IN_FLIGHT at a time; with a producer id until each is there.

    `starts` is in seconds from now."""

    def __init__(
        self, cluster: PartitionCluster, identity: int, total: int, starts: float, *, idempotent: bool
    ) -> None:
        self.identity = identity
        self.idempotent = idempotent
        self.acked: dict[int, int] = {}
        """Offset by number."""
        self.refused: set[int] = set()
        """Definitely not there, if they were sent once only."""
        self.counts = [1 + (identity + number) % 3 for number in range(total)]
        self.connections: dict[int, int] = {}
        """The connection each was last sent on."""
        self._cluster = cluster
        self._world = cluster.world
        self._rng = self._world.rng(f"producer {identity}")
        self._next = 0
        self._again: list[int] = []
        self._in_flight: dict[int, int] = {}
        self._attempts = 0
        self._to = (0, 0)
        self._connection = identity * 1000
        self._arrives = 0.0
        self._world.call_later(starts, self._pump)

    @property
    def done(self) -> bool:
        return self._next == len(self.counts) and not self._in_flight and not self._again

    def _pump(self) -> None:
        if not self._in_flight:
            self._look_for_the_leader()
            # As Kafka's client: drain what is under way, then again from the first that failed.
            for number in sorted(self._again):
                self._send(number)
            self._again = []
        # A broker answers in order, so what is under way lies together: a retry is among the last five.
        while not self._again and self._next < min(
            len(self.counts), min(self._in_flight, default=self._next) + IN_FLIGHT
        ):
            self._send(self._next)
            self._next += 1
        if not self.done:
            self._world.call_later(0.01 + 0.02 * self._rng.random(), self._pump)

    def _look_for_the_leader(self) -> None:
        """Only with nothing under way: a producer that nobody knows yet and that writes to two nodes at once
        may lose its first batch to a gap, in Kafka as here."""
        leader = self._cluster.leading()
        if leader is None or self._rng.random() < 0.05:
            leader = self._rng.choice(self._cluster.voters)
        sim = self._world.nodes[leader]
        if self._to != (leader, sim.boot):
            self._to = (leader, sim.boot)
            self._connection += 1

    def _send(self, number: int) -> None:
        self._attempts += 1
        self._in_flight[number] = self._attempts
        self._world.call_later(GIVE_UP_SECONDS, self._answered, number, self._attempts, None)
        self.connections[number] = self._connection
        # One connection keeps the order of what is sent on it.
        self._arrives = max(self._arrives, self._world.now + 0.02 * self._rng.random())
        arrive = partial(self._arrive, number, self._attempts, self._to, self._connection)
        self._world.call_at(self._arrives, arrive)

    def _arrive(self, number: int, attempt: int, to: tuple[int, int], connection: int) -> None:
        node, boot = to
        sim = self._world.nodes[node]
        if not sim.alive or sim.boot != boot:
            self._world.call_later(0.01, self._answered, number, attempt, None)
            return
        sim.call(self._take, node, number, attempt, connection)

    def _take(self, node: int, number: int, attempt: int, connection: int) -> None:
        """On the node's loop."""
        data, sequence = self.batch(number)
        producer = (self.identity, 0, sequence) if self.idempotent else (-1, -1, -1)
        batch = ProducedBatch(data, self.counts[number], STAMP, *producer, connection)
        future = self._cluster.partitions[node].append(batch)
        future.add_done_callback(partial(self._leaves, number, attempt))
        if self._rng.random() < 0.03:
            self._world.nodes[node].loop.call_later(0.03 * self._rng.random(), future.cancel)

    def batch(self, number: int) -> tuple[bytes, int]:
        """The bytes of a batch, and its first sequence."""
        sequence = sum(self.counts[:number])
        producer = (self.identity, 0, sequence) if self.idempotent else (-1, -1, -1)
        value = f"{self.identity} {number}".encode()
        return build([Record(value, STAMP)] * self.counts[number], producer=producer), sequence

    def _leaves(self, number: int, attempt: int, future: asyncio.Future[AppendResult]) -> None:
        result = None if future.cancelled() else future.result()
        self._world.call_later(0.02 * self._rng.random(), self._answered, number, attempt, result)

    def _answered(self, number: int, attempt: int, result: AppendResult | None) -> None:
        if self._in_flight.get(number) != attempt:
            return
        del self._in_flight[number]
        if isinstance(result, Appended):
            self.acked[number] = result.base_offset
        elif self.idempotent:
            if isinstance(result, Refusal) and result.reason is Reason.STALE_PRODUCER_EPOCH:
                self._world.fail(None, f"producer {self.identity} was fenced by nobody")
            self._again.append(number)
        elif isinstance(result, Refusal) and result.reason is not Reason.UNDECIDED:
            self.refused.add(number)


def identify(data: bytes) -> tuple[Written, int]:
    """Whose batch these bytes are, and its number of records."""
    # The first record: length, attributes, two deltas, no key, the value's length, the value; a byte each.
    length = data[66] >> 1
    producer, number = data[67 : 67 + length].split(b" ")
    return Written(int(producer), int(number)), read_header(data).record_count


class Consumer:
    """Reads from the first offset on, wherever a confirmed leader is, and remembers what it saw."""

    def __init__(self, cluster: PartitionCluster) -> None:
        self.seen: list[tuple[int, Written]] = []
        self.offset = 0
        self.errors: dict[str, int] = {}
        self._cluster = cluster
        self._world = cluster.world
        self._rng = self._world.rng("consumer")
        self._world.call_later(0.1, self._poll)

    def _poll(self) -> None:
        leader = self._cluster.leading()
        if leader is not None:
            sim = self._world.nodes[leader]
            sim.call(lambda: sim.spawn(self._read(leader)))
        self._world.call_later(0.05 + 0.1 * self._rng.random(), self._poll)

    async def _read(self, node: int) -> None:
        partition, offset = self._cluster.partitions[node], self.offset
        if not await partition.confirm():
            return
        if partition.high_watermark < offset:
            self._world.fail(None, f"a confirmed leader's high watermark is below {offset}, which was read")
        try:
            batches = await partition.read(offset, partition.high_watermark, 400)
        except StoreError as error:
            self.errors[type(error).__name__] = self.errors.get(type(error).__name__, 0) + 1
            return
        for batch in batches:
            if batch.base_offset != self.offset:
                return  # another poll was faster
            self.seen.append((batch.base_offset, identify(bytes(batch.data))[0]))
            self.offset = batch.end_offset
