"""Which data folder a node has, and how another takes its place, in the controller's log."""

from __future__ import annotations

import pytest

from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_commands import (
    CreateInternalTopic,
    DeleteTopic,
    FenceNode,
    Heartbeat,
    MoveReplicas,
    RemoveNode,
    ReplaceNode,
    ReplicasJoined,
    ReplicasLeft,
    SetDraining,
)
from strandline.statemachine.controller.controller_state import REMOVED, NodeFolder
from strandline.statemachine.controller.feature_levels import REMOVAL, TARGETS
from strandline.statemachine.controller.node_folders import removing, replacing
from strandline.statemachine.controller.restored_controller import hosts
from strandline.statemachine.internal_topics import GROUPS_TOPIC
from strandline.statemachine.kafka_errors import KafkaError
from tests.statemachine.controller_harness import Log, registration, topic_id

OLD, NEW, NEWER = 503, 903, 913


def with_a_dead_node(level: int = 1) -> Log:
    """Three nodes, two topics of three replicas (groups 1 to 3), and node 3 is dead."""
    log = Log(nodes=3, level=level)
    log.do(log.creation(1, "a", partitions=2, replication_factor=3))
    log.do(log.creation(2, "b", partitions=1, replication_factor=3))
    log.do(FenceNode(3, log.machine.nodes[3].heard_index, 1_000))
    return log


def test_first_registration_names_the_folder_and_another_folder_is_refused() -> None:
    log = Log(nodes=3)
    assert log.machine.folders[3] == NodeFolder(1, OLD)
    error, message = log.refused(registration(3, 999, replaces=103, folder=NEW))
    assert error == KafkaError.INVALID_REGISTRATION
    assert f"has data folder {OLD:016x}, not {NEW:016x}" in message
    assert "`strandline node replace 3`" in message
    assert log.do(registration(3, 999, replaces=103)) == log.machine.nodes[3], "the same folder comes again"


def test_replacement_goes_through_every_group_and_ends() -> None:
    log = with_a_dead_node()
    assert log.do(ReplaceNode(3, NEW)) == 4, "the controller's own group is one of them"
    assert log.machine.folders[3] == NodeFolder(2, NEW)
    assert all(place.joins for place in log.machine.group_changes(3, ()).create)
    assert not any(place.joins for place in log.machine.group_changes(1, ()).create)
    assert log.do(ReplicasLeft(3, NEW, (1, 2))) == 2
    assert log.do(ReplicasLeft(3, NEW, (1, 2))) == 2, "told twice"
    assert log.do(ReplicasLeft(3, NEW, (0, 3, 77))) == 0, "one that is not asked for"
    present = log.machine.replacement
    assert present is not None
    assert present.joining == {0, 1, 2, 3}
    assert log.do(ReplicasJoined(3, NEW, (0, 1))) == 2
    assert [place.joins for place in log.machine.group_changes(3, (1,)).create] == [True, True]
    assert log.do(ReplicasJoined(3, NEW, (2, 3))) == 0
    assert log.machine.replacement is None
    assert not any(place.joins for place in log.machine.group_changes(3, ()).create)
    assert log.do(registration(3, 999, replaces=103, folder=NEW)) == log.machine.nodes[3]
    assert log.refused(registration(3, 998, replaces=999, folder=OLD))[0] == KafkaError.INVALID_REGISTRATION


def test_a_command_is_tried_again_without_harm() -> None:
    log = with_a_dead_node()
    assert log.do(ReplaceNode(3, NEW)) == 4
    log.do(ReplicasLeft(3, NEW, (1,)))
    assert log.do(ReplaceNode(3, NEW)) == 3
    assert log.machine.folders[3] == NodeFolder(2, NEW)


def test_a_node_that_lives_is_not_replaced() -> None:
    log = Log(nodes=3)
    assert "Node 3 is alive with its data folder: stop" in log.refused(ReplaceNode(3, NEW))[1]


