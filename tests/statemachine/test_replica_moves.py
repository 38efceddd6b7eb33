"""Moves of partitions in the controller's state: targets, cancelling, what nodes host meanwhile, refusals."""

from __future__ import annotations

import msgpack
import pytest

from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_commands import (
    ANY_MOVE,
    AlterTopicConfigs,
    ConfigChange,
    ConfigOperation,
    ControllerOpcode,
    CreatePartitions,
    DeleteTopic,
    FenceNode,
    MoveReplicas,
    ReplaceNode,
    ReplicasJoined,
    ReplicasLeft,
    ReplicasMoved,
    decode,
)
from strandline.statemachine.controller.controller_state import Move
from strandline.statemachine.controller.feature_levels import TARGETS
from strandline.statemachine.kafka_errors import KafkaError
from tests.statemachine.controller_harness import Log, topic_id

ID = topic_id(1)


def made(nodes: int = 5) -> Log:
    """One topic of two partitions on nodes 1, 2, 3."""
    log = Log(nodes=nodes)
    log.do(log.creation(1, assignments=[[1, 2, 3], [2, 3, 1]]))
    return log


def arrived(log: Log, group: int = 1) -> ReplicasMoved:
    """The report that the group has the members of its target, as its leader would make it now."""
    move = log.machine.moves[group]
    return ReplicasMoved([(group, move.target, move.since)])


def replicas(log: Log, number: int = 0) -> tuple[int, ...]:
    partition = log.machine.partition(ID, number)
    assert partition is not None
    return partition.replicas


def hosts(log: Log, group: int = 1) -> list[int]:
    """Nodes that have to create the group's replica, having none."""
    return [
        node
        for node in range(1, 6)
        if any(place.group == group for place in log.machine.group_changes(node, ()).create)
    ]


def test_partitions_that_are_added_amid_a_move_have_as_many_replicas_as_its_target() -> None:
    for level, wanted in ((TARGETS, 3), (TARGETS - 1, 4)):
        log = Log(nodes=5, level=level)
        log.do(log.creation(1, assignments=[[1, 2, 3]]))
        log.do(MoveReplicas(ID, 0, [4, 2, 3]))
        log.do(CreatePartitions(ID, 2, None))
        assert len(replicas(log)) == 4
        assert len(replicas(log, 1)) == wanted


def test_partitions_with_assignments_are_added_amid_a_move() -> None:
    log = Log(nodes=5, level=TARGETS)
    log.do(log.creation(1, assignments=[[1, 2, 3]]))
    log.do(MoveReplicas(ID, 0, [4, 2, 3]))
    with_four = CreatePartitions(ID, 2, [[1, 2, 3, 5]])
    assert log.refused(with_four)[0] is KafkaError.INVALID_REPLICA_ASSIGNMENT
    log.do(CreatePartitions(ID, 2, [[1, 2, 5]]))
    assert replicas(log, 1) == (1, 2, 5)


def test_no_minimum_is_set_amid_a_move_that_its_target_cannot_reach() -> None:
    log = Log(nodes=5, level=TARGETS)
    log.do(log.creation(1, assignments=[[1, 2, 3]]))
    log.do(MoveReplicas(ID, 0, [4, 2, 3]))
    four = ConfigChange(ConfigOperation.SET, "min.insync.replicas", "4")
    assert log.refused(AlterTopicConfigs(ID, [four]))[0] is KafkaError.INVALID_CONFIG


def test_a_move_hosts_old_and_new_replicas_until_it_is_reported() -> None:
    log = made()
    topic = log.topic(MoveReplicas(ID, 0, [4, 2, 5]))
    assert topic.version == log.index == log.machine.version
    assert log.machine.moves == {1: Move((4, 2, 5), (1, 2, 3), log.index)}
    assert replicas(log) == (4, 2, 5, 1, 3)
    assert hosts(log) == [1, 2, 3, 4, 5]
    assert log.do(arrived(log)) == 0
    assert replicas(log) == (4, 2, 5)
    assert log.machine.moves == {}
    assert hosts(log) == [2, 4, 5]
    assert log.machine.moved_away(1, 1)
    assert log.machine.moved_away(3, 1)
    assert replicas(log, 1) == (2, 3, 1), "the other partition stayed"


