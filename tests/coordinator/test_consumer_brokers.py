"""Consumers of KIP-848 on whole simulated nodes that come and go between any two of their words."""

from __future__ import annotations

import random

import pytest

from strandline.node.coordinator.groups.consumer_groups import HeartbeatAnswer
from strandline.node.coordinator.groups.coordinator import GroupCoordinator
from strandline.node.refusal import Refusal
from strandline.statemachine.groups.consumer_group import ConsumerGroup
from strandline.statemachine.kafka_errors import KafkaError
from tests.controller.brokers import Brokers
from tests.coordinator.consumers import GROUP, Consumer

MEMBERS = 4
PARTITIONS = 7
RETRIED = {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS}


class Scene:
    """A cluster of three nodes, and consumers that talk to whoever leads their group's coordinator."""

    def __init__(self, made: Brokers) -> None:
        self.made = made
        self.consumers = [Consumer(f"m{number}", ("events",)) for number in range(MEMBERS)]

    def leader(self) -> int | None:
        for node, broker in self.made.brokers.items():
            if isinstance(broker.coordinators.groups_for(GROUP), GroupCoordinator):
                return node
        return None

    def coordinator(self) -> tuple[int, GroupCoordinator]:
        self.made.wait(lambda: self.leader() is not None)
        node = self.leader()
        assert node is not None
        coordinator = self.made.brokers[node].coordinators.groups_for(GROUP)
        assert isinstance(coordinator, GroupCoordinator)
        return node, coordinator

    def group(self) -> ConsumerGroup:
        found = self.coordinator()[1].consumer.get(GROUP)
        assert found is not None
        return found

    def speak(self, consumer: Consumer, lose: float | None = None) -> None:
        """A heartbeat; `lose`: the node dies so many seconds after it was asked, and the answer with it."""
        node, coordinator = self.coordinator()
        task = self.made.world.nodes[node].spawn(coordinator.consumer.heartbeat(GROUP, consumer.word()))
        if lose is not None:
            self.made.world.run(until=self.made.world.now + lose)
            self.made.crash(node)
            self.made.start(node)
            consumer.missed()
            self.made.wait(lambda: self.made.registered(node))
            return
        self.made.wait(task.done)
        told = task.result()
        if isinstance(told, Refusal) and told.reason in RETRIED:
            consumer.missed()
            return
        consumer.hear(told.reply if isinstance(told, HeartbeatAnswer) else told)

    def check(self) -> None:
        """Nobody has what is another's, by the state of whoever leads."""
        owners = self.group().owners
        for consumer in self.consumers:
            if consumer.member_id in self.group().members:
                assert {owners.get(partition) for partition in consumer.owned} <= {consumer.member_id}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_group_lives_through_the_loss_of_its_coordinators(seed: int) -> None:
    dice = random.Random(seed)
    with Brokers(seed=seed) as made:
        made.create_topic(1, "events", PARTITIONS)
        made.run(1, made.brokers[1].coordinators.group_place(GROUP))
        scene = Scene(made)
        for step in range(40):
            consumer = dice.choice(scene.consumers)
            scene.speak(consumer, dice.choice([0.0, 0.001, 0.002, 0.005]) if step % 8 == 7 else None)
            scene.check()
            if dice.random() < 0.7:
                consumer.obey()
            scene.check()
        for _ in range(4):
            for consumer in scene.consumers:
                scene.speak(consumer)
                consumer.obey()
                scene.check()
        group = scene.group()
        assert (group.state, len(group.members), len(group.owners)) == ("Stable", MEMBERS, PARTITIONS)
        assert sorted(len(consumer.owned) for consumer in scene.consumers) == [1, 2, 2, 2]
        for consumer in scene.consumers:
            assert consumer.epoch == group.epoch

        # Who falls silent is fenced, whoever leads.
        silent, *others = scene.consumers
        for _ in range(150):  # each new leader gives it all its time again
            made.world.run(until=made.world.now + 1.0)
            for consumer in others:
                scene.speak(consumer)
                consumer.obey()
            if silent.member_id not in scene.group().members:
                break
        assert set(scene.group().members) == {consumer.member_id for consumer in others}
        for consumer in others * 3:
            scene.speak(consumer)
            consumer.obey()
            scene.check()
        assert sum(len(consumer.owned) for consumer in others) == PARTITIONS