def test_the_folder_that_is_in_force_is_no_other_one() -> None:
    log = with_a_dead_node()
    assert f"{OLD:016x} is the one that node 3 has" in log.refused(ReplaceNode(3, OLD))[1]


def test_one_node_is_replaced_at_a_time() -> None:
    """Two folders without a history in one group could elect a leader that lacks what was acknowledged."""
    log = with_a_dead_node()
    log.do(FenceNode(2, log.machine.nodes[2].heard_index, 1_000))
    log.do(ReplaceNode(3, NEW))
    assert log.refused(ReplaceNode(2, 902))[1].startswith("Node 3 is being replaced, and that cannot end")


def test_a_replacement_that_a_second_lost_folder_holds_up_ends_once_its_topics_are_deleted() -> None:
    """Groups that have left node 3 out have two members: without node 2's folder they have no majority."""
    log = with_a_dead_node()
    log.do(Heartbeat(3, 103, 2_000))
    internal = log.topic(CreateInternalTopic(topic_id(3), GROUPS_TOPIC, 1, 3))
    group = internal.partitions[0].group
    assert "is internal" in log.refused(DeleteTopic(topic_id(3)))[1]
    log.do(FenceNode(3, log.machine.nodes[3].heard_index, 3_000))
    log.do(ReplaceNode(3, NEW))
    log.do(ReplicasLeft(3, NEW, (0, 1, 2, 3, group)))
    log.do(registration(3, 999, replaces=103, folder=NEW))
    log.do(ReplicasJoined(3, NEW, (0, 3)))
    assert log.machine.stuck_topics() == []
    assert log.refused(ReplaceNode(2, 902))[1] == "Node 3 is being replaced: wait until that is over."
    assert "is internal" in log.refused(DeleteTopic(topic_id(3)))[1], "its partitions are not lost"
    log.do(FenceNode(2, log.machine.nodes[2].heard_index, 1_000))
    assert log.machine.stuck_topics() == [GROUPS_TOPIC, "a"], "all of b is back"
    assert log.refused(ReplaceNode(2, 902))[1] == (
        "Node 3 is being replaced, and that cannot end while partitions of __consumer_offsets, a have no"
        " majority of live replicas: start the nodes that have their data folders, or, if those are lost,"
        " delete these topics."
    )
    log.do(DeleteTopic(topic_id(1)))
    log.do(DeleteTopic(topic_id(3)))
    assert log.machine.replacement is None
    assert log.do(ReplaceNode(2, 902)) == 2


def test_group_that_still_has_both_lost_folders_is_stuck_too() -> None:
    """Of three members the replaced one and the lost one are two."""
    log = with_a_dead_node()
    log.do(ReplaceNode(3, NEW))
    assert log.machine.stuck_topics() == []
    log.do(FenceNode(2, log.machine.nodes[2].heard_index, 1_000))
    assert log.machine.stuck_topics() == ["a", "b"]


def test_the_only_replica_of_a_partition_is_not_given_up() -> None:
    log = Log(nodes=3)
    log.do(log.creation(9, "alone", assignments=[[3], [1]]))
    log.do(log.creation(1, "a", replication_factor=3))
    log.do(FenceNode(3, log.machine.nodes[3].heard_index, 1_000))
    error, message = log.refused(ReplaceNode(3, NEW))
    assert error == KafkaError.INVALID_REQUEST
    assert "Node 3 had one of only one or two replicas of partitions of alone, which have no" in message
    assert "bring its data folder back, or delete these topics first" in message
    log.do(DeleteTopic(topic_id(9)))
    assert log.do(ReplaceNode(3, NEW)) == 2


def test_partition_of_two_replicas_cannot_leave_one_out() -> None:
    """Its other replica is no majority: the replacement would go on for ever, and admit neither folder."""
    log = with_a_dead_node()
    log.do(Heartbeat(3, 103, 2_000))
    log.do(log.creation(8, "pair", assignments=[[1, 3]]))
    log.do(FenceNode(3, log.machine.nodes[3].heard_index, 3_000))
    assert "partitions of pair, which have no majority without it" in log.refused(ReplaceNode(3, NEW))[1]
    assert log.machine.replacement is None
    assert log.machine.folders[3] == NodeFolder(1, OLD)


