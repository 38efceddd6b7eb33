"""Partitions move between whole brokers: under load, over a crash, there and back, and cancelled."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from strandline.node.controller import replica_moves
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_commands import DeleteTopic, MoveReplicas, SetDraining
from strandline.statemachine.controller.controller_state import PartitionAssignment, Topic
from strandline.statemachine.controller.drain_plan import Staying
from strandline.statemachine.internal_topics import GROUPS_TOPIC
from tests.controller.batch_client import BatchClient, leaders
from tests.controller.brokers import Brokers


def assigned(brokers: Brokers, topic: Topic, number: int = 0) -> PartitionAssignment:
    """Where a partition is, as any of the brokers has it."""
    broker = next(iter(brokers.brokers.values()))
    found = broker.controller.machine.partition(topic.topic_id, number)
    assert found is not None
    return found


def hosts(brokers: Brokers, group: int) -> set[int]:
    return {node for node, broker in brokers.brokers.items() if group in broker.host.groups}


def elsewhere(brokers: Brokers, topic: Topic, number: int = 0) -> list[int]:
    """Nodes that have no replica of the partition."""
    return [node for node in brokers.nodes if node not in assigned(brokers, topic, number).replicas]


def move(brokers: Brokers, topic: Topic, target: list[int] | None, number: int = 0) -> None:
    node = next(iter(brokers.brokers))
    moved = brokers.submit(node, MoveReplicas(topic.topic_id, number, target))
    assert isinstance(moved, Topic), moved


def arrived(brokers: Brokers, topic: Topic, target: list[int], number: int = 0) -> bool:
    """Whether the partition is on these nodes and no others, and every broker knows."""
    group = topic.partitions[number].group
    for broker in brokers.brokers.values():
        partition = broker.controller.machine.partition(topic.topic_id, number)
        if partition is None or list(partition.replicas) != target or broker.controller.machine.moves:
            return False
    return hosts(brokers, group) == set(target) & set(brokers.brokers)


def read_back(brokers: Brokers, topic: Topic, client: BatchClient) -> None:
    """Everything that was acknowledged is there, and nothing else."""
    client.on = False
    brokers.world.run(brokers.world.now + 1)
    for number, node in enumerate(leaders(brokers, topic)):
        partition = brokers.brokers[node].partitions.get(topic.topic_id, number)
        assert partition is not None
        assert partition.high_watermark == client.acked[number] > 10


def test_a_partition_moves_to_other_nodes_under_load_and_its_old_replicas_go() -> None:
    with Brokers(5) as brokers:
        topic = brokers.create_topic(1, "t", 2)
        client = BatchClient(brokers, topic)
        brokers.world.run(brokers.world.now + 1)
        first = list(topic.partitions[0].replicas)
        target = [*elsewhere(brokers, topic), first[0]]
        move(brokers, topic, target)
        assert set(assigned(brokers, topic).replicas) == {*first, *target}
        brokers.wait(lambda: arrived(brokers, topic, target))
        brokers.wait(lambda: leaders(brokers, topic)[0] == target[0], seconds=30)
        assert hosts(brokers, topic.partitions[1].group) == set(topic.partitions[1].replicas)
        brokers.world.run(brokers.world.now + 1)
        read_back(brokers, topic, client)


def test_the_only_replica_moves_and_its_leader_hands_over() -> None:
    with Brokers(3) as brokers:
        topic = brokers.create_topic(1, "t", 1, 1)
        client = BatchClient(brokers, topic)
        brokers.world.run(brokers.world.now + 1)
        for target in (elsewhere(brokers, topic)[:1], elsewhere(brokers, topic)[1:], [1, 2, 3], [2]):
            move(brokers, topic, target)
            brokers.wait(lambda target=target: arrived(brokers, topic, target))
        brokers.world.run(brokers.world.now + 1)
        read_back(brokers, topic, client)


def test_a_replica_that_comes_back_goes_on_with_what_it_promised() -> None:
    with Brokers(4) as brokers:
        topic = brokers.create_topic(1, "t", 1)
        group = topic.partitions[0].group
        client = BatchClient(brokers, topic)
        brokers.world.run(brokers.world.now + 1)
        home = list(topic.partitions[0].replicas)
        away = [*home[:2], *elsewhere(brokers, topic)]
        gone = home[2]
        move(brokers, topic, away)
        brokers.wait(lambda: arrived(brokers, topic, away))
        stored = brokers.brokers[gone].host.stored.log(group)
        assert stored is not None
        assert stored.voters == ()
        assert stored.entries[-1][1] > 10
        assert brokers.brokers[gone].host.stored_groups() == [group]
        brokers.world.run(brokers.world.now + 1)
        brokers.crash(gone, "power")
        brokers.start(gone)
        brokers.wait(lambda: brokers.registered(gone))
        brokers.world.run(brokers.world.now + 2)
        again = brokers.brokers[gone].host.stored.log(group)
        assert again is not None, "a restart forgets nothing of it"
        assert (again.term, again.vote, again.entries[-1]) == (stored.term, stored.vote, stored.entries[-1])
        move(brokers, topic, home)
        brokers.wait(lambda: arrived(brokers, topic, home))
        assert brokers.brokers[gone].host.stored_groups() == []
        brokers.world.run(brokers.world.now + 1)
        read_back(brokers, topic, client)
        replicas = [brokers.brokers[node].host.groups[group] for node in home]
        brokers.wait(lambda: len({replica.applied for replica in replicas}) == 1)
        assert len({replica.machine.snapshot() for replica in replicas}) == 1


def test_a_move_goes_on_after_its_leader_crashed() -> None:
    with Brokers(5) as brokers:
        topic = brokers.create_topic(1, "t", 1)
        client = BatchClient(brokers, topic)
        brokers.world.run(brokers.world.now + 1)
        leader = leaders(brokers, topic)[0]
        stay = next(node for node in topic.partitions[0].replicas if node != leader)
        target = [stay, *elsewhere(brokers, topic)]
        move(brokers, topic, target)
        brokers.wait(lambda: len(hosts(brokers, topic.partitions[0].group)) == 5)
        brokers.crash(leader)
        brokers.wait(lambda: arrived(brokers, topic, target), seconds=60)
        brokers.start(leader)
        brokers.wait(lambda: brokers.registered(leader) and arrived(brokers, topic, target), seconds=60)
        read_back(brokers, topic, client)


def test_a_move_to_a_node_that_is_away_waits_and_can_be_cancelled() -> None:
    with Brokers(4) as brokers:
        topic = brokers.create_topic(1, "t", 1)
        client = BatchClient(brokers, topic)
        home = list(topic.partitions[0].replicas)
        (other,) = elsewhere(brokers, topic)
        move(brokers, topic, [other, *home[1:]])
        brokers.crash(other)
        brokers.world.run(brokers.world.now + 30)
        assert brokers.brokers[home[0]].controller.machine.moves
        move(brokers, topic, None)
        brokers.wait(lambda: arrived(brokers, topic, home), seconds=60)
        read_back(brokers, topic, client)
        brokers.start(other)
        brokers.wait(lambda: brokers.registered(other) and arrived(brokers, topic, home), seconds=60)


@pytest.mark.parametrize("cancelled", [False, True])
def test_moves_to_a_node_that_cannot_host_them_hold_up_no_others(cancelled: bool) -> None:
    with Brokers(4) as brokers, patch.object(replica_moves, "AT_ONCE", 2):
        topic = brokers.create_topic(1, "t", 12, 1)
        first, second, third = (each for each, place in enumerate(topic.partitions) if place.replicas == (1,))
        for number in (first, second):
            brokers.brokers[2].replica_manager.failed[topic.partitions[number].group] = "it could not be read"
            move(brokers, topic, [2], number)
        brokers.world.run(brokers.world.now + 2)
        changing = [
            brokers.brokers[1].host.groups[topic.partitions[number].group] for number in (first, second)
        ]
        assert [group.joining for group in changing] == [2, 2]
        if cancelled:
            move(brokers, topic, [1], first)
            brokers.wait(lambda: hosts(brokers, changing[0].id) == {1} and not changing[0].peers, seconds=5)
        move(brokers, topic, [3], third)
        brokers.wait(lambda: hosts(brokers, topic.partitions[third].group) == {3}, seconds=30)
        brokers.world.run(brokers.world.now + 30)
        assert changing[1].joining == 2, "it is tried again"


def test_a_topic_that_is_deleted_while_it_moves_is_gone_everywhere() -> None:
    with Brokers(5) as brokers:
        topic = brokers.create_topic(1, "t", 1)
        group = topic.partitions[0].group
        home = list(topic.partitions[0].replicas)
        target = [*elsewhere(brokers, topic), home[0]]
        move(brokers, topic, target)
        brokers.wait(lambda: arrived(brokers, topic, target))
        move(brokers, topic, home)
        brokers.submit(1, DeleteTopic(topic.topic_id))
        brokers.wait(lambda: not hosts(brokers, group))
        brokers.wait(lambda: all(not broker.host.stored_groups() for broker in brokers.brokers.values()))


def test_a_coordinators_partition_moves_as_any_other() -> None:
    with Brokers(4) as brokers:
        place = brokers.run(1, brokers.brokers[1].coordinators.group_place("g"))
        topic = brokers.brokers[1].controller.machine.topic(GROUPS_TOPIC)
        assert topic is not None
        number = place.number
        target = [*elsewhere(brokers, topic, number), *topic.partitions[number].replicas[:2]]
        move(brokers, topic, target, number)
        brokers.wait(lambda: arrived(brokers, topic, target, number))

        def led() -> bool:
            replicas = [broker.coordinators.by_group(place.raft_group) for broker in brokers.brokers.values()]
            return any(replica is not None and replica.leads for replica in replicas)

        brokers.wait(led)


@pytest.mark.parametrize("crash", [False, True], ids=["quiet", "the controller's leader crashes"])
def test_a_drained_node_is_emptied_also_under_another_controller_leader(crash: bool) -> None:
    racks = {1: "a", 2: "b", 3: "c", 4: "c"}
    with Brokers(4, racks=racks) as brokers:
        topic = brokers.create_topic(1, "t", 6)
        client = BatchClient(brokers, topic)
        brokers.world.run(brokers.world.now + 1)
        node = 3 if brokers.leader() == 4 else 4
        assert brokers.submit(node, SetDraining(node, True)) > 0
        if crash:
            leader = brokers.leader()
            brokers.crash(leader)
            brokers.world.run(brokers.world.now + 1)
            brokers.start(leader)
        machine = brokers.brokers[node].controller.machine
        brokers.wait(lambda: not machine.moves and set(brokers.brokers[node].host.groups) == {0}, seconds=60)
        now = brokers.brokers[node].controller.machine.topic_by_id(topic.topic_id)
        assert now is not None
        assert all({racks[one] for one in part.replicas} == {"a", "b", "c"} for part in now.partitions)
        read_back(brokers, topic, client)


def test_a_drain_whose_room_is_gone_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    with Brokers(4) as brokers:
        brokers.create_topic(1, "t", 6)
        brokers.world.run(brokers.world.now + 1)
        node = 3 if brokers.leader() == 4 else 4
        staying = {node: Staying(2, ("a", "b"))}
        with patch.object(Controller, "drains_staying", lambda _: staying):
            assert brokers.submit(node, SetDraining(node, True)) > 0
            brokers.world.run(brokers.world.now + 20)
        lines = [one for one in caplog.messages if "cannot be emptied for now" in one]
        assert len(lines) == 3
        assert lines[0].startswith(f"node {node} cannot be emptied for now: 2 of its replicas have no")
        assert "topic a has fewer replicas than its min.insync.replicas" in lines[1]
