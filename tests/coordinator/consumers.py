"""Consumers of KIP-848 for tests: what a client does, the topics there are, and a coordinator's log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from strandline.node.coordinator.groups.consumer_events import Answer, MemberEvent, Reply, TimerExpired
from strandline.node.coordinator.groups.consumer_member import JOINING, LEAVING, MemberHeartbeat, Partition
from strandline.node.coordinator.groups.consumer_plan import MAX_GROUP_BYTES, Plan, plan
from strandline.node.coordinator.groups.consumer_topics import Topics
from strandline.node.refusal import Refusal
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.groups.consumer_group import ConsumerGroup
from strandline.statemachine.groups.consumer_group_commands import (
    LEFT_FOR_A_WHILE,
    ChangeConsumerGroup,
    ConsumerGroupChanged,
    partitions_of,
)
from tests.statemachine.groups_harness import Groups

GROUP = "g"


class Cluster:
    """Topics as the controller has them."""

    def __init__(self, **partitions: int) -> None:
        self.version = 1
        self._ids = 0
        self._topics: dict[str, Any] = {}
        self.configs: dict[str, dict[str, str]] = {}
        """Of groups."""
        for name, count in partitions.items():
            self.create(name, count)

    def create(self, name: str, partitions: int) -> bytes:
        self.version += 1
        self._ids += 1
        topic_id = self._ids.to_bytes(16, "big")
        self._topics[name] = SimpleNamespace(name=name, topic_id=topic_id, partitions=(None,) * partitions)
        return topic_id

    def grow(self, name: str, partitions: int) -> None:
        self.version += 1
        self._topics[name].partitions = (None,) * partitions

    def delete(self, name: str) -> None:
        self.version += 1
        del self._topics[name]

    def group_configs(self, group_id: str) -> dict[str, str]:
        return self.configs.get(group_id, {})

    @property
    def topics(self) -> tuple[Any, ...]:
        return tuple(self._topics.values())

    def topic(self, name: str) -> Any:
        return self._topics.get(name)

    def topic_by_id(self, topic_id: bytes) -> Any:
        return next((topic for topic in self.topics if topic.topic_id == topic_id), None)

    def parts(self, name: str, *numbers: int) -> frozenset[Partition]:
        topic = self._topics[name]
        return frozenset((topic.topic_id, number) for number in numbers or range(len(topic.partitions)))

    def view(self) -> Topics:
        return Topics(lambda: cast(Controller, self))


class Log:
    """Plans of one group, applied to a coordinator as they are made."""

    def __init__(self, cluster: Cluster, max_members: int = 100) -> None:
        self.cluster = cluster
        self.groups = Groups()
        self.topics = cluster.view()
        self.max_members = max_members
        self.changes: list[ChangeConsumerGroup] = []
        self.bytes = 0
        """By all that plans said of their growth."""

    @property
    def group(self) -> ConsumerGroup | None:
        held = self.groups.machine.groups.get(GROUP)
        membership = None if held is None else held.membership
        return membership if isinstance(membership, ConsumerGroup) else None

    @property
    def present(self) -> ConsumerGroup:
        assert self.group is not None
        return self.group

    def plan(self, *words: MemberEvent) -> Plan:
        bound = self.max_members
        return plan(GROUP, self.group, words, self.topics, max_members=bound, room=MAX_GROUP_BYTES)

    def say(self, *words: MemberEvent) -> list[Answer | None]:
        planned = self.plan(*words)
        if planned.change is not None:
            self.changes.append(planned.change)
            self.bytes += planned.growth
            assert isinstance(self.groups.do(planned.change), ConsumerGroupChanged)
        return planned.answers

    def overdue(self, member_id: str) -> None:
        self.say(TimerExpired(member_id, ""))


@dataclass(eq=False)
class Consumer:
    """A client: what it was told last, and what it really has."""

    member_id: str
    topics: tuple[str, ...] = ()
    pattern: str = ""
    instance_id: str | None = None
    assignor: str | None = None
    epoch: int = JOINING
    owned: frozenset[Partition] = frozenset()
    told: frozenset[Partition] = frozenset()
    says_owned: bool = False
    """The next heartbeat tells what it has, as after an assignment that it obeyed; others do not."""
    says_all: bool = True
    """The next heartbeat is a full one, as after an error and when joining."""

    def word(self, epoch: int | None = None) -> MemberHeartbeat:
        """Its next heartbeat."""
        epoch = self.epoch if epoch is None else epoch
        if epoch < 0:
            return MemberHeartbeat(self.member_id, epoch, "c", "/h", instance_id=self.instance_id)
        says_owned, self.says_owned = self.says_owned, False
        if not self.says_all:
            return MemberHeartbeat(self.member_id, epoch, "c", "/h", owned=self.owned if says_owned else None)
        # It takes nothing any more of what it was told before: the answer to this one may tell otherwise.
        self.told = self.owned
        return MemberHeartbeat(
            self.member_id,
            epoch,
            "c",
            "/h",
            instance_id=self.instance_id,
            rebalance_timeout_ms=1000,
            topics=self.topics,
            pattern=self.pattern,
            assignor=self.assignor,
            owned=self.owned if epoch != JOINING else frozenset(),
        )

    def hear(self, answer: Answer | None) -> None:
        """Take an answer in, as a client does: whoever is fenced lets go of everything and joins again."""
        assert answer is not None
        if isinstance(answer, Refusal):
            self.epoch, self.owned, self.told, self.says_all = JOINING, frozenset(), frozenset(), True
            return
        assert answer.member_id == self.member_id
        self.epoch, self.says_all = answer.epoch, False
        if answer.assignment is not None:
            self.told = frozenset(partitions_of(answer.assignment))
        if answer.epoch in (LEAVING, LEFT_FOR_A_WHILE):
            self.owned = self.told = frozenset()

    def missed(self) -> None:
        """Its answer was lost."""
        self.says_all = True

    def obey(self) -> None:
        """Let go of what it is no longer to have, and take what it is to have."""
        self.owned, self.says_owned = self.told, True


def settle(log: Log, consumers: Sequence[Consumer], rounds: int = 20) -> None:
    """Heartbeats of all, one by one, until everything is said."""
    for _ in range(rounds):
        for consumer in consumers:
            answer = log.say(consumer.word())[0]
            consumer.hear(answer)
            consumer.obey()


def reply(answer: Answer | None) -> Reply:
    assert isinstance(answer, Reply), answer
    return answer
