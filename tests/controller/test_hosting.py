"""A node hosts what the controller says, and nothing else, whatever it missed while it was away."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from strandline.node.admin.health import Problem, problems
from strandline.node.broker.broker import Broker
from strandline.node.controller.client import ControllerClient
from strandline.node.controller.leaders import Leader
from strandline.node.controller.replica_manager import SLICE, ReplicaManager, Replicas
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.host import RaftHost
from strandline.statemachine.controller.controller_commands import DeleteTopic
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.controller.hosted_groups import GroupChanges, PartitionGroup
from tests.controller.brokers import Brokers


def groups_of(topic: Topic) -> set[int]:
    return {partition.group for partition in topic.partitions}


def hosted(broker: Broker) -> set[int]:
    """Groups of partitions, as the host and the table agree."""
    groups = set(broker.host.groups) - {0}
    assert groups == {partition.group.id for partition in broker.partitions}
    return groups


def test_a_topics_replicas_appear_and_lead_and_vanish_with_it() -> None:
    with Brokers() as brokers:
        topic = brokers.create_topic(1, "t", 5)
        groups = groups_of(topic)
        brokers.wait(lambda: all(hosted(broker) == groups for broker in brokers.brokers.values()))
        for broker in brokers.brokers.values():
            for number, partition in enumerate(topic.partitions):
                replica = broker.partitions.get(topic.topic_id, number)
                assert replica is not None
                assert replica is broker.partitions.by_group(partition.group)
                assert (replica.topic, replica.number, replica.group.id) == ("t", number, partition.group)
        brokers.wait(lambda: sum(p.leads for b in brokers.brokers.values() for p in b.partitions) == 5)
        brokers.submit(2, DeleteTopic(topic.topic_id))
        brokers.wait(lambda: not any(hosted(broker) for broker in brokers.brokers.values()))
        assert brokers.brokers[1].partitions.get(topic.topic_id, 0) is None
        assert list(brokers.brokers[1].recorders) == [0]


def test_replicas_lie_where_the_controller_put_them() -> None:
    with Brokers() as brokers:
        topic = brokers.create_topic(1, "t", 3, 1)

        def right() -> bool:
            return all(
                hosted(broker) == {p.group for p in topic.partitions if node in p.replicas}
                for node, broker in brokers.brokers.items()
            )

        brokers.wait(right)


def test_a_node_that_was_away_forgets_what_was_deleted_and_hosts_what_was_created() -> None:
    with Brokers() as brokers:
        node = brokers.follower()
        kept, gone = brokers.create_topic(node, "kept", 2), brokers.create_topic(node, "gone", 2)
        brokers.wait(lambda: len(brokers.brokers[node].partitions) == 4)
        brokers.world.run(brokers.world.now + 2)
        brokers.crash(node)
        leader = brokers.leader()
        brokers.submit(leader, DeleteTopic(gone.topic_id))
        new = brokers.create_topic(leader, "new", 2)
        brokers.start(node)
        brokers.wait(lambda: brokers.registered(node))
        brokers.wait(lambda: hosted(brokers.brokers[node]) == groups_of(kept) | groups_of(new))
        assert brokers.brokers[node].host.stored_groups() == []
        brokers.world.run(brokers.world.now + 2)
        brokers.crash(node)
        brokers.start(node)
        brokers.wait(lambda: brokers.registered(node))
        brokers.wait(lambda: hosted(brokers.brokers[node]) == groups_of(kept) | groups_of(new))


def test_a_node_that_was_away_when_its_stored_groups_went_lets_go_of_them() -> None:
    """They are stored and never come back to life: nothing but the log's room says that they are there."""
    with Brokers() as brokers:
        node = brokers.follower()
        gone = brokers.create_topic(node, "gone", 3)
        brokers.wait(lambda: len(brokers.brokers[node].partitions) == 3)
        brokers.world.run(brokers.world.now + 1)
        # A snapshot of the controller brings the deletion at once, so the replicas are never taken up again.
        brokers.crash(node)
        leader = brokers.leader()
        brokers.submit(leader, DeleteTopic(gone.topic_id))
        brokers.start(node)
        brokers.wait(lambda: brokers.registered(node))
        brokers.wait(lambda: not hosted(brokers.brokers[node]))
        brokers.wait(lambda: brokers.brokers[node].host.stored_groups() == [])


def test_nothing_is_removed_before_the_node_has_caught_up() -> None:
    with Brokers() as brokers:
        node = brokers.follower()
        brokers.create_topic(node, "t", 3)
        brokers.wait(lambda: len(brokers.brokers[node].partitions) == 3)
        brokers.world.run(brokers.world.now + 1)
        for each in brokers.nodes:
            brokers.crash(each)
        brokers.start(node)
        brokers.world.run(brokers.world.now + 5)
        broker = brokers.brokers[node]
        assert len(set(broker.host.groups) | set(broker.host.stored_groups())) == 4


