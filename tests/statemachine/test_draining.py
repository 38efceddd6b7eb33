"""Nodes that are drained: what they get, where there is room, and which moves empty them."""

from __future__ import annotations

from collections import Counter

from strandline.statemachine.controller.controller_commands import (
    ANY_MOVE,
    CreatePartitions,
    FenceNode,
    MoveReplicas,
    ReplaceTopicConfigs,
    ReplicasMoved,
    SetDraining,
)
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.controller.drain_plan import Staying
from strandline.statemachine.kafka_errors import KafkaError
from tests.statemachine.controller_harness import Log, topic_id


def fence(log: Log, node: int) -> None:
    log.do(FenceNode(node, log.machine.nodes[node].heard_index, 1_000))


def test_replicas_go_to_different_racks_first() -> None:
    log = Log(nodes=4, level=2, racks=["east", "east", "west", "west"])
    racks = {node: one.rack for node, one in log.machine.nodes.items()}
    topic = log.topic(log.creation(1, partitions=8, replication_factor=2))
    assert {frozenset(racks[node] for node in one.replicas) for one in topic.partitions} == {
        frozenset({"east", "west"})
    }
    assert sorted(one.replicas[0] for one in topic.partitions) == [1, 1, 2, 2, 3, 3, 4, 4]


def test_a_drained_node_gets_no_replicas_and_keeps_those_it_has() -> None:
    log = Log(nodes=3, level=2)
    held = log.topic(log.creation(1, partitions=3, replication_factor=1))
    assert log.do(SetDraining(3, True)) == 1
    assert log.do(SetDraining(3, True)) == 1, "a retry"
    assert log.machine.draining == {3}
    for number in range(2, 6):
        topic = log.topic(log.creation(number, partitions=2, replication_factor=2))
        assert all(set(one.replicas) == {1, 2} for one in topic.partitions)
    grown = log.topic(CreatePartitions(held.topic_id, 6, None))
    assert {one.replicas for one in grown.partitions[3:]} == {(1,), (2,)}
    assert log.refused(log.creation(9, replication_factor=3)) == (
        KafkaError.INVALID_REPLICATION_FACTOR,
        "Unable to replicate the partition 3 time(s): The target replication factor of 3 cannot be reached "
        "because only 2 broker(s) are registered, alive and not drained.",
    )
    assert "which is being drained" in log.refused(log.creation(9, assignments=[[3]]))[1]
    refused = log.refused(MoveReplicas(topic_id(2), 0, (1, 3)))
    assert "includes broker 3, which is being drained" in refused[1]
    assert isinstance(log.do(MoveReplicas(topic_id(1), 2, (3, 1))), Topic), "it has that one already"
    assert log.do(SetDraining(3, False)) == 1
    assert log.machine.draining == set()
    assert isinstance(log.do(log.creation(9, replication_factor=3)), Topic)


def test_a_drain_without_room_is_refused_and_names_what_is_in_the_way() -> None:
    log = Log(nodes=3, level=2)
    log.do(log.creation(1, "wide", replication_factor=3))
    log.do(log.creation(2, "narrow", replication_factor=2))
    error, message = log.refused(SetDraining(2, True))
    assert error is KafkaError.INVALID_REQUEST
    assert "than the 2 other node(s) that are alive and not drained: wide (3). Start or add a node" in message
    assert log.refused(SetDraining(9, True))[0] is KafkaError.BROKER_ID_NOT_REGISTERED
    log.do(MoveReplicas(topic_id(1), 0, (1, 3)))
    assert isinstance(log.do(SetDraining(2, True)), int), "it is on its way to fewer"
    assert "cannot be drained" in log.refused(SetDraining(3, True))[1], "2 does not count any more"


def test_a_dead_node_is_no_room_for_a_drain() -> None:
    log = Log(nodes=3, level=2)
    log.do(log.creation(1, "narrow", assignments=[[1, 2]]))
    fence(log, 3)
    assert "than the 1 other node(s)" in log.refused(SetDraining(2, True))[1]


def emptied(log: Log) -> int:
    """Carry out all moves that draining calls for, a few at a time; how often it called for some."""
    turns = 0
    while commands := log.machine.drain_moves(4):
        turns += 1
        assert len(commands) <= 4
        for command in commands:
            assert isinstance(log.do(command), Topic), command
        assert log.machine.drain_moves(4) == [], "as many are under way as may be"
        for group, move in list(log.machine.moves.items()):
            log.do(ReplicasMoved(((group, move.target, move.since),)))
    return turns


