"""The controller as a whole: nodes, the cluster's counters, what nodes derive from it, log and snapshots."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import msgpack
import pytest

from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_commands import (
    FEATURE_LEVEL,
    NO_TOPIC_ID,
    AddNode,
    AdvanceClusterEpoch,
    AllocateProducerIds,
    AlterAcls,
    AlterClientQuotas,
    AlterGroupConfigs,
    AlterScramCredentials,
    AlterTopicConfigs,
    ApplyViews,
    Bootstrap,
    CancelViews,
    Command,
    ConfigChange,
    ConfigOperation,
    ControllerCheckpoint,
    ControllerOpcode,
    CreateInternalTopic,
    CreatePartitions,
    CreateTopic,
    CutOverViews,
    DeleteTopic,
    DropViews,
    FenceNode,
    Heartbeat,
    MoveReplicas,
    PauseViews,
    ProducerIdBlock,
    RaiseFeatureLevel,
    RegisterNode,
    RemoveNode,
    ReplaceGroupConfigs,
    ReplaceNode,
    ReplaceTopicConfigs,
    ReplicasJoined,
    ReplicasLeft,
    ReplicasMoved,
    ResumeViews,
    SetBalancing,
    SetCollection,
    SetDraining,
    StartViewWorker,
    StopViews,
    ViewsPaused,
    decode,
    encode,
)
from strandline.statemachine.controller.controller_state import DEFAULT_LISTENER, NodeRegistration
from strandline.statemachine.controller.hosted_groups import GroupChanges, PartitionGroup
from strandline.statemachine.internal_topics import GROUPS_TOPIC
from strandline.statemachine.kafka_errors import KafkaError
from strandline.statemachine.machine import Corruption, StateMachine
from tests.statemachine.controller_harness import Log, registration, topic_id


def restored(state: bytes) -> Controller:
    machine = Controller(lambda index, state: None)
    machine.restore(state)
    return machine


# Nodes.


def test_a_node_is_registered_alive_with_its_addresses() -> None:
    log = Log()
    result = log.do(registration(2))
    expected = NodeRegistration(2, 102, "kafka2", 9002, "mesh2", 7002, 8002, 1, 1, False, log.index, 1_000)
    assert result == expected == log.machine.nodes[2]
    assert log.machine.version == log.index


def test_nodes_are_in_the_order_of_their_ids() -> None:
    log = Log()
    for node in (3, 1, 2):
        log.do(registration(node))
    assert list(log.machine.nodes) == [1, 2, 3]


def test_a_reader_keeps_the_picture_it_took() -> None:
    log = Log(nodes=1)
    picture = log.machine.nodes
    log.do(registration(2))
    assert list(picture) == [1]


def test_a_restarted_process_takes_the_place_of_the_one_it_saw() -> None:
    log = Log(nodes=1)
    log.do(registration(1, 200, replaces=101))
    assert log.machine.nodes[1].boot_id == 200


def test_a_late_registration_of_a_process_that_is_gone_does_not_displace_its_successor() -> None:
    log = Log(nodes=1)
    log.do(registration(1, 200, replaces=101))
    message = (
        "Node 1 is registered with boot id 200, not 0: another process of this node registered in between."
    )
    assert log.refused(registration(1)) == (KafkaError.STALE_BROKER_EPOCH, message)
    assert log.refused(registration(1, 300, replaces=101))[0] is KafkaError.STALE_BROKER_EPOCH
    assert log.refused(registration(2, 300, replaces=101))[0] is KafkaError.STALE_BROKER_EPOCH


def test_registering_again_is_safe_and_may_move_the_node() -> None:
    log = Log(nodes=1)
    moved = RegisterNode(1, 101, 0, "elsewhere", 1, "elsewhere", 2, 3, 1, 1, 2_000, 501)
    log.do(moved)
    assert log.machine.nodes[1].kafka_host == "elsewhere"


def test_a_node_may_name_its_listeners() -> None:
    log = Log(nodes=1)
    listeners = (("internal", "kafka2", 9002), ("public", "kafka.example.org", 443))
    log.do(replace(registration(2), listeners=listeners))
    two = log.machine.nodes[2]
    assert two.address("public") == ("public", "kafka.example.org", 443)
    assert two.address("internal") == ("internal", "kafka2", 9002)
    assert two.address(DEFAULT_LISTENER) is None
    assert log.machine.nodes[1].address(DEFAULT_LISTENER) == (DEFAULT_LISTENER, "kafka1", 9001)
    assert log.machine.nodes[1].address("public") is None
    again = restored(log.machine.snapshot())
    assert again.nodes == log.machine.nodes
    assert again.snapshot() == log.machine.snapshot()


def test_without_listeners_an_entry_is_that_of_earlier_releases() -> None:
    entry = msgpack.unpackb(encode(registration(1)))
    assert len(entry) == 13
    assert decode(msgpack.packb(entry)) == registration(1)


@pytest.mark.parametrize(
    "listeners",
    [
        [("a", "h", 0)],
        [("a", "", 1)],
        [("a", "h", 1), ("a", "h", 2)],
        [(f"l{n}", "h", 1) for n in range(17)],
        [("a", "h")],
    ],
)
def test_listeners_that_no_node_may_write_down(listeners: Any) -> None:
    with pytest.raises(Corruption):
        encode(replace(registration(1), listeners=listeners))


def test_a_snapshot_before_listeners_is_read() -> None:
    log = eventful()
    fields = msgpack.unpackb(log.machine.snapshot())
    fields["format"] = 4
    del fields["credentials"], fields["acls"], fields["view_programs"], fields["client_quotas"]
    fields["nodes"] = [row[:-1] for row in fields["nodes"]]
    assert restored(msgpack.packb(fields)).nodes == log.machine.nodes


def test_a_node_that_does_not_understand_the_cluster_is_refused() -> None:
    log = Log()
    message = (
        "Node 1 understands feature levels 2 to 3, the cluster is at 1: install a release that understands "
        "it."
    )
    assert log.refused(registration(1, levels=(2, 3))) == (KafkaError.UNSUPPORTED_VERSION, message)


def test_a_heartbeat_ends_a_fence_and_is_otherwise_no_news() -> None:
    log = Log(nodes=1)
    version = log.machine.version
    log.do(Heartbeat(1, 101, 5_000))
    heard = log.machine.nodes[1]
    assert (heard.heard_index, heard.heard_time, log.machine.version) == (log.index, 5_000, version)
    log.do(FenceNode(1, heard.heard_index, 9_000))
    assert log.fenced(1)
    assert log.machine.version == log.index
    log.do(Heartbeat(1, 101, 10_000))
    assert not log.fenced(1)
    assert log.machine.version == log.index


def test_a_node_that_was_heard_meanwhile_is_not_fenced() -> None:
    log = Log(nodes=1)
    decided_on = log.machine.nodes[1].heard_index
    log.do(Heartbeat(1, 101, 1_000))
    version = log.machine.version
    result = log.do(FenceNode(1, decided_on, 1_000))
    assert isinstance(result, NodeRegistration)
    assert not result.fenced
    assert log.machine.version == version


def test_fencing_twice_is_fencing_once() -> None:
    log = Log(nodes=1)
    command = FenceNode(1, log.machine.nodes[1].heard_index, 1_000)
    log.do(command)
    version = log.machine.version
    result = log.do(command)
    assert result == log.machine.nodes[1]
    assert log.machine.nodes[1].fenced
    assert log.machine.version == version


def test_registering_ends_a_fence() -> None:
    log = Log(nodes=1)
    log.do(FenceNode(1, log.machine.nodes[1].heard_index, 1_000))
    log.do(registration(1))
    assert not log.machine.nodes[1].fenced


def test_time_never_goes_back() -> None:
    log = Log(nodes=2)
    log.do(Heartbeat(1, 101, 9_000))
    log.do(Heartbeat(2, 102, 3_000))
    assert log.machine.nodes[2].heard_time == 9_000


def test_a_heartbeat_of_another_process_is_refused() -> None:
    log = Log(nodes=1)
    message = "Node 1 is registered with boot id 101, not 200."
    assert log.refused(Heartbeat(1, 200, 0)) == (KafkaError.STALE_BROKER_EPOCH, message)


@pytest.mark.parametrize("command", [Heartbeat(9, 1, 0), FenceNode(9, 0, 0), AllocateProducerIds(9, 1)])
def test_a_node_that_is_not_registered_is_refused(command: Command) -> None:
    assert Log(nodes=1).refused(command) == (KafkaError.BROKER_ID_NOT_REGISTERED, "Node 9 is not registered.")


def test_a_fence_for_a_future_heartbeat_is_corruption() -> None:
    log = Log(nodes=1)
    with pytest.raises(Corruption, match="node 1 was not heard at 99"):
        log.do(FenceNode(1, 99, 0))


# The cluster.


def test_a_cluster_is_named_once() -> None:
    log = Log()
    assert log.state()["cluster_id"] is None
    assert log.do(Bootstrap("a", "i")) == log.machine.cluster_id == "a"
    version = log.machine.version
    assert log.do(Bootstrap("a", "i")) == "a"
    assert log.machine.version == version
    assert log.refused(Bootstrap("b", "i")) == (
        KafkaError.INCONSISTENT_CLUSTER_ID,
        "This is cluster a, not b.",
    )


def test_the_cluster_epoch_starts_at_one_and_only_grows() -> None:
    log = Log()
    assert log.machine.cluster_epoch == 1
    assert [log.do(AdvanceClusterEpoch(epoch)) for epoch in (2, 7, 7, 3)] == [2, 7, 7, 7]
    assert log.machine.cluster_epoch == 7


def test_the_cluster_epoch_is_no_news_to_metadata() -> None:
    log = Log(nodes=1)
    version = log.machine.version
    log.do(AdvanceClusterEpoch(2))
    log.do(AllocateProducerIds(1, 10))
    assert log.machine.version == version


def test_producer_ids_are_given_once() -> None:
    log = Log(nodes=2)
    blocks = [log.do(AllocateProducerIds(node, size)) for node, size in ((1, 1000), (2, 5), (1, 1000))]
    assert blocks == [ProducerIdBlock(0, 1000), ProducerIdBlock(1000, 5), ProducerIdBlock(1005, 1000)]


def test_a_block_of_producer_ids_is_bounded() -> None:
    log = Log(nodes=1)
    message = "1000001 producer ids are too many for a block, ask for 1000000 at most."
    assert log.refused(AllocateProducerIds(1, 1_000_001)) == (KafkaError.INVALID_REQUEST, message)


def test_producer_ids_end_and_do_not_start_over() -> None:
    log = Log(nodes=1)
    fields = msgpack.unpackb(log.machine.snapshot())
    fields["next_producer_id"] = 2**63 - 11
    log.machine.restore(msgpack.packb(fields))
    refusal = KafkaError.UNKNOWN_SERVER_ERROR, "All producer ids have been used."
    assert log.refused(AllocateProducerIds(1, 11)) == refusal
    assert log.do(AllocateProducerIds(1, 10)) == ProducerIdBlock(2**63 - 11, 10)
    assert log.refused(AllocateProducerIds(1, 1)) == refusal


def at_level(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that this release understands feature levels up to `level`."""
    monkeypatch.setattr("strandline.statemachine.controller.controller_nodes.FEATURE_LEVEL", level)
    monkeypatch.setattr("strandline.statemachine.controller.controller_commands.FEATURE_LEVEL", level)


