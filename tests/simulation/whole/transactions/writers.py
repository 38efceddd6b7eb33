"""Clients that write in transactions. Two of them have one transactional id and do not know of each other:
whichever began later has fenced the other, which goes on with what it was doing: a zombie."""

from __future__ import annotations

import asyncio
from typing import Final

from tests.histories.history import Ending, Transaction
from tests.simulation.whole.client import Directory
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.objects import Place
from tests.simulation.whole.transactions.coordinated import Coordinated
from tests.simulation.whole.transactions.endings import Abortable, Fenced, GivenUp, InDoubt
from tests.simulation.whole.transactions.incarnation import Incarnation
from tests.simulation.whole.transactions.journal import Journal

LONGEST_REST_SECONDS: Final = 15.0
"""Whoever rests longer is not done when the run's end waits for it."""


class Transacting(Coordinated):
    """What all of them share: incarnations, and how each transaction ends."""

    def __init__(
        self,
        cluster: WholeCluster,
        directory: Directory,
        name: str,
        machine: int,
        journal: Journal,
        transactional_id: str,
    ) -> None:
        super().__init__(cluster, directory, name, machine, journal)
        self.transactional_id = transactional_id
        self._incarnations = 0

    async def incarnate(self) -> Incarnation:
        """The next one; raises Fenced, GivenUp."""
        self._incarnations += 1
        name = f"{self.name}.{self._incarnations}"
        life = Incarnation(self, self.transactional_id, name, version=self.rng.choice((1, 2)))
        await life.initialize()
        return life

    async def commit(self, life: Incarnation, transaction: Transaction) -> None:
        """Raises what `Incarnation.end` does, with the ending noted."""
        transaction.commit_asked = self.journal.now
        try:
            await life.end(commit=True)
        except InDoubt:
            self.journal.ended(transaction, Ending.UNKNOWN)
            raise
        except (Fenced, Abortable):
            self.journal.ended(transaction, Ending.ABORTED)
            raise
        self.journal.ended(transaction, Ending.COMMITTED)

    async def abort(self, life: Incarnation, transaction: Transaction) -> None:
        """It was never asked to be committed, so it never is."""
        self.journal.ended(transaction, Ending.ABORTED)
        await life.end(commit=False)


class Writer(Transacting):
    """Some records to some partitions of the first two topics, in each transaction."""

    def __init__(
        self,
        cluster: WholeCluster,
        directory: Directory,
        name: str,
        machine: int,
        journal: Journal,
        transactional_id: str,
        *,
        idle: float,
    ) -> None:
        super().__init__(cluster, directory, name, machine, journal, transactional_id)
        self._idle = idle
        """Mean pause between two incarnations, in seconds."""
        self.spawn(self._work())

    async def _work(self) -> None:
        await self._rest()
        while not self.ending():
            try:
                life = await self.incarnate()
                for _ in range(self.rng.randint(1, 12)):
                    if self.ending():
                        break
                    await self._transact(life)
                    await asyncio.sleep(self.rng.expovariate(1 / self.cluster.plan.think_seconds))
            except (Fenced, GivenUp, InDoubt) as over:
                self.journal.counts[f"incarnations: {type(over).__name__}"] += 1
            if not self.ending():
                await self._rest()

    async def _rest(self) -> None:
        await asyncio.sleep(min(self.rng.expovariate(1 / self._idle), LONGEST_REST_SECONDS))

    async def _transact(self, life: Incarnation) -> None:
        transaction = self.journal.began(life.name)
        try:
            for _ in range(self.rng.choice((1, 1, 2, 3))):
                await life.send(transaction, self._batches())
                if self.dawdles():
                    await asyncio.sleep(self.rng.uniform(0.5, 1.5) * life.timeout)
            if self.rng.random() >= self.load.aborts:
                await self.commit(life, transaction)
                return
        except Abortable:
            pass
        except BaseException:
            if transaction.ended is None:
                self.journal.ended(transaction, Ending.ABORTED)
            raise
        await self.abort(life, transaction)

    def _batches(self) -> dict[Place, list[list[str]]]:
        topics = [topic for topic in self.directory.topics[:2] if topic.stable]
        places = [Place(topic.topic_id, number) for topic in topics for number in range(topic.partitions)]
        chosen = self.rng.sample(places, self.rng.randint(1, min(3, len(places))))
        return {
            place: [
                self.journal.values(self.rng.choice((1, 1, 2))) for _ in range(self.rng.choice((1, 1, 2, 4)))
            ]
            for place in chosen
        }