def test_new_replicas_join_and_old_ones_found_their_group() -> None:
    log = made()
    log.do(MoveReplicas(ID, 0, [4, 2, 3]))
    places = {node: log.machine.group_changes(node, (2,)).create[0] for node in (1, 2, 4)}
    assert [places[node].joins for node in (1, 2, 4)] == [False, False, True]
    assert all(place.replicas == (1, 2, 3) for place in places.values()), "the members it began with"
    log.do(arrived(log))
    again = [log.machine.group_changes(node, (2,)).create[0] for node in (2, 4)]
    assert all(place.joins for place in again), "a group that ended a move is begun by no node"
    log.do(MoveReplicas(ID, 0, [1, 2, 3]))
    assert log.machine.group_changes(3, (2,)).create[0].joins
    assert not log.machine.group_changes(3, (1,)).create[0].joins, "the other group never moved"


def test_a_report_of_another_target_ends_nothing() -> None:
    log = made()
    log.do(MoveReplicas(ID, 0, [4, 2, 3]))
    early = arrived(log)
    log.do(MoveReplicas(ID, 0, [5, 2, 3]))
    move = Move((5, 2, 3), (1, 2, 3), log.index)
    assert replicas(log) == (5, 2, 3, 4, 1), "4 may be a member by now"
    assert log.do(ReplicasMoved([*early.groups, (77, [1], 1)])) == 1
    assert log.machine.moves == {1: move}
    report = arrived(log)
    assert log.do(report) == 0
    assert log.do(report) == 0, "told twice"


def test_a_report_that_comes_late_ends_no_later_move_to_the_same_nodes() -> None:
    log = made()
    log.do(MoveReplicas(ID, 0, [4, 2, 3]))
    log.do(MoveReplicas(ID, 0, [4, 2, 3]))
    report = arrived(log)
    assert log.do(report) == 0, "asked for twice, it is one move"
    log.do(MoveReplicas(ID, 0, [1, 2, 3]))
    log.do(arrived(log))
    log.do(MoveReplicas(ID, 0, [4, 2, 3]))
    assert log.do(report) == 1
    assert replicas(log) == (4, 2, 3, 1), "node 1 is a member, and node 4 not yet"


def test_a_report_of_an_earlier_release_names_the_target_alone() -> None:
    log = made()
    log.do(MoveReplicas(ID, 0, [4, 2, 3]))
    entry = msgpack.packb([ControllerOpcode.REPLICAS_MOVED, [[1, [4, 2, 3]]]])
    assert decode(entry) == ReplicasMoved(((1, (4, 2, 3), ANY_MOVE),))
    assert log.do(decode(entry)) == 0


def test_moves_in_a_snapshot_of_an_earlier_release() -> None:
    log = made()
    log.do(MoveReplicas(ID, 0, [4, 5, 3]))
    fields = msgpack.unpackb(log.machine.snapshot())
    fields["format"] = 8
    fields["moves"] = [[group, move[:2]] for group, move in fields["moves"]]
    again = Controller(lambda index, captured: None)
    again.restore(msgpack.packb(fields))
    assert again.moves == {1: Move((4, 5, 3), (1, 2, 3), 0)}


def test_cancelling_goes_back_to_where_the_partition_was() -> None:
    log = made()
    log.do(MoveReplicas(ID, 0, [4, 5, 3]))
    log.do(MoveReplicas(ID, 0, None))
    assert log.machine.moves == {1: Move((1, 2, 3), (1, 2, 3), log.index)}
    assert replicas(log) == (1, 2, 3, 4, 5), "who came meanwhile has to be removed first"
    log.do(MoveReplicas(ID, 0, None))
    log.do(arrived(log))
    assert replicas(log) == (1, 2, 3)
    error, _ = log.refused(MoveReplicas(ID, 0, None))
    assert error == KafkaError.NO_REASSIGNMENT_IN_PROGRESS


def test_another_order_of_the_same_nodes_is_another_preferred_leader_at_once() -> None:
    log = made()
    log.do(MoveReplicas(ID, 0, [3, 2, 1]))
    assert replicas(log) == (3, 2, 1)
    assert log.machine.moves == {}
    version = log.machine.version
    log.do(MoveReplicas(ID, 0, [3, 2, 1]))
    assert log.machine.version == version, "nothing changed"


