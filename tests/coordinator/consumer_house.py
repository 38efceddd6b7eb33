"""A groups' coordinator on a loop and over a log that a test turns, whose groups are of KIP-848."""

from __future__ import annotations

import asyncio
from typing import Any

from strandline.node.coordinator.groups.consumer_groups import ConsumerGroups, HeartbeatAnswer
from strandline.node.coordinator.groups.consumer_member import MemberHeartbeat
from strandline.node.refusal import Cause, Refusal
from strandline.statemachine.groups.consumer_group import ConsumerGroup
from tests.coordinator.classic_house import House
from tests.coordinator.consumers import GROUP, Cluster, Consumer

SESSION = 45.0


class ConsumerHouse(House):
    """A coordinator whose groups are of KIP-848, with topics."""

    def __init__(self, **groups: Any) -> None:
        super().__init__(**groups)
        self.cluster = Cluster(events=4, clicks=2)
        self.context.controller.machine = self.cluster
        self.groups = self.coordinator.consumer = ConsumerGroups(self.coordinator)
        self.groups.started()

    def say(self, heartbeat: MemberHeartbeat, group: str = GROUP) -> asyncio.Task[HeartbeatAnswer | Refusal]:
        return self.ask(self.groups.heartbeat(group, heartbeat))

    def told(self, heartbeat: MemberHeartbeat) -> HeartbeatAnswer | Refusal:
        task = self.say(heartbeat)
        assert task.done()
        return task.result()

    def code(self, heartbeat: MemberHeartbeat) -> Cause | None:
        refusal = self.told(heartbeat)
        assert isinstance(refusal, Refusal), refusal
        return refusal.reason

    def beat(self, consumer: Consumer) -> HeartbeatAnswer:
        """A heartbeat that is taken, and obeyed."""
        told = self.told(consumer.word())
        assert isinstance(told, HeartbeatAnswer), told
        consumer.hear(told.reply)
        return told

    def consumer(self, name: str, **settings: Any) -> Consumer:
        consumer = Consumer(name, ("events",), **settings)
        self.beat(consumer)
        consumer.obey()
        return consumer

    def settle(self, *consumers: Consumer) -> None:
        for _ in range(4):
            for consumer in consumers:
                self.beat(consumer)
                consumer.obey()

    @property
    def group(self) -> ConsumerGroup:
        found = self.groups.get(GROUP)
        assert found is not None
        return found

    @property
    def logged_entries(self) -> int:
        return len(self.log.proposed)