def test_the_feature_level_rises_once_every_node_understands_it(monkeypatch: pytest.MonkeyPatch) -> None:
    at_level(3, monkeypatch)
    log = Log()
    log.do(registration(1, levels=(1, 3)))
    log.do(registration(2, levels=(1, 2)))
    message = "Node 2 understands feature levels up to 2, not 3: upgrade it first."
    assert log.refused(RaiseFeatureLevel(3)) == (KafkaError.FEATURE_UPDATE_FAILED, message)
    assert log.do(RaiseFeatureLevel(2)) == log.machine.feature_level == 2
    assert log.machine.version == log.index
    version = log.machine.version
    assert log.do(RaiseFeatureLevel(2)) == 2
    assert log.machine.version == version
    message = "The cluster is at feature level 2, it cannot go back to 1."
    assert log.refused(RaiseFeatureLevel(1)) == (KafkaError.INVALID_UPDATE_VERSION, message)
    assert log.refused(registration(3))[0] is KafkaError.UNSUPPORTED_VERSION


def test_a_feature_level_this_release_does_not_know_is_neither_proposed_nor_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unknown = FEATURE_LEVEL + 1
    with pytest.raises(Corruption, match=f"feature level {unknown} is unknown here, this release knows"):
        encode(RaiseFeatureLevel(unknown))
    log = Log()
    log.do(registration(1, levels=(1, unknown)))
    with pytest.raises(Corruption, match=rf"raises the feature level to {unknown}, .* upgrade this node"):
        log.machine.apply(9, 1, msgpack.packb([ControllerOpcode.RAISE_FEATURE_LEVEL, unknown]))
    with pytest.raises(Corruption, match=rf"raises the feature level to {unknown}, .* upgrade this node"):
        log.machine.apply(10, 1, msgpack.packb([ControllerOpcode.BOOTSTRAP, "a", "i", unknown]))


