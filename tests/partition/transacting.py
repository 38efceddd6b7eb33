"""Transactional producers, their coordinator and a read-committed consumer, around the simulated partition.

The coordinator is perfect and outside of the cluster: what is tested is the partition, to which everything
comes late, twice, or from somebody who has been replaced.
"""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.produced_transactions import Questions
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.record_batch import read_header
from strandline.node.objectstore.store import StoreError
from strandline.node.partition.batch import AppendResult, ProducedBatch, Verified
from strandline.node.refusal import Reason, Refusal
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.kafka_errors import KafkaError
from strandline.statemachine.partition.aborted_transactions import AbortedTransaction
from strandline.statemachine.partition.partition_commands import Appended
from strandline.statemachine.partition.producers import NO_TRANSACTION
from tests.kafka.wire.batches import Record, build
from tests.partition.clients import STAMP
from tests.partition.cluster import TOPIC, PartitionCluster
from tests.simulation.node import SimNode

IN_FLIGHT = 3
GIVE_UP_SECONDS = 1.5
OLD, NEW = 9, 12
"""Versions of Produce: of a client that adds partitions itself, of one that raises its epoch each time."""
_AGAIN = (
    Reason.NOT_LEADER,
    Reason.NOT_NOW,
    Reason.UNDECIDED,
    Reason.STORAGE_FAILED,
    Reason.OUT_OF_ORDER,
    KafkaError.CONCURRENT_TRANSACTIONS,
)


class _Id:
    """A transactional id as its coordinator knows it."""

    def __init__(self) -> None:
        self.epoch = 0
        self.number = 0
        self.status = "empty"
        self.marker_epoch = 0
        self.commit = False


class Coordinator:
    """Numbers, decides, and says each decision to whoever leads until it is done; some of them once more."""

    def __init__(self, cluster: PartitionCluster) -> None:
        self.decided: dict[tuple[int, int], bool] = {}
        """By producer id and number: whether it was committed."""
        self._cluster = cluster
        self._world = cluster.world
        self._rng = self._world.rng("coordinator")
        self._ids: dict[int, _Id] = {}

    def id_of(self, producer: int) -> _Id:
        return self._ids.setdefault(producer, _Id())

    def join(self, producer: int, epoch: int, *, add: bool) -> Verified | Refusal:
        """The partition's place in the producer's transaction."""
        one = self.id_of(producer)
        if epoch != one.epoch:
            return Refusal(KafkaError.PRODUCER_FENCED, "another incarnation")
        if one.status == "ending":
            return Refusal(KafkaError.CONCURRENT_TRANSACTIONS, "the one before")
        if one.status == "empty":
            if not add:
                return Refusal(KafkaError.INVALID_TXN_STATE, "nothing is open")
            one.number += 1
            one.status = "open"
        return Verified(one.number)

    def end(self, producer: int, epoch: int, *, commit: bool, raises: bool) -> bool:
        one = self.id_of(producer)
        if epoch != one.epoch or one.status == "ending":
            return False
        one.epoch += raises
        if one.status == "open":
            self._decide(producer, commit)
        return True

    def fence(self, producer: int) -> None:
        """A new incarnation: the epoch is raised first, and the markers carry it."""
        one = self.id_of(producer)
        one.epoch += 1
        if one.status == "open":
            self._decide(producer, False)

    def _decide(self, producer: int, commit: bool) -> None:
        one = self.id_of(producer)
        one.status, one.commit, one.marker_epoch = "ending", commit, one.epoch
        self.decided[producer, one.number] = commit
        self._mark(producer, one.marker_epoch, one.number, commit)

    def _mark(self, producer: int, epoch: int, number: int, commit: bool) -> None:
        one = self.id_of(producer)
        if one.number != number or one.status != "ending":
            return
        self._send(producer, epoch, number, commit)
        self._world.call_later(0.05 + 0.3 * self._rng.random(), self._mark, producer, epoch, number, commit)

    def _send(self, producer: int, epoch: int, number: int, commit: bool) -> None:
        leader = self._cluster.leading()
        if leader is None:
            return
        if self._rng.random() < 0.1:
            leader = self._rng.choice(self._cluster.voters)
        sim = self._world.nodes[leader]
        if not sim.alive:
            return
        marker = (producer, epoch, number, commit)
        late = 3.0 if self._rng.random() < 0.25 else 0.05
        self._world.call_later(self._rng.random() * late, self._arrive, sim, sim.boot, marker)

    def _arrive(self, sim: SimNode, boot: int, marker: tuple[int, int, int, bool]) -> None:
        if sim.alive and sim.boot == boot:
            sim.call(lambda: sim.spawn(self._end(sim, marker)))

    async def _end(self, sim: SimNode, marker: tuple[int, int, int, bool]) -> None:
        producer, epoch, number, commit = marker
        failed = await self._cluster.partitions[sim.id].end_transaction(producer, epoch, number, commit, 1)
        if failed is None:
            self._world.call_later(0.05 * self._rng.random(), self._done, producer, number)

    def _done(self, producer: int, number: int) -> None:
        one = self.id_of(producer)
        if one.number == number and one.status == "ending":
            one.status = "empty"


