"""Transactions while everything fails: seeded runs with leaders lost between any two steps.

Producers of both versions, some with the same transactional id, write to places that keep Strandline's rule
for numbers and nothing else: what is of an ended number is refused, a marker ends what is open up to its own.
Coordinators lose their leadership with entries committed or lost, calls vanish before or after they were
carried out, markers and batches come late and twice. In the end nothing is open, every transaction is wholly
there or wholly absent, and what a producer was told is so.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from strandline.node.coordinator.transactions.transaction_coordinator import (
    ProducerIdentity,
    TransactionCoordinator,
)
from strandline.node.partition.batch import Verified
from strandline.node.refusal import Refusal
from strandline.statemachine.kafka_errors import KafkaError
from strandline.statemachine.transactions.transaction_state import AT_REST
from tests.coordinator.transaction_harness import GROUPS_COORDINATOR, Coordinated, Sent, lost, turns
from tests.runtime.jumping_loop import run

RETRIABLE = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.CONCURRENT_TRANSACTIONS,
)
SEEDS = range(40)
CLIENTS = ("a", "a", "b", "c", "c")
TRANSACTIONS = 6
Partition = tuple[bytes, int]


@dataclass
class Batch:
    tag: str
    producer_id: int
    number: int
    committed: bool | None = None


@dataclass
class Place:
    """A partition as far as transactions go."""

    batches: list[Batch] = field(default_factory=list)
    ended: dict[int, int] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    outcomes: dict[tuple[int, int], bool] = field(default_factory=dict)

    def open_number(self, producer_id: int, epoch: int) -> int | None:
        if self.epochs.get(producer_id) != epoch:
            return None
        return next(
            (one.number for one in self.batches if one.producer_id == producer_id and one.committed is None),
            None,
        )

    def append(self, tag: str, producer_id: int, epoch: int, number: int) -> bool:
        if number <= self.ended.get(producer_id, 0) or epoch < self.epochs.get(producer_id, 0):
            return False
        if any(one.tag == tag for one in self.batches):
            return True
        self.epochs[producer_id] = epoch
        self.batches.append(Batch(tag, producer_id, number))
        return True

    def mark(self, sent: Sent) -> None:
        if sent.number <= self.ended.get(sent.producer_id, 0):
            return
        self.ended[sent.producer_id] = sent.number
        self.epochs[sent.producer_id] = max(sent.epoch, self.epochs.get(sent.producer_id, 0))
        self.outcomes[sent.producer_id, sent.number] = sent.commit
        for one in self.batches:
            if one.producer_id == sent.producer_id and one.committed is None and one.number <= sent.number:
                one.committed = sent.commit


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.coordinated = Coordinated()
        self.places: dict[int, Place] = {}
        self.told: list[tuple[bool, list[str]]] = []
        """Whether it was committed, and the tags of what was acknowledged in it."""
        self.calm = False
        self.begun = 0
        self.late: list[asyncio.Task[None]] = []
        self.coordinated.answer = self._marked
        self.coordinated.receive = self._received

    def place(self, raft_group: int) -> Place:
        return self.places.setdefault(raft_group, Place())

    def chance(self, probability: float) -> bool:
        return not self.calm and self.rng.random() < probability

    # Faults.

    def _received(self, node: int) -> None:
        if self.chance(0.1):
            lost(node)

    def _marked(self, sent: Sent) -> int:
        if self.chance(0.2):
            return 1
        self.place(sent.raft_group).mark(sent)
        if self.chance(0.2):
            self._later(self._mark_late(sent))
        return int(self.chance(0.2))

    async def _mark_late(self, sent: Sent) -> None:
        await asyncio.sleep(self.rng.random() * 20)
        self.place(sent.raft_group).mark(sent)

    def _later(self, work: Any) -> None:
        self.late.append(asyncio.ensure_future(work))

    async def trouble(self) -> None:
        coordinated, rng = self.coordinated, self.rng
        while True:
            await asyncio.sleep(rng.choice((0.0, 0.01, 0.1, 1.0, 3.0)) * rng.random())
            await turns(rng.randrange(12))
            match rng.randrange(6):
                case 0 | 1:
                    coordinated.log.held = True
                case 2:
                    coordinated.log.held = False
                    coordinated.log.commit(rng.randrange(4) if coordinated.log.waiting else 0)
                    coordinated.log.commit()
                case 3:
                    coordinated.depose()
                    await asyncio.sleep(rng.random() * 2)
                    await self.lead()
                case _:
                    await self.lead()

    async def lead(self) -> None:
        self.coordinated.log.held = False
        await self.coordinated.lead(self.rng.randrange(3), drop=self.rng.random() < 0.5)

    # Producers.

    async def retried(self, ask: Callable[[TransactionCoordinator], Awaitable[Any]]) -> Any:
        while True:
            leading = [one for one in self.coordinated.members if one.replica.leads]
            if leading:
                result = await ask(leading[0].coordinator)
                # An answer may be lost on its way.
                if not (isinstance(result, Refusal) and result.reason in RETRIABLE) and not self.chance(0.05):
                    return result
            await asyncio.sleep(0.01 + 0.2 * self.rng.random())

    async def produce(self, tid: str, newer: bool) -> None:
        of: ProducerIdentity | None = None
        for _ in range(TRANSACTIONS):
            if of is None:
                given = await self.retried(lambda one: one.init_producer(tid, 20_000))
                if isinstance(given, Refusal):
                    assert given.reason is KafkaError.PRODUCER_FENCED
                    continue
                of = given
            of = await self.transaction(tid, of, newer)
            await asyncio.sleep(self.rng.random())

    async def transaction(self, tid: str, of: ProducerIdentity, newer: bool) -> ProducerIdentity | None:
        """One transaction; None when the producer has to start over."""
        rng = self.rng
        self.begun += 1
        name = f"{tid}-{self.begun}"
        acknowledged: list[str] = []
        whole = True
        for number in rng.sample(range(3), rng.randrange(1, 4)):
            tag = f"{name}-{number}"
            if not newer:
                partitions = [self.coordinated.partition(number)]
                added = await self.retried(
                    partial(TransactionCoordinator.enlist, **_of(tid, of), partitions=partitions)
                )
                if isinstance(added, Refusal):
                    return None
            done = await self.write(tid, of, newer, number, tag)
            if done:
                acknowledged.append(tag)
            whole = whole and done
            if newer and self.chance(0.3):
                self._later(self.write_late(tid, of, number, tag))
        await asyncio.sleep(rng.choice((0.0, 0.1, 1.0, 30.0)) * rng.random())
        commit = whole and rng.random() < 0.7
        ended = await self.retried(lambda one: one.end(tid, *of, commit=commit, raises=newer))
        if isinstance(ended, Refusal):
            return None
        self.told.append((commit, acknowledged))
        assert isinstance(ended, ProducerIdentity)
        return ended

    async def write(self, tid: str, of: ProducerIdentity, newer: bool, number: int, tag: str) -> bool:
        """Verify a batch and append it, a while later; whether it was acknowledged."""
        place = self.place(self.coordinated.raft_group(number))
        transaction = place.open_number(of.producer_id, of.epoch)
        if transaction is None:
            asks = self.rng.choice(self.coordinated.members).verifier
            partitions = [self.coordinated.partition(number)]
            verified = await asks.partitions(tid, of.producer_id, of.epoch, partitions, add=newer)
            if not isinstance(verified, Verified):
                return False
            transaction = verified.number
        if self.chance(0.5):
            await asyncio.sleep(self.rng.choice((0.1, 5.0, 40.0)) * self.rng.random())
        return place.append(tag, of.producer_id, of.epoch, transaction) and not self.chance(0.05)

    async def write_late(self, tid: str, of: ProducerIdentity, number: int, tag: str) -> None:
        await asyncio.sleep(self.rng.random() * 40)
        await self.write(tid, of, True, number, tag)

    # The end.

    async def settle(self) -> None:
        self.calm = True
        await self.lead()
        await asyncio.gather(*self.late)
        for _ in range(600):
            rows = self.coordinated.members[0].machine.transactions.values()
            if all(row.state in AT_REST for row in rows):
                return
            await asyncio.sleep(0.5)
        raise AssertionError("a transaction is never completed")

    def check(self) -> None:
        places = {group: place for group, place in self.places.items() if group != GROUPS_COORDINATOR}
        fates: dict[tuple[int, int], set[bool | None]] = {}
        batches: dict[str, Batch] = {}
        for place in places.values():
            for one in place.batches:
                fates.setdefault((one.producer_id, one.number), set()).add(one.committed)
                batches[one.tag] = one
        assert all(None not in fate for fate in fates.values()), "nothing hangs"
        assert all(len(fate) == 1 for fate in fates.values()), "a transaction is whole or absent"
        for commit, tags in self.told:
            assert [batches[tag].committed for tag in tags] == [commit] * len(tags)
        outcomes: dict[tuple[int, int], set[bool]] = {}
        for place in places.values():
            for which, commit in place.outcomes.items():
                outcomes.setdefault(which, set()).add(commit)
        assert all(len(outcome) == 1 for outcome in outcomes.values()), "every place is told the same"
        numbers: dict[str, set[tuple[int, int]]] = {}
        for tag, one in batches.items():
            numbers.setdefault(tag.rsplit("-", 1)[0], set()).add((one.producer_id, one.number))
        assert all(len(which) == 1 for which in numbers.values()), "no batch lands in a later transaction"


def _of(tid: str, of: ProducerIdentity) -> dict[str, Any]:
    return {"transactional_id": tid, "producer_id": of.producer_id, "epoch": of.epoch}


def live(seed: int) -> World:
    worlds: list[World] = []

    async def body() -> None:
        world = World(seed)
        worlds.append(world)
        await world.coordinated.lead()
        trouble = asyncio.ensure_future(world.trouble())
        newer = [world.rng.random() < 0.5 for _ in CLIENTS]
        await asyncio.gather(*(world.produce(tid, new) for tid, new in zip(CLIENTS, newer, strict=True)))
        trouble.cancel()
        await turns()
        await world.settle()
        world.coordinated.close()
        await turns()

    run(body)
    return worlds[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_transactions_are_whole_whatever_fails(seed: int) -> None:
    live(seed).check()


def test_the_runs_reach_what_they_are_for() -> None:
    worlds = [live(seed) for seed in range(8)]
    told = [commit for world in worlds for commit, _ in world.told]
    assert told.count(True) > 20
    assert told.count(False) > 5
    assert sum(world.coordinated.term for world in worlds) > 100
    fenced = sum(world.begun for world in worlds) - len(told)
    assert fenced > 10