def test_the_process_before_counts_as_dead_whatever_it_says() -> None:
    log = with_a_dead_node()
    log.do(ReplaceNode(3, NEW))
    error, message = log.refused(Heartbeat(3, 103, 2_000))
    assert error == KafkaError.STALE_BROKER_EPOCH
    assert "is being replaced" in message
    assert log.machine.nodes[3].fenced


def test_a_new_folder_that_is_lost_as_well_begins_again() -> None:
    log = with_a_dead_node()
    log.do(ReplaceNode(3, NEW))
    log.do(ReplicasLeft(3, NEW, (0, 1, 2, 3)))
    log.do(registration(3, 999, replaces=103, folder=NEW))
    log.do(ReplicasJoined(3, NEW, (0, 1)))
    assert "is alive" in log.refused(ReplaceNode(3, NEWER))[1]
    log.do(FenceNode(3, log.machine.nodes[3].heard_index, 3_000))
    assert log.do(ReplaceNode(3, NEWER)) == 4
    assert log.machine.folders[3] == NodeFolder(3, NEWER)
    assert log.refused(ReplicasJoined(3, NEW, (2,)))[0] == KafkaError.INVALID_REQUEST


def replaced(log: Log, command: ReplaceNode, boot: int, before: int) -> None:
    """Carry a replacement out until it is over, with a process of the new folder, which is fenced then."""
    log.do(command)
    groups = (0, 1, 2, 3)
    log.do(ReplicasLeft(3, command.folder, groups))
    log.do(registration(3, boot, replaces=before, folder=command.folder))
    log.do(ReplicasJoined(3, command.folder, groups))
    assert log.machine.replacement is None
    log.do(FenceNode(3, log.machine.nodes[3].heard_index, 3_000))


@pytest.mark.parametrize("level", [TARGETS - 1, TARGETS])
def test_a_late_duplicate_replaces_no_folder_that_came_since(level: int) -> None:
    """The lost disk's folder would be let in once more, and the living one's taken for the lost one. Below
    the level the command does not say what it is about."""
    log = with_a_dead_node(level)
    command = replacing(log.machine.folders, level, 3, NEW)
    assert command.generation == (2 if level >= TARGETS else 0)
    replaced(log, command, 999, 103)
    replaced(log, replacing(log.machine.folders, level, 3, NEWER), 1_001, 999)
    assert log.machine.folders[3] == NodeFolder(3, NEWER)
    if level < TARGETS:
        assert log.do(command) == 4
        assert log.machine.folders[3] == NodeFolder(4, NEW)
    else:
        assert "got another data folder since" in log.refused(command)[1]
        assert log.machine.folders[3] == NodeFolder(3, NEWER)
        assert log.machine.replacement is None


def test_a_replacement_that_names_its_generation_may_be_repeated() -> None:
    log = with_a_dead_node(TARGETS)
    command = replacing(log.machine.folders, TARGETS, 3, NEW)
    assert log.do(command) == 4
    assert log.do(command) == 4, "the first answer was lost"
    assert log.do(replacing(log.machine.folders, TARGETS, 3, NEW)) == 4, "asked again by an operator"


@pytest.mark.parametrize("left", [(0, 3), (0, 1, 3), (0, 1, 2, 3)])
def test_nobody_waits_for_the_groups_of_a_deleted_topic(left: tuple[int, ...]) -> None:
    log = with_a_dead_node()
    log.do(ReplaceNode(3, NEW))
    log.do(ReplicasLeft(3, NEW, left))
    log.do(ReplicasJoined(3, NEW, (0, 3)))
    assert log.machine.replacement is not None
    log.do(DeleteTopic(topic_id(1)))
    assert log.machine.replacement is None