def test_a_drained_node_is_emptied_within_the_racks_and_evenly() -> None:
    log = Log(nodes=6, level=2, racks=["a", "a", "b", "b", "c", "c"])
    racks = {node: one.rack for node, one in log.machine.nodes.items()}
    log.topic(log.creation(1, partitions=12, replication_factor=3))
    log.topic(log.creation(2, partitions=6, replication_factor=1))
    assert log.machine.drain_moves(4) == []
    log.do(SetDraining(1, True))
    assert emptied(log) == 2
    replicas = [one.replicas for topic in log.machine.topics for one in topic.partitions]
    assert all(1 not in one for one in replicas)
    assert all(len({racks[node] for node in one}) == len(one) for one in replicas), "a rack took its own over"
    held = Counter(node for one in log.machine.topics[0].partitions for node in one.replicas)
    assert held[2] == 12, "the other of its rack has one of each"


def test_two_nodes_are_drained_at_once_and_a_partition_moves_once() -> None:
    log = Log(nodes=4, level=2)
    topic = log.topic(log.creation(1, assignments=[[1, 2], [2, 1], [3, 4]]))
    log.do(SetDraining(1, True))
    log.do(SetDraining(2, True))
    assert log.machine.drain_moves(9) == [
        MoveReplicas(topic.topic_id, 0, (3, 4)),
        MoveReplicas(topic.topic_id, 1, (3, 4)),
    ]
    assert emptied(log) == 1
    assert all({1, 2}.isdisjoint(one.replicas) for one in log.machine.topics[0].partitions)


def test_without_room_any_more_what_is_left_stays() -> None:
    log = Log(nodes=3, level=2)
    log.topic(log.creation(1, assignments=[[1, 2]]))
    log.do(SetDraining(1, True))
    assert log.machine.drains_staying() == {}
    fence(log, 3)
    assert log.machine.drain_moves(9) == []
    assert log.machine.drains_staying() == {1: Staying(without_room=1)}


def test_topics_below_their_minimum_stay_and_keep_no_others_waiting() -> None:
    """A partition may have fewer replicas than the topic's first one, which the setting is held against."""
    log = Log(nodes=4, level=2)
    below = log.topic(log.creation(1, assignments=[[2, 3], [1, 2], [1, 3]]))
    log.do(MoveReplicas(below.topic_id, 0, (2, 3, 4)))
    log.do(ReplicasMoved([(below.partitions[0].group, (2, 3, 4), ANY_MOVE)]))
    log.do(ReplaceTopicConfigs(below.topic_id, [("min.insync.replicas", "3")]))
    topic = log.topic(log.creation(2, assignments=[[1, 2]] * 2))
    log.do(SetDraining(1, True))
    assert "min.insync.replicas of the topic is 3" in log.refused(MoveReplicas(below.topic_id, 1, (3, 2)))[1]
    assert [command.topic_id for command in log.machine.drain_moves(2)] == [topic.topic_id] * 2
    assert log.machine.drains_staying() == {1: Staying(below_minimum=(below.name,))}


def test_what_cannot_move_without_a_majority_is_told_also_once_its_move_has_begun() -> None:
    log = Log(nodes=4, level=2)
    alone = log.topic(log.creation(1, assignments=[[1]]))
    pair = log.topic(log.creation(2, assignments=[[1, 2], [1, 3]]))
    fence(log, 1)
    log.do(SetDraining(1, True))
    assert log.machine.drains_staying() == {1: Staying(without_majority=(alone.name, pair.name))}
    (move, *_) = log.machine.drain_moves(1)
    assert move.topic_id == alone.topic_id
    log.do(move)
    assert alone.name in log.machine.drains_staying()[1].without_majority


def test_a_move_to_a_node_that_is_drained_by_now_gets_another_target() -> None:
    log = Log(nodes=4, level=2)
    topic = log.topic(log.creation(1, assignments=[[1, 2]]))
    log.do(SetDraining(1, True))
    assert log.machine.drain_moves(9) == [MoveReplicas(topic.topic_id, 0, (3, 2))]
    log.do(MoveReplicas(topic.topic_id, 0, (3, 2)))
    assert log.machine.drain_moves(9) == []
    log.do(SetDraining(3, True))
    assert log.machine.drain_moves(9) == [MoveReplicas(topic.topic_id, 0, (4, 2))]
    assert emptied(log) == 1
    assert log.machine.topics[0].partitions[0].replicas == (4, 2)


def test_moves_that_wait_for_a_dead_node_keep_no_others_waiting() -> None:
    log = Log(nodes=4, level=2)
    topic = log.topic(log.creation(1, assignments=[[1, 2]] * 6))
    log.do(SetDraining(1, True))
    began = log.machine.drain_moves(3)
    for command in began:
        log.do(command)
    assert [command.target for command in began] == [(3, 2), (4, 2), (3, 2)]
    assert log.machine.drain_moves(3) == []
    fence(log, 3)
    after = log.machine.drain_moves(3)
    assert [(command.partition, command.target) for command in after] == [(3, (4, 2)), (4, (4, 2))]
    assert topic.topic_id == after[0].topic_id