def test_a_group_without_anything_stored_is_created_only_once_the_node_has_caught_up() -> None:
    """What the controller's log says halfway is over: a topic that was deleted since would begin again, and
    a new data folder would have a vote in a group of the lost one, before the entry that replaced it."""
    created: list[int] = []
    places = {group: PartitionGroup(group, bytes(16), "t", group, (1, 2, 3), 1) for group in (1, 2)}
    machine = SimpleNamespace(
        version=1,
        group_changes=lambda _, hosted: GroupChanges(
            tuple(place for group, place in places.items() if group not in hosted), ()
        ),
        groups_to_remove=lambda *_: (),
    )
    groups: dict[int, object] = {}
    host = SimpleNamespace(node_id=3, groups=groups, stored_groups=lambda: [2], crowded=lambda: False)

    def create(place: PartitionGroup) -> None:
        created.append(place.group)
        groups[place.group] = None

    async def go() -> None:
        manager = ReplicaManager(
            cast(RaftHost, host),
            cast(ControllerClient, SimpleNamespace(machine=machine, on_change=lambda _: None)),
            cast(Replicas, SimpleNamespace(create=create)),
            loop=asyncio.get_running_loop(),
        )
        manager.start()
        await asyncio.sleep(0.01)
        assert created == [2]
        machine.version += 1
        manager.wake()
        await asyncio.sleep(0.01)
        assert created == [2]
        manager.caught_up()
        await asyncio.sleep(0.01)
        assert created == [2, 1]

    asyncio.run(go())


def test_many_groups_come_in_slices_and_the_loop_turns_between_them() -> None:
    with Brokers() as brokers:
        node = brokers.follower()
        broker = brokers.brokers[node]
        steps: list[int] = []
        slice_of = broker.replica_manager._slice

        def watched() -> None:
            before = len(broker.partitions)
            slice_of()
            steps.append(len(broker.partitions) - before)

        broker.replica_manager._slice = watched  # type: ignore[method-assign]
        brokers.create_topic(node, "t", 200)
        brokers.wait(lambda: len(broker.partitions) == 200)
        assert max(steps) == SLICE
        assert len(steps) >= 200 // SLICE


def test_a_replica_that_cannot_be_had_does_not_keep_the_others_from_coming() -> None:
    with Brokers() as brokers:
        node = brokers.follower()
        broker = brokers.brokers[node]
        create = broker.host.create_group

        def failing(group: int, *args: Any, **options: Any) -> RaftGroup:
            if group == 2:
                raise OSError("no room")
            return create(group, *args, **options)

        broker.host.create_group = failing  # type: ignore[assignment, method-assign]
        topic = brokers.create_topic(node, "t", 4)
        brokers.wait(lambda: hosted(broker) == groups_of(topic) - {2})
        assert "no room" in broker.replica_manager.failed[2]
        brokers.submit(node, DeleteTopic(topic.topic_id))
        brokers.wait(lambda: not hosted(broker))


def test_a_replica_that_fails_alone_is_told_of_and_its_leadership_moves_at_once() -> None:
    with Brokers() as brokers:
        topic = brokers.create_topic(1, "t", 3)
        groups = groups_of(topic)
        brokers.wait(lambda: sum(p.leads for b in brokers.brokers.values() for p in b.partitions) == 3)
        brokers.world.run(brokers.world.now + 1)
        node = brokers.follower()
        broker = brokers.brokers[node]
        failed = next(partition for partition in broker.partitions if partition.leads)
        group = failed.group.id
        broker.host.guard(failed.group, lambda: 1 / 0)
        assert not failed.leads
        brokers.wait(lambda: (broker.leaders.leader_of(group) or Leader(node, 0)).node != node, seconds=0.2)
        new = broker.leaders.leader_of(group)
        assert new is not None
        brokers.wait(lambda: led_by(brokers.brokers[new.node], group), seconds=0.2)
        assert problems(broker)[0] == Problem("groups_failed", 1, (group,))
        assert all(problems(brokers.brokers[each]) == [] for each in brokers.nodes if each != node)
        assert hosted(broker) == groups
        assert node not in brokers.fatal


def led_by(broker: Broker, group: int) -> bool:
    partition = broker.partitions.by_group(group)
    return partition is not None and partition.leads


def test_without_the_controllers_replica_a_node_must_stop() -> None:
    with Brokers() as brokers:
        node = brokers.follower()
        host = brokers.brokers[node].host
        host.guard(host.groups[0], lambda: 1 / 0)
        assert isinstance(brokers.fatal[node], ZeroDivisionError)