def test_a_topic_made_meanwhile_counts_the_new_folder_from_the_start() -> None:
    log = with_a_dead_node()
    log.do(ReplaceNode(3, NEW))
    log.do(ReplicasLeft(3, NEW, (0, 1, 2, 3)))
    log.do(registration(3, 999, replaces=103, folder=NEW))
    log.do(log.creation(5, "later", assignments=[[1, 2, 3]]))
    joins = {place.topic: place.joins for place in log.machine.group_changes(3, ()).create}
    assert joins == {"a": True, "b": True, "later": False}


# A node that is removed.


def with_an_idle_dead_node(nodes: int = 4, level: int = REMOVAL) -> Log:
    """The last of these nodes has no replicas, and is dead."""
    log = Log(nodes=nodes - 1, level=level)
    log.do(log.creation(1, "a", partitions=2, replication_factor=3))
    log.do(registration(nodes, levels=(1, level)))
    dead(log, nodes)
    return log


def dead(log: Log, node: int) -> None:
    log.do(FenceNode(node, log.machine.nodes[node].heard_index, 1_000))


def test_a_node_without_replicas_is_forgotten_once_dead_and_its_vote_goes() -> None:
    log = with_an_idle_dead_node()
    log.do(SetDraining(4, True))
    assert log.do(RemoveNode(4)) == 1, "the controller's own group"
    assert list(log.machine.nodes) == [1, 2, 3]
    assert log.machine.draining == frozenset()
    assert log.machine.folders[4] == NodeFolder(2, REMOVED)
    assert log.do(RemoveNode(4)) == 1, "told twice"
    dead(log, 3)
    assert "Node 4 is being removed: wait" in log.refused(ReplaceNode(3, NEW))[1]
    assert log.do(ReplicasLeft(4, REMOVED, (0,))) == 0
    assert log.machine.replacement is None
    assert log.do(RemoveNode(4)) == 0
    again = Controller(lambda index, captured: None)
    again.restore(log.machine.snapshot())
    assert again.snapshot() == log.machine.snapshot()


def test_no_folder_of_a_removed_node_comes_back_and_another_takes_its_id() -> None:
    log = with_an_idle_dead_node()
    log.do(RemoveNode(4))
    log.do(ReplicasLeft(4, REMOVED, (0,)))
    for folder in (504, NEW):
        error, message = log.refused(registration(4, 999, levels=(1, REMOVAL), folder=folder))
        assert error == KafkaError.INVALID_REGISTRATION
        assert "Node 4 was removed from this cluster: start it with an empty data folder" in message
    assert log.refused(Heartbeat(4, 104, 1_000))[0] == KafkaError.BROKER_ID_NOT_REGISTERED
    assert log.do(ReplaceNode(4, NEW)) == 1
    assert log.do(ReplicasLeft(4, NEW, (0,))) == 0
    assert log.do(registration(4, 999, levels=(1, REMOVAL), folder=NEW)) == log.machine.nodes[4]
    assert log.do(ReplicasJoined(4, NEW, (0,))) == 0
    assert log.machine.replacement is None
    assert log.machine.folders[4] == NodeFolder(3, NEW)


@pytest.mark.parametrize("level", [TARGETS - 1, TARGETS])
def test_a_late_duplicate_removes_no_folder_that_came_since(level: int) -> None:
    """The machine that took the id meanwhile is away for a moment, and would be sent away for good."""
    log = with_an_idle_dead_node(level=level)
    command = removing(log.machine.folders, level, 4)
    assert command.generation == (2 if level >= TARGETS else 0)
    assert log.do(command) == 1
    assert log.do(command) == 1, "the first answer was lost"
    assert log.do(removing(log.machine.folders, level, 4)) == 1, "asked again by an operator"
    log.do(ReplicasLeft(4, REMOVED, (0,)))
    replacement = replacing(log.machine.folders, level, 4, NEW)
    log.do(replacement)
    log.do(ReplicasLeft(4, NEW, (0,)))
    log.do(registration(4, 999, levels=(1, level), folder=NEW))
    log.do(ReplicasJoined(4, NEW, (0,)))
    dead(log, 4)
    if level < TARGETS:
        assert log.do(command) == 1
    else:
        assert "got another data folder since" in log.refused(command)[1]
        assert log.machine.folders[4] == NodeFolder(3, NEW)
        assert log.do(removing(log.machine.folders, level, 4)) == 1, "an operator wants this one away, too"
    assert log.machine.folders[4].folder == REMOVED