def test_a_checkpoint_hands_out_the_state_of_its_own_entry() -> None:
    log = Log(nodes=1)
    assert log.do(ControllerCheckpoint()) == log.index
    assert log.checkpoints == [(log.index, log.machine.snapshot())]


# What a node derives.


def test_a_node_is_told_which_groups_to_create_and_remove() -> None:
    log = Log(nodes=3)
    log.do(log.creation(1, assignments=[[1, 2], [2, 3]]))
    log.do(AdvanceClusterEpoch(4))
    log.do(log.creation(2, assignments=[[3, 1]]))
    first = PartitionGroup(1, topic_id(1), "t1", 0, (1, 2), 1)
    third = PartitionGroup(3, topic_id(2), "t2", 0, (3, 1), 4)
    assert log.machine.group_changes(1, ()) == GroupChanges((first, third), ())
    assert log.machine.group_changes(1, [1]) == GroupChanges((third,), ())
    assert log.machine.group_changes(1, {1: "dict", 3: "keys"}) == GroupChanges((), ())
    log.do(DeleteTopic(topic_id(1)))
    assert log.machine.group_changes(1, [3, 1]) == GroupChanges((), (1,))
    assert log.machine.group_changes(2, [2, 1]) == GroupChanges((), (1, 2))
    assert log.machine.group_changes(9, ()) == GroupChanges((), ())


