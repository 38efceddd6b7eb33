"""A player of a scene: a process of a consume-transform-produce program that does what the scene says.

Nothing is drawn by lot: each step is one call. What it is refused with it remembers, and goes on as the scene
has it; a client's own retries of what is retriable are those of the simulation's clients.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final

from tests.histories.history import Read, Transaction
from tests.simulation.whole.client import Directory, TopicKnown
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.objects import Place
from tests.simulation.whole.transactions.endings import Abortable, Fenced, InDoubt
from tests.simulation.whole.transactions.incarnation import Incarnation
from tests.simulation.whole.transactions.journal import Journal
from tests.simulation.whole.transactions.members import ClassicMember, ConsumerMember, Member
from tests.simulation.whole.transactions.writers import Transacting

GROUP: Final = "copiers"
PARTITIONS: Final = 2
"""Of the input, whose group that is, and of the output."""


class Task(Transacting):
    """A player with a transactional id; what it does, the scene says. What it was refused it remembers."""

    life: Incarnation
    transaction: Transaction
    member: Member | None = None

    def __init__(
        self,
        cluster: WholeCluster,
        directory: Directory,
        name: str,
        machine: int,
        journal: Journal,
        transactional_id: str,
        version: int,
    ) -> None:
        super().__init__(cluster, directory, name, machine, journal, transactional_id)
        self.refused: list[str] = []
        self.beats = True
        self._identity = (-1, "")
        """Generation and member id that go with its commits: as they were when it took its inputs."""
        self._version = version
        self._input = directory.topics[0]

    async def start(self) -> None:
        """A new process: whoever had the transactional id before is fenced."""
        self.life = Incarnation(self, self.transactional_id, self.name, version=self._version)
        await self.life.initialize()

    async def join(self, partitions: int = PARTITIONS) -> None:
        """Become a member of the group, and wait until it has so many partitions."""
        made = ClassicMember if self.load.protocol == "classic" else ConsumerMember
        self.member = made(self, GROUP, self._input, None)
        while len(self.member.partitions) != partitions:
            await self.member.beat()
            await self.pause()

    async def beat(self) -> None:
        """Do what a client's heartbeats do, whatever its application is at, until `beats` is false."""
        assert self.member is not None
        while self.beats:
            await self.member.beat()
            await self.pause()

    def begin(self, consumed: Sequence[Read] = ()) -> None:
        if self.member is not None:
            self._identity = (self.member.generation, self.member.member_id)
        self.transaction = self.journal.began(self.life.name)
        self.transaction.consumed += consumed

    async def send(self, topic: TopicKnown, partition: int, *values: str) -> None:
        """A batch of one record for each value."""
        place = Place(topic.topic_id, partition)
        await self.life.send(self.transaction, {place: [[value] for value in values]})

    async def commit_offsets(self, offsets: Mapping[int, int]) -> None:
        """As the member it was when it began the transaction; as nobody where it was none."""
        await self.life.commit_offsets(GROUP, *self._identity, self._input.name, offsets)

    async def tried(self, step: Coroutine[Any, Any, None]) -> bool:
        """Whether a step was let through; a refusal is noted."""
        try:
            await step
        except (Abortable, Fenced, InDoubt) as refusal:
            self.refused.append(str(refusal))
            return False
        return True

    async def end(self, *, commit: bool = True) -> None:
        """Commit or abort, as far as it is let."""
        if commit:
            await self.tried(self.commit(self.life, self.transaction))
        else:
            await self.tried(self.abort(self.life, self.transaction))
