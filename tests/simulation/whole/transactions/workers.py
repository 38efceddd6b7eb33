"""Consume, transform, produce: members of a group whose offsets are part of their transactions (KIP-447)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.apis import ApiKey
from tests.histories.history import Ending, Read
from tests.simulation.whole.client import PASSING, Directory
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.objects import Place
from tests.simulation.whole.transactions.endings import Abortable, Fenced, GivenUp, InDoubt
from tests.simulation.whole.transactions.followers import READ_COMMITTED, Filter, batches_of
from tests.simulation.whole.transactions.incarnation import Incarnation
from tests.simulation.whole.transactions.journal import Journal
from tests.simulation.whole.transactions.members import ClassicMember, ConsumerMember, Member
from tests.simulation.whole.transactions.writers import Transacting
from tests.simulation.whole.wire import Lost

WORKERS: Final = "workers"
INPUT: Final = 1
OUTPUT: Final = 2
"""Which of the topics."""
_FETCH_SECONDS: Final = 2.5
_LONG: Final = (5, 60)
_SHORT: Final = (2, 10)
"""Transactions of one life: few where the next one may speak the other protocol."""
_LEAVES: Final = 0.7
_STATIC_LEAVES: Final = 0.2


class Worker(Transacting):
    """What it reads from a partition of the input goes to the same partition of the output."""

    def __init__(
        self,
        cluster: WholeCluster,
        directory: Directory,
        name: str,
        machine: int,
        journal: Journal,
    ) -> None:
        super().__init__(cluster, directory, name, machine, journal, name)
        self._positions: dict[int, int] = {}
        self.spawn(self._work())

    async def _work(self) -> None:
        await self.pause()
        while not self.ending():
            made = self._protocol()
            instance = self.name if self.load.static else None
            member: Member = made(self, WORKERS, self.directory.topics[INPUT], instance)
            try:
                life = await self.incarnate()
                await self._serve(life, member)
            except (Fenced, GivenUp, InDoubt) as over:
                self.journal.counts[f"incarnations: {type(over).__name__}"] += 1
            if self.ending() or self.rng.random() < (_STATIC_LEAVES if self.load.static else _LEAVES):
                await member.leave()  # else its session ends, or a static one comes back before that
            self._positions = {}
            await self.pause()

    def _protocol(self) -> type[Member]:
        """What it speaks in its next life."""
        if self.load.protocol == "both":
            return self.rng.choice((ClassicMember, ConsumerMember))
        return ClassicMember if self.load.protocol == "classic" else ConsumerMember

    async def _serve(self, life: Incarnation, member: Member) -> None:
        rounds = self.rng.randint(*(_SHORT if self.load.protocol == "both" else _LONG))
        while not self.ending() and rounds:
            if not await member.beat():
                self._positions = {}
                await self.pause()
                continue
            if self._positions.keys() != set(member.partitions):
                self._positions = await member.offsets() or {}
                if not self._positions:
                    await self.pause()
                    continue
            reads = await self._poll()
            if not reads:
                await self.pause()
                continue
            rounds -= 1
            if not await self._transact(life, member, reads):
                self._positions = {}

    async def _transact(self, life: Incarnation, member: Member, reads: list[tuple[Read, int]]) -> bool:
        """Whether it goes on behind what was read; with false it begins at what is committed."""
        transaction = self.journal.began(life.name)
        transaction.consumed += [read for read, _ in reads]
        output = self.directory.topics[OUTPUT]
        places: dict[Place, list[list[str]]] = {}
        for read, _ in reads:
            place = Place(output.topic_id, read.place.partition)
            places.setdefault(place, []).append(self.journal.values(1))
        places = {place: [[one for (one,) in batches]] for place, batches in places.items()}
        offsets = {read.place.partition: following for read, following in reads}
        try:
            await life.send(transaction, places)
            if self.dawdles():
                await asyncio.sleep(self.rng.uniform(0.5, 1.5) * self.rng.choice((life.timeout, 1.0)))
            await life.commit_offsets(
                WORKERS, member.generation, member.member_id, member.topic.name, offsets, member.instance_id
            )
            if self.dawdles():
                await asyncio.sleep(self.rng.uniform(0.5, 1.5) * life.timeout)
            if self.rng.random() >= self.load.aborts:
                await self.commit(life, transaction)
                self._positions |= offsets
                return True
        except Abortable:
            pass
        except BaseException:
            if transaction.ended is None:
                self.journal.ended(transaction, Ending.ABORTED)
            raise
        await self.abort(life, transaction)
        return False

    async def _poll(self) -> list[tuple[Read, int]]:
        """A few committed records, each with the offset behind its batch."""
        topic = self.directory.topics[INPUT]
        by_node: dict[int, list[int]] = {}
        for number in self._positions:
            known = self.leaders.get(Place(topic.topic_id, number))
            if known is not None:
                by_node.setdefault(known[0], []).append(number)
        if not by_node or self.rng.random() < 0.05:
            await self.refresh()
        if not by_node:
            return []
        node = self.rng.choice(sorted(by_node))
        fields = [
            {"partition": number, "fetch_offset": self._positions[number], "current_leader_epoch": -1,
             "last_fetched_epoch": -1, "partition_max_bytes": self.rng.choice((1, 500, 2000))}
            for number in by_node[node]
        ]  # fmt: skip
        try:
            answer = await self.wire.ask(
                node, ApiKey.FETCH, 12, _FETCH_SECONDS, replica_id=-1, max_wait=timedelta(seconds=0.1),
                min_bytes=1, max_bytes=1 << 16, isolation_level=READ_COMMITTED, session_id=0,
                session_epoch=-1, topics=[{"topic": topic.name, "partitions": fields}],
            )  # fmt: skip
        except Lost:
            await self.refresh()
            return []
        found = []
        for told in answer.responses[0].partitions:
            place = Place(topic.topic_id, told.partition_index)
            if told.error_code is ErrorCode.none:
                found += self._committed(place, told)
            elif told.error_code in PASSING:
                await self.refresh()
            else:
                self.ledger.broken(
                    "consumers", f"{self.name} at {self._positions} was answered {told.error_code.name}"
                )
        return found

    def _committed(self, place: Place, told: object) -> list[tuple[Read, int]]:
        """What an answer has behind the position, which moves over what is not to be seen."""
        topic = self.directory.topics[INPUT]
        chosen = Filter(told.aborted_transactions)  # type: ignore[attr-defined]
        found: list[tuple[Read, int]] = []
        for batch, header in batches_of(bytes(told.records or b"")):  # type: ignore[attr-defined]
            passes = chosen.passes(batch, header)
            if header.base_offset < self._positions[place.partition]:
                continue
            sent = self.ledger.read(place, header.base_offset, batch, self.name) if passes else None
            reads = [] if sent is None else self.journal.reads(topic.name, header.base_offset, sent)
            if not reads and not found:
                self._positions[place.partition] = header.next_offset
            found += [(read, header.next_offset) for read in reads]
        return found