def test_a_group_the_node_has_no_replica_of_has_moved_away_and_is_not_removed() -> None:
    log = Log(nodes=2)
    log.do(log.creation(1, assignments=[[1]]))
    assert log.machine.group_changes(2, [1]) == GroupChanges((), ())
    assert log.machine.moved_away(2, 1)
    assert not log.machine.moved_away(1, 1)
    assert not log.machine.moved_away(2, 2), "a group that is not known here yet"


def test_the_controllers_own_group_is_never_removed() -> None:
    assert Log(nodes=1).machine.group_changes(1, [0]) == GroupChanges((), ())


def test_a_controller_that_is_behind_does_not_remove_groups_it_has_not_heard_of() -> None:
    log = Log(nodes=1)
    log.do(log.creation(1, partitions=2))
    behind = restored(log.machine.snapshot())
    log.do(CreatePartitions(topic_id(1), 3, None))
    assert behind.group_changes(1, [1, 2, 3]) == GroupChanges((), ())
    assert log.machine.group_changes(1, [1, 2, 3]) == GroupChanges((), ())


def test_the_changes_are_the_same_after_a_restart() -> None:
    log = Log(nodes=3)
    for number in (1, 2, 3):
        log.do(log.creation(number, partitions=4, replication_factor=2))
    log.do(DeleteTopic(topic_id(2)))
    again = restored(log.machine.snapshot())
    for node in (1, 2, 3):
        assert again.group_changes(node, [5, 6, 7]) == log.machine.group_changes(node, [5, 6, 7])