class NodesVerifier:
    """One node's way to the coordinator: slow in both directions."""

    def __init__(self, coordinator: Coordinator, sim: SimNode) -> None:
        self._coordinator = coordinator
        self._rng = sim.rng("verifier")

    async def partitions(self, _: str, producer: int, epoch: int, partitions: Any, *, add: bool) -> Any:
        await asyncio.sleep(self._pause())
        answer = self._coordinator.join(producer, epoch, add=add)
        await asyncio.sleep(self._pause())
        return answer

    def _pause(self) -> float:
        return self._rng.random() * (1.0 if self._rng.random() < 0.15 else 0.02)


class Transactional:
    """Makes `total` transactions of a few batches, some of which it aborts, and now and then it dies within
    one: what it sent stays under way, and its successor goes on."""

    def __init__(
        self, cluster: PartitionCluster, coordinator: Coordinator, identity: int, total: int, version: int
    ) -> None:
        self.identity = identity
        self.version = version
        self.acked: set[tuple[int, int]] = set()
        """Transaction's number and batch, of those that were committed."""
        self.fenced = 0
        self._cluster = cluster
        self._world = cluster.world
        self._rng = self._world.rng(f"transactional {identity}")
        self._coordinator = coordinator
        self._id = coordinator.id_of(identity)
        self._left = total
        self._attempts = 0
        self._sequence = 0
        self._arrives = 0.0
        self._epoch = 0
        self._number = 0
        self._doomed = False
        self._raises = False
        self._batches: list[int] = []
        """First sequences of the present transaction's batches."""
        self._size = self._sent = 0
        self._there: set[int] = set()
        self._again: list[int] = []
        self._in_flight: dict[int, int] = {}
        self._to = (0, 0)
        self._world.call_later(self._rng.random(), self._pump)

    @property
    def done(self) -> bool:
        return self._left == 0 and self._id.status == "empty"

    def _pump(self) -> None:
        if self._size:
            self._work()
        elif self._id.status == "empty" and self._left:
            self._begin()
        if not self.done:
            self._world.call_later(0.01 + 0.02 * self._rng.random(), self._pump)

    def _begin(self) -> None:
        self._id.epoch += self._raises
        self._raises = False
        if self._epoch != self._id.epoch:
            self._epoch, self._sequence = self._id.epoch, 0
        self._number = self._id.number + 1
        self._size = self._rng.randrange(1, 5)
        self._doomed = self._rng.random() < 0.3
        self._sent, self._batches, self._there, self._again, self._in_flight = 0, [], set(), [], {}
        if self.version < NEW:
            assert self._coordinator.join(self.identity, self._epoch, add=True) == Verified(self._number)

    def _work(self) -> None:
        if self._rng.random() < 0.01:
            # It dies, or its client closes it: batches of it may arrive for a long time.
            self._over(lambda: self._coordinator.fence(self.identity))
            return
        if len(self._there) == self._size:
            commit = self._rng.random() < 0.7
            raises = self.version >= NEW
            if commit:
                self.acked |= {(self._number, index) for index in self._there}
            ended = partial(self._coordinator.end, self.identity, self._epoch, commit=commit, raises=raises)
            self._over(lambda: self._expect(ended()))
            return
        if not self._in_flight:
            self._look_for_the_leader()
            for index in sorted(self._again):
                self._send(index)
            self._again = []
        while not self._again and self._sent < self._size and len(self._in_flight) < IN_FLIGHT:
            count = 1 + self._rng.randrange(3)
            self._batches.append(self._sequence | count << 32)
            self._sequence += count
            self._sent += 1
            self._send(self._sent - 1)
            if self._doomed and self._rng.random() < 0.2:
                # With batches under way. An older client's epoch is raised too, but only once it has aborted.
                self._raises = self.version < NEW
                self._over(
                    lambda: self._expect(
                        self._coordinator.end(
                            self.identity, self._epoch, commit=False, raises=not self._raises
                        )
                    )
                )
                return

    def _expect(self, ended: bool) -> None:
        if not ended:
            self._world.fail(None, f"producer {self.identity} could not end its transaction")

    def _over(self, end: Any) -> None:
        end()
        self._left -= 1
        self._size = 0
        self._in_flight = {}

    def _look_for_the_leader(self) -> None:
        leader = self._cluster.leading()
        if leader is None or self._rng.random() < 0.05:
            leader = self._rng.choice(self._cluster.voters)
        self._to = (leader, self._world.nodes[leader].boot)

    def _send(self, index: int) -> None:
        self._attempts += 1
        self._in_flight[index] = self._attempts
        late = 2.5 if self._rng.random() < 0.03 else 0.02
        self._arrives = max(self._arrives, self._world.now + late * self._rng.random())
        sequence, count = self._batches[index] & 0xFFFFFFFF, self._batches[index] >> 32
        value = f"{self.identity} {self._number * 100 + index}".encode()
        claim = (self.identity, self._epoch, sequence)
        data = build([Record(value, STAMP)] * count, producer=claim, attributes=0x10)
        attempt = self._attempts
        self._world.call_later(GIVE_UP_SECONDS, self._answered, index, attempt, None)
        self._world.call_at(self._arrives, self._arrive, index, attempt, self._to, data)

    def _arrive(self, index: int, attempt: int, to: tuple[int, int], data: bytes) -> None:
        node, boot = to
        sim = self._world.nodes[node]
        if not sim.alive or sim.boot != boot:
            self._world.call_later(0.01, self._answered, index, attempt, None)
            return
        sim.call(self._take, sim, index, attempt, data)

    def _take(self, sim: SimNode, index: int, attempt: int, data: bytes) -> None:
        """On the node's loop, what a produce request does."""
        partition = self._cluster.partitions[sim.id]
        context = SimpleNamespace(loop=sim.loop, verifier=NodesVerifier(self._coordinator, sim))
        head = read_header(data)
        request = SimpleNamespace(header=SimpleNamespace(api_version=self.version))
        questions = Questions(cast(BrokerContext, context), cast(Request, request), "x")
        claim = (head.producer_id, head.producer_epoch, head.base_sequence)
        batch = ProducedBatch(data, head.record_count, STAMP, *claim, self.identity)
        if not partition.leads:
            partition.missed(batch)
            self._world.call_later(0.01, self._answered, index, attempt, None)
            return
        known = questions.transaction_of(partition, cast(Topic, SimpleNamespace(topic_id=TOPIC)), 0, head)
        if isinstance(known, Refusal):
            self._world.call_later(0.01, self._answered, index, attempt, known)
            return
        number = known if isinstance(known, int) else NO_TRANSACTION
        verification = None if isinstance(known, int) else known
        future = partition.append(batch._replace(transaction=number), None, verification)
        questions.ask()
        future.add_done_callback(partial(self._leaves, index, attempt))

    def _leaves(self, index: int, attempt: int, future: asyncio.Future[AppendResult]) -> None:
        result = None if future.cancelled() else future.result()
        self._world.call_later(0.02 * self._rng.random(), self._answered, index, attempt, result)

    def _answered(self, index: int, attempt: int, result: AppendResult | None) -> None:
        if self._in_flight.get(index) != attempt:
            return
        del self._in_flight[index]
        if isinstance(result, Appended):
            self._there.add(index)
        elif result is None or result.reason in _AGAIN:
            self._again.append(index)
        else:
            # Nobody but the producer itself ends its transaction here.
            self.fenced += 1
            self._world.fail(None, f"producer {self.identity} was refused: {result}")


