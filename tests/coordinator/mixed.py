"""A coordinator whose groups have members of both protocols, and consumers of the classic one as they are."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from strandline.node.coordinator.groups.classic_state import (
    JoinRequest,
    JoinResponse,
    Leaving,
    SyncRequest,
    SyncResponse,
)
from strandline.node.coordinator.groups.consumer_member import Partition
from strandline.node.coordinator.groups.hosted import HostedMembers
from strandline.node.refusal import Cause
from strandline.statemachine.groups.classic_group import ClassicGroup
from strandline.statemachine.groups.consumer_group import ConsumerGroup
from strandline.statemachine.groups.consumer_protocol import (
    read_assignment,
    read_subscription,
    write_assignment,
)
from strandline.statemachine.kafka_errors import KafkaError
from tests.coordinator.consumer_house import ConsumerHouse
from tests.coordinator.consumers import GROUP, Consumer

REBALANCE = 60.0
OVER = (
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.FENCED_INSTANCE_ID,
)


class MixedHouse(ConsumerHouse):
    """Both runtimes at work."""

    def __init__(self, **groups: Any) -> None:
        super().__init__(**groups)
        self.coordinator.hosted = HostedMembers(self.coordinator, self.groups)

    @property
    def membership(self) -> ClassicGroup | ConsumerGroup:
        membership = self.replica.machine.groups[GROUP].membership
        assert isinstance(membership, ClassicGroup | ConsumerGroup)
        return membership

    @property
    def protocol(self) -> str:
        return self.membership.protocol

    def classic(self, name: str, **settings: Any) -> ClassicConsumer:
        return ClassicConsumer(self, name, **settings)

    def classics(self, names: str, **settings: Any) -> list[ClassicConsumer]:
        """Members of a classic group that have all partitions."""
        made = [self.classic(name, **settings) for name in names]
        self.run(made)
        assert self.protocol == "classic"
        return made

    def run(self, *members: Sequence[ClassicConsumer | Consumer], rounds: int = 12) -> None:
        """All of them do what clients do, until nothing is left to be done."""
        for _ in range(rounds):
            for member in (one for some in members for one in some):
                if isinstance(member, ClassicConsumer):
                    member.poll()
                else:
                    self.beat(member)
                    member.obey()
            self.advance(0.25)

    def refusal(self, member: ClassicConsumer | Consumer, *, transactional: bool = False) -> Any:
        """What the log says to a commit of this member now."""
        epoch = member.generation if isinstance(member, ClassicConsumer) else member.epoch
        instance = member.instance if isinstance(member, ClassicConsumer) else member.instance_id
        return self.membership.refuse_commit(member.member_id, instance, epoch, transactional=transactional)


class ClassicConsumer:
    """Joins, syncs and beats. What it may read of, `owned`, is what a correct client would read of."""

    def __init__(
        self,
        house: MixedHouse,
        name: str,
        *,
        cooperative: bool = False,
        instance: str | None = None,
        topics: Sequence[str] = ("events",),
        session: float = 30.0,
        kind: str = "consumer",
        protocols: Sequence[str] = ("range",),
    ) -> None:
        self.house = house
        self.name = name
        self.cooperative = cooperative
        self.instance = instance
        self.topics = topics
        self.session = session
        self.kind = kind
        self.protocols = protocols
        self.member_id = ""
        self.generation = -1
        self.owned: frozenset[Partition] = frozenset()
        self.rejoins = True
        self.told: list[Cause] = []
        """What it was answered that was no success."""
        self.last_ask: JoinRequest | None = None
        self._joining: asyncio.Task[JoinResponse] | None = None
        self._syncing: asyncio.Task[SyncResponse] | None = None
        self._protocol: str | None = None

    def poll(self) -> None:
        """The next thing that a client does."""
        if self._joining is not None:
            if self._joining.done():
                self.joined()
        elif self._syncing is not None:
            if self._syncing.done():
                self.synced()
        elif self.rejoins:
            self.begin_join()
        else:
            self.beat()

    def metadata(self) -> bytes:
        topics = list(self.house.cluster.topics)
        owned = {
            topic.name: sorted(number for topic_id, number in self.owned if topic_id == topic.topic_id)
            for topic in topics
        }
        return subscription(self.topics, {name: numbers for name, numbers in owned.items() if numbers})

    def begin_join(self) -> None:
        if not self.cooperative:
            self.owned = frozenset()
        ask = JoinRequest(
            self.member_id, self.instance, self.name, "/10.0.0.1", self.session, REBALANCE, self.kind,
            [(protocol, self.metadata()) for protocol in self.protocols],
        )  # fmt: skip
        self.last_ask = ask
        self._joining = self.house.ask(self.house.coordinator.join(GROUP, ask))

    def joined(self) -> None:
        assert self._joining is not None
        answer, self._joining = self._joining.result(), None
        if answer.error is KafkaError.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            return self.begin_join()
        if answer.error is not None:
            return self._failed(answer.error)
        self.member_id, self.generation, self._protocol = (
            answer.member_id,
            answer.generation,
            answer.protocol,
        )
        leads = answer.leader == answer.member_id
        assignments = self._assign(answer) if leads and not answer.skip_assignment else {}
        ask = SyncRequest(
            self.member_id, self.instance, self.generation, self.kind, self._protocol, assignments
        )
        self._syncing = self.house.ask(self.house.coordinator.sync(GROUP, ask))
        return None

    def synced(self) -> None:
        assert self._syncing is not None
        answer, self._syncing = self._syncing.result(), None
        if answer.error is not None:
            return self._failed(answer.error)
        given = read_assignment(answer.assignment)
        assert given is not None
        self.rejoins = False
        now = frozenset(
            partition
            for topic, numbers in given.partitions
            for partition in self.house.cluster.parts(topic, *numbers)
        )
        if self.cooperative and self.owned - now:
            self.rejoins = True  # it has let go of some, and joins again for the others to have them
        self.owned = now
        return None

    def beat(self) -> Cause | None:
        code = self.house.coordinator.heartbeat(GROUP, self.member_id, self.instance, self.generation)
        if code is not None:
            self._failed(code)
        return code

    def leave(self) -> Cause | None:
        self.owned = frozenset()
        task = self.house.ask(self.house.coordinator.leave(GROUP, [Leaving(self.member_id, self.instance)]))
        (code,) = task.result()
        self.house.turn()
        return code

    def _failed(self, code: Cause) -> None:
        self.told.append(code)
        self.rejoins = True
        if code in OVER:
            self.owned = frozenset()
            self.generation = -1
        if code in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.FENCED_INSTANCE_ID):
            self.member_id = ""

    def _assign(self, answer: JoinResponse) -> dict[str, bytes]:
        """Every partition of "events" to some member; in turn, and where all cooperate what moves waits."""
        partitions = sorted(self.house.cluster.parts("events"))
        members = sorted(answer.members)
        owns = {}
        for member_id, _, metadata in members:
            said = read_subscription(metadata)
            assert said is not None
            for _, numbers in said.owned:
                owns.update(dict.fromkeys(self.house.cluster.parts("events", *numbers), member_id))
        dealt: dict[str, list[int]] = {member_id: [] for member_id, *_ in members}
        for place, partition in enumerate(partitions):
            member_id = members[place % len(members)][0]
            if owns.get(partition, member_id) == member_id:
                dealt[member_id].append(partition[1])
        return {
            member_id: write_assignment({"events": numbers} if numbers else {}, metadata)
            for (member_id, _, metadata), numbers in zip(members, dealt.values(), strict=True)
        }


def subscription(topics: Collection[str], owned: Mapping[str, Sequence[int]]) -> bytes:
    """ConsumerProtocolSubscription, version 1."""
    parts = [struct.pack(">hi", 1, len(topics))]
    parts += [struct.pack(f">h{len(topic)}s", len(topic), topic.encode()) for topic in topics]
    parts.append(struct.pack(">ii", -1, len(owned)))
    for topic, numbers in owned.items():
        parts.append(struct.pack(f">h{len(topic)}s", len(topic), topic.encode()))
        parts.append(struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    return b"".join(parts)