# The log.


def test_it_is_a_state_machine() -> None:
    machine: StateMachine = Log().machine
    assert machine.kind == "controller"


def test_the_leader_is_known() -> None:
    log = Log()
    log.machine.begin_term(2, 5, 3)
    assert log.machine.leader == 3
    assert log.machine.applied_index == 2


@pytest.mark.parametrize(("index", "term"), [(3, 1), (3, 0), (2, 2), (1, 2)])
def test_a_term_or_an_index_that_does_not_go_up_is_corruption(index: int, term: int) -> None:
    log = Log(nodes=1)
    with pytest.raises(Corruption, match=f"entry {index}"):
        log.machine.begin_term(index, term, 2)


@pytest.mark.parametrize(("index", "term"), [(2, 2), (3, 1)])
def test_an_entry_that_comes_again_or_from_an_earlier_term_is_corruption(index: int, term: int) -> None:
    log = Log()
    log.machine.begin_term(2, 2, 1)
    with pytest.raises(Corruption, match=f"entry {index}"):
        log.machine.apply(index, term, encode(AdvanceClusterEpoch(2)))


COMMANDS: list[Command] = [
    MoveReplicas(topic_id(1), 0, (1, 2)),
    MoveReplicas(topic_id(1), 0, None),
    ReplicasMoved(((1, (1, 2), 7), (2, (), -1))),
    Bootstrap("a", "i"),
    Bootstrap("a", "i", 2),
    registration(1),
    registration(1, rack="east"),
    SetDraining(3, True),
    Heartbeat(1, 2, 3),
    FenceNode(1, 2, 3),
    CreateTopic(topic_id(1), "a", -1, -1, ((1, 2), (2, 1)), (("x", "y"), ("z", None)), 3),
    CreateTopic(topic_id(1), "a", 1, 1, None, (), 0),
    CreatePartitions(topic_id(1), 4, ((1,),)),
    CreatePartitions(topic_id(1), 4, None),
    DeleteTopic(topic_id(1)),
    AlterTopicConfigs(topic_id(1), (ConfigChange(ConfigOperation.SET, "a", "b"),)),
    ReplaceTopicConfigs(topic_id(1), (("a", "b"),)),
    AdvanceClusterEpoch(2**63 - 1),
    AllocateProducerIds(1, 1),
    RaiseFeatureLevel(1),
    ControllerCheckpoint(),
    SetCollection(True),
    SetCollection(False),
    SetBalancing(True),
    SetBalancing(False),
    AlterGroupConfigs("g", (ConfigChange(ConfigOperation.SET, "a", "b"),)),
    ReplaceGroupConfigs("g", (("a", "b"),)),
    AlterScramCredentials("alice", (2,), ((1, 4096, b"salt", bytes(32), bytes(32)),)),
    AlterAcls(((2, "t", 3, "User:alice", "*", 3, 3),), ((5, "id", 4, "User:*", "10.0.0.1", 2, 2),)),
    AlterClientQuotas("alice", "", (("producer_byte_rate", 1.5), ("request_percentage", None))),
    AlterClientQuotas(None, "app", ()),
    CreateInternalTopic(topic_id(1), GROUPS_TOPIC, 16, 3),
    ReplaceNode(3, 2**62),
    ReplaceNode(3, 2**62, 4),
    RemoveNode(3),
    RemoveNode(3, 5),
    AddNode(4, 104, "k", 9004, "m", 7004, 8004, 1, 4, 1_000, 504),
    AddNode(4, 104, "k", 9004, "m", 7004, 8004, 1, 4, 1_000, 504, (("internal", "h", 1),), "east"),
    ReplicasLeft(3, 0, (0,)),
    ReplicasLeft(3, 7, (0, 1, 2)),
    ReplicasJoined(3, 7, ()),
    ApplyViews("p", 2**62, "CREATE …", (("v", "t", topic_id(1), 3, "d" * 64),), ("a", "b"), 3, 0),
    DropViews("p", 7),
    CancelViews("p", 8, "why"),
    StartViewWorker("p", 8, True, 2**62),
    StartViewWorker("p", 8, True, 2**62, 0),
    StopViews("p", 8, 1, "a bad record"),
    PauseViews("p", 8, 1, b"cut"),
    ViewsPaused("p", 7, 1, 2, b"cut"),
    ResumeViews("p", 8, 2),
    CutOverViews("p", 8, 1, 0, "views/7/8/1"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_read_as_it_was_written(command: Command) -> None:
    assert decode(encode(command)) == command


def test_every_kind_of_command_is_tried() -> None:
    assert {msgpack.unpackb(encode(command))[0] for command in COMMANDS} == set(ControllerOpcode)


FIRST_VALUES: Final = {
    ControllerOpcode.BOOTSTRAP: 2,
    ControllerOpcode.REGISTER_NODE: 12,
    ControllerOpcode.HEARTBEAT: 3,
    ControllerOpcode.FENCE_NODE: 3,
    ControllerOpcode.CREATE_TOPIC: 7,
    ControllerOpcode.CREATE_PARTITIONS: 3,
    ControllerOpcode.DELETE_TOPIC: 1,
    ControllerOpcode.ALTER_TOPIC_CONFIGS: 2,
    ControllerOpcode.REPLACE_TOPIC_CONFIGS: 2,
    ControllerOpcode.ADVANCE_CLUSTER_EPOCH: 1,
    ControllerOpcode.ALLOCATE_PRODUCER_IDS: 2,
    ControllerOpcode.RAISE_FEATURE_LEVEL: 1,
    ControllerOpcode.CHECKPOINT: 0,
    ControllerOpcode.SET_COLLECTION: 1,
    ControllerOpcode.CREATE_INTERNAL_TOPIC: 4,
    ControllerOpcode.REPLACE_NODE: 2,
    ControllerOpcode.REPLICAS_LEFT: 3,
    ControllerOpcode.REPLICAS_JOINED: 3,
    ControllerOpcode.ALTER_GROUP_CONFIGS: 2,
    ControllerOpcode.REPLACE_GROUP_CONFIGS: 2,
    ControllerOpcode.MOVE_REPLICAS: 3,
    ControllerOpcode.REPLICAS_MOVED: 1,
    ControllerOpcode.ALTER_SCRAM_CREDENTIALS: 3,
    ControllerOpcode.ALTER_ACLS: 2,
    ControllerOpcode.APPLY_VIEWS: 7,
    ControllerOpcode.DROP_VIEWS: 2,
    ControllerOpcode.CANCEL_VIEWS: 3,
    ControllerOpcode.START_VIEW_WORKER: 4,
    ControllerOpcode.STOP_VIEWS: 4,
    ControllerOpcode.PAUSE_VIEWS: 4,
    ControllerOpcode.VIEWS_PAUSED: 5,
    ControllerOpcode.RESUME_VIEWS: 3,
    ControllerOpcode.CUT_OVER_VIEWS: 5,
    ControllerOpcode.ALTER_CLIENT_QUOTAS: 3,
    ControllerOpcode.SET_DRAINING: 2,
    ControllerOpcode.REMOVE_NODE: 1,
    ControllerOpcode.ADD_NODE: 13,
    ControllerOpcode.SET_BALANCING: 1,
}
"""Values of each kind's entry in the release that brought it. No later release may change one."""


def test_every_command_can_be_written_as_the_release_that_brought_it_reads_it() -> None:
    """A field that a later release adds has a place among `_LATER`: without one this release reads no log of
    an earlier release, nor that one an entry of this release in a cluster of both."""
    fewest: dict[ControllerOpcode, int] = {}
    for command in COMMANDS:
        kind, *values = msgpack.unpackb(encode(command))
        fewest[kind] = min(len(values), fewest.get(kind, len(values)))
    assert fewest == FIRST_VALUES


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ([99], "99 is not a valid ControllerOpcode"),
        ([], "not enough values"),
        ({}, "is not an array"),
        ([ControllerOpcode.DELETE_TOPIC], "argument 2 is shorter"),
        ([ControllerOpcode.CHECKPOINT, 1], "argument 2 is longer"),
        ([ControllerOpcode.DELETE_TOPIC, b"short"], "b'short' is not the id of a topic"),
        ([ControllerOpcode.DELETE_TOPIC, NO_TOPIC_ID], "is not the id of a topic"),
        ([ControllerOpcode.DELETE_TOPIC, "x" * 16], "is not the id of a topic"),
        ([ControllerOpcode.BOOTSTRAP, ""], "'' has no 1 to 255 characters"),
        ([ControllerOpcode.BOOTSTRAP, "x" * 256], "has no 1 to 255 characters"),
        ([ControllerOpcode.BOOTSTRAP, b"x"], "b'x' is not text"),
        ([ControllerOpcode.ADVANCE_CLUSTER_EPOCH, 0], "0 is not a whole number from 1"),
        ([ControllerOpcode.ADVANCE_CLUSTER_EPOCH, 2**63], "9223372036854775808 is not a whole number"),
        ([ControllerOpcode.ADVANCE_CLUSTER_EPOCH, 2.0], "2.0 is not a whole number"),
        ([ControllerOpcode.ADVANCE_CLUSTER_EPOCH, True], "True is not a whole number"),
        ([ControllerOpcode.SET_COLLECTION, 1], "1 is neither true nor false"),
        (
            [ControllerOpcode.CREATE_INTERNAL_TOPIC, topic_id(1), "flights", 1, 1],
            "'flights' is not one of the internal",
        ),
        (
            [ControllerOpcode.CREATE_INTERNAL_TOPIC, topic_id(1), GROUPS_TOPIC, 0, 1],
            "0 is not a whole number from 1",
        ),
        ([ControllerOpcode.HEARTBEAT, 65536, 1, 0], "65536 is not a whole number from 1 to 65535"),
        ([ControllerOpcode.HEARTBEAT, 1, 1, -1], "-1 is not a whole number from 0"),
        ([ControllerOpcode.CREATE_PARTITIONS, topic_id(1), 2, [1]], "1 is not an array"),
        (
            [ControllerOpcode.ALTER_TOPIC_CONFIGS, topic_id(1), [[9, "a", "b"]]],
            "9 is not a valid ConfigOperation",
        ),
        ([ControllerOpcode.REPLACE_TOPIC_CONFIGS, topic_id(1), [["a"]]], "not enough values"),
        (
            [ControllerOpcode.REGISTER_NODE, 1, 1, 0, "a", 1, "a", 1, 1, 2, 1, 0, 7],
            "node 1 understands no feature level",
        ),
        (
            [ControllerOpcode.REGISTER_NODE, 1, 1, 0, "a", 0, "a", 1, 1, 1, 1, 0],
            "0 is not a whole number from 1 to 65535",
        ),
    ],
)
def test_what_is_not_a_command_is_corruption(entry: Any, reason: str) -> None:
    with pytest.raises(Corruption, match=reason):
        decode(msgpack.packb(entry))
    log = Log()
    with pytest.raises(Corruption, match=reason):
        log.machine.apply(2, 1, msgpack.packb(entry))