class CommittedConsumer:
    """Reads below the last stable offset, wherever a confirmed leader is; leaves out what was aborted."""

    def __init__(self, cluster: PartitionCluster) -> None:
        self.seen: list[int] = []
        """Base offsets of the batches it kept."""
        self.offset = 0
        self._stable = 0
        self._aborting: set[int] = set()
        self._cluster = cluster
        self._world = cluster.world
        self._rng = self._world.rng("committed consumer")
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
        stable = partition.last_stable_offset
        if stable < self._stable:
            self._world.fail(None, f"the last stable offset went back from {self._stable} to {stable}")
        self._stable = stable
        try:
            batches, aborted = await partition.read_committed(offset, stable, 400)
        except StoreError:
            return
        if self.offset != offset or not batches:
            return
        for batch in batches:
            head = read_header(batch.data)
            if keeps(head, batch.base_offset, aborted):
                self.seen.append(batch.base_offset)
            self.offset = batch.end_offset


def keeps(head: Any, base_offset: int, aborted: list[AbortedTransaction]) -> bool:
    """Whether a read-committed client keeps a batch: neither a marker nor within an aborted transaction."""
    return not head.is_control and not any(
        one.producer_id == head.producer_id and one.first_offset <= base_offset <= one.last_offset
        for one in aborted
    )