def test_refusals_name_the_cause_and_leave_no_trace() -> None:
    log = made()
    node = log.machine.nodes[5]
    log.do(FenceNode(5, node.heard_index, 0))
    for target, said in (
        ([], "empty replica list"),
        ([1, 1, 2], "broker 1 more than once"),
        ([1, 9], "broker 9, but no such broker"),
        ([1, 2, 5], "broker 5, which is not alive"),
        (list(range(1, 40)), "a partition may have 32"),
    ):
        error, message = log.refused(MoveReplicas(ID, 0, target))
        assert error == KafkaError.INVALID_REPLICA_ASSIGNMENT
        assert said in message
    assert log.refused(MoveReplicas(ID, 2, [1]))[0] == KafkaError.UNKNOWN_TOPIC_OR_PARTITION
    assert log.refused(MoveReplicas(topic_id(9), 0, [1]))[0] == KafkaError.UNKNOWN_TOPIC_ID
    log.do(log.creation(2, assignments=[[1, 2]], configs=[("min.insync.replicas", "2")]))
    error, message = log.refused(MoveReplicas(topic_id(2), 0, [1]))
    assert "min.insync.replicas of the topic is 2" in message


def test_a_dead_replica_may_stay_one() -> None:
    log = made()
    log.do(FenceNode(3, log.machine.nodes[3].heard_index, 0))
    log.topic(MoveReplicas(ID, 0, [4, 2, 3]))


def test_a_deleted_topic_moves_no_more() -> None:
    log = made()
    log.do(MoveReplicas(ID, 0, [4, 5, 3]))
    report = arrived(log)
    log.do(DeleteTopic(ID))
    assert log.machine.moves == {}
    assert log.do(report) == 0
    assert log.machine.group_changes(1, [1]).remove == (1,)


def test_moves_come_through_a_snapshot() -> None:
    log = made()
    log.do(MoveReplicas(ID, 0, [4, 5, 3]))
    log.do(MoveReplicas(ID, 1, [5, 3, 1]))
    log.do(arrived(log, 2))
    again = Controller(lambda index, captured: None)
    again.restore(log.machine.snapshot())
    assert again.snapshot() == log.machine.snapshot()
    assert again.moves == log.machine.moves
    for node in range(1, 6):
        assert again.group_changes(node, ()) == log.machine.group_changes(node, ())


def test_a_node_is_not_replaced_while_a_group_has_few_members_before_or_after() -> None:
    log = Log(nodes=4)
    log.do(log.creation(1, assignments=[[1, 2]]))
    log.do(MoveReplicas(ID, 0, [1, 2, 3]))
    log.do(FenceNode(1, log.machine.nodes[1].heard_index, 0))
    _, message = log.refused(ReplaceNode(1, 999))
    assert "one of only one or two replicas" in message


@pytest.mark.parametrize("left_first", [False, True], ids=["while it leaves", "while it joins"])
def test_a_replacement_does_not_wait_for_a_group_whose_move_away_is_reported_meanwhile(
    left_first: bool,
) -> None:
    log = made()
    log.do(MoveReplicas(ID, 0, [4, 2, 3]))
    report = arrived(log)
    log.do(FenceNode(1, log.machine.nodes[1].heard_index, 0))
    assert log.do(ReplaceNode(1, 999)) == 3
    if left_first:
        assert log.do(ReplicasLeft(1, 999, [0, 1, 2])) == 0
    log.do(report)
    present = log.machine.replacement
    assert present is not None
    assert present.leaving | present.joining == {0, 2}, "group 1 has no replica on node 1 to join with"
    log.do(ReplicasLeft(1, 999, [0, 2]))
    assert log.do(ReplicasJoined(1, 999, [0, 2])) == 0
    assert log.machine.replacement is None


def test_a_replacement_waits_for_a_group_that_moves_to_the_node() -> None:
    log = made()
    log.do(MoveReplicas(ID, 0, [4, 2, 3]))
    report = arrived(log)
    log.do(FenceNode(4, log.machine.nodes[4].heard_index, 0))
    assert log.do(ReplaceNode(4, 999)) == 2
    log.do(report)
    present = log.machine.replacement
    assert present is not None
    assert present.leaving == {0, 1}