@pytest.mark.parametrize("entry", [b"", b"\xc1", b"\x91", b"\xff\xff"])
def test_bytes_that_are_no_message_are_corruption(entry: bytes) -> None:
    with pytest.raises(Corruption, match="not a command of the controller"):
        decode(entry)


@pytest.mark.parametrize(
    "command",
    [AdvanceClusterEpoch(0), AdvanceClusterEpoch(2**70), DeleteTopic(b""), Bootstrap("\ud800", "i")],
)
def test_what_would_stop_every_replica_is_refused_where_it_is_made(command: Command) -> None:
    with pytest.raises(Corruption):
        encode(command)


# Snapshots.


def eventful() -> Log:
    log = Log(nodes=3)
    log.do(Bootstrap("a", "i"))
    log.do(FenceNode(2, log.machine.nodes[2].heard_index, 77))
    log.do(log.creation(5, "z", partitions=2, configs=[("retention.ms", "5")]))
    log.do(AdvanceClusterEpoch(9))
    log.do(log.creation(1, "a", partitions=1, replication_factor=2))
    log.do(log.creation(3, "m"))
    log.do(DeleteTopic(topic_id(3)))
    log.do(AllocateProducerIds(1, 10))
    log.do(SetCollection(True))
    log.do(ReplaceNode(2, 902))
    log.do(ReplicasLeft(2, 902, (0,)))
    return log