def test_a_node_that_is_needed_is_not_removed() -> None:
    log = Log(nodes=4, level=REMOVAL)
    assert "Node 4 is alive: stop its process first" in log.refused(RemoveNode(4))[1]
    assert log.refused(RemoveNode(9)) == (KafkaError.BROKER_ID_NOT_REGISTERED, "Node 9 is not registered.")
    log.do(log.creation(1, "a", partitions=4, replication_factor=3))
    dead(log, 4)
    error, message = log.refused(RemoveNode(4))
    assert error == KafkaError.INVALID_REQUEST
    assert "Node 4 has replicas of a: move them to other nodes first" in message
    assert "`strandline node drain 4`" in message


def test_a_node_on_its_way_into_a_partition_is_not_removed() -> None:
    log = with_an_idle_dead_node()
    log.do(Heartbeat(4, 104, 1_000))
    log.do(MoveReplicas(topic_id(1), 0, (1, 2, 4)))
    dead(log, 4)
    assert "Node 4 has replicas of a" in log.refused(RemoveNode(4))[1]


def test_the_others_must_be_a_majority_without_the_node_that_goes() -> None:
    log = with_an_idle_dead_node()
    dead(log, 1)
    dead(log, 2)
    message = log.refused(RemoveNode(4))[1]
    assert "Only 1 of the 3 other nodes are alive, and the controller needs a majority" in message
    alone = Log(nodes=1, level=REMOVAL)
    dead(alone, 1)
    assert "Node 1 is the last one of the cluster" in alone.refused(RemoveNode(1))[1]


def test_one_node_is_removed_or_replaced_at_a_time() -> None:
    log = with_an_idle_dead_node(5)
    dead(log, 3)
    assert log.do(ReplaceNode(3, NEW))
    assert "Node 3 is being replaced: wait" in log.refused(RemoveNode(5))[1]


def test_a_replacement_whose_machine_is_lost_too_ends_by_a_removal_and_others_need_not_wait() -> None:
    log = with_an_idle_dead_node()
    log.do(RemoveNode(4))
    log.do(ReplicasLeft(4, REMOVED, (0,)))
    log.do(ReplaceNode(4, NEW))
    assert log.do(RemoveNode(4)) == 1, "the new one never registered"
    assert log.machine.folders[4] == NodeFolder(4, REMOVED)
    assert log.refused(ReplicasLeft(4, NEW, (0,)))[0] == KafkaError.INVALID_REQUEST
    assert log.do(ReplicasLeft(4, REMOVED, (0,))) == 0
    assert log.machine.replacement is None

    log.do(ReplaceNode(4, NEWER))
    log.do(ReplicasLeft(4, NEWER, (0,)))
    log.do(registration(4, 999, levels=(1, REMOVAL), folder=NEWER))
    assert "Node 4 is alive" in log.refused(RemoveNode(4))[1]
    dead(log, 4)
    assert log.do(RemoveNode(4)) == 1, "it registered, and is no voter yet"
    assert log.refused(ReplicasJoined(4, NEWER, (0,)))[0] == KafkaError.INVALID_REQUEST
    assert log.do(ReplicasLeft(4, REMOVED, (0,))) == 0
    assert 4 not in log.machine.nodes
    dead(log, 3)
    assert log.do(ReplaceNode(3, NEW))
    assert "Node 3 has replicas of a" in log.refused(RemoveNode(3))[1]


def test_a_restored_cluster_needs_no_node_that_was_removed() -> None:
    log = with_an_idle_dead_node()
    log.do(RemoveNode(4))
    assert list(hosts(log.machine._state)) == [1, 2, 3]