def test_a_restored_machine_answers_like_the_one_it_came_from() -> None:
    log = eventful()
    again = restored(log.machine.snapshot())
    assert again.snapshot() == log.machine.snapshot()
    assert again.topics == log.machine.topics
    assert again.nodes == log.machine.nodes
    assert again.folders == log.machine.folders
    assert again.replacement == log.machine.replacement is not None
    assert again.collection_paused
    for name in ("cluster_id", "cluster_epoch", "feature_level", "version", "applied_index", "leader"):
        assert getattr(again, name) == getattr(log.machine, name)
    command = encode(log.creation(6, partitions=3))
    assert again.apply(log.index + 1, 1, command) == log.machine.apply(log.index + 1, 1, command)
    assert again.snapshot() == log.machine.snapshot()


def test_a_snapshot_of_the_format_before_moves_is_read() -> None:
    log = eventful()
    fields = msgpack.unpackb(log.machine.snapshot())
    later = ("moves", "moved", "credentials", "acls", "view_programs", "client_quotas")
    assert [fields.pop(name) for name in later] == [[], [], [], [], [], []]
    again = restored(msgpack.packb({**fields, "format": 4}))
    assert again.snapshot() == log.machine.snapshot()


def test_a_snapshot_names_its_fields() -> None:
    fields = msgpack.unpackb(eventful().machine.snapshot())
    assert list(fields) == [
        "format", "cluster_id", "incarnation", "feature_level", "cluster_epoch", "next_group",
        "next_producer_id", "time", "term", "leader", "applied_index", "version", "forgotten_index",
        "collection_paused", "topics", "nodes", "folders", "replacement", "moves", "moved", "deleted",
        "group_configs", "credentials", "acls", "view_programs", "client_quotas",
    ]  # fmt: skip
    assert fields["topics"][1] == [topic_id(1), "a", [[3, [1, 3], 9]], {}, 9, 9]
    assert fields["deleted"] == [[topic_id(3), 11]]


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("format", 14, "it has format 14, this release reads up to 13: upgrade this node"),
        ("format", 3, "it has format 3 of an earlier release, this one reads 4 to 13"),
        ("surplus", 1, "its fields are cluster_id, .*surplus"),
        ("topics", [[1]], "not enough values"),
        ("next_group", 3, "group 3 was never allocated"),
    ],
)
def test_a_snapshot_that_cannot_be_read_changes_nothing(field: str, value: Any, reason: str) -> None:
    log = eventful()
    before = log.machine.snapshot()
    fields = msgpack.unpackb(before)
    fields[field] = value
    with pytest.raises(ValueError, match=f"the controller's state cannot be read: .*{reason}"):
        log.machine.restore(msgpack.packb(fields))
    assert log.machine.snapshot() == before


@pytest.mark.parametrize("cut", [0, 1, 20, -1])
def test_a_snapshot_that_is_cut_short_cannot_be_read(cut: int) -> None:
    state = eventful().machine.snapshot()[:cut]
    with pytest.raises(ValueError, match="the controller's state cannot be read"):
        restored(state)
