"""Changes of a topic: each plan is a pure function of the state, with Kafka's answers to refused ones.

A plan gives the topic as it would be, or the refusal, and changes nothing. So the same code answers a
request that only asks for validation, and a plan that gives the very topic that is there changed nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from strandline.statemachine.controller import node_folders, topic_config
from strandline.statemachine.controller.assignment import place
from strandline.statemachine.controller.controller_commands import (
    DERIVED,
    AlterTopicConfigs,
    CreateInternalTopic,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    ReplaceTopicConfigs,
)
from strandline.statemachine.controller.controller_state import (
    ControllerState,
    PartitionAssignment,
    Topic,
    metric_name,
)
from strandline.statemachine.controller.feature_levels import TARGETS
from strandline.statemachine.controller.settings import Configs
from strandline.statemachine.controller.topic_config import MIN_INSYNC_REPLICAS
from strandline.statemachine.controller.view_state import HIDDEN_PREFIX, is_hidden, owner_of, reserved
from strandline.statemachine.internal_topics import INTERNAL_TOPICS
from strandline.statemachine.kafka_errors import KafkaError, Refused
from strandline.statemachine.machine import Corruption

MAX_NAME_LENGTH = 249
MAX_PARTITIONS = 10_000
"""Partitions one topic may have, which is what Kafka's controller creates in one request."""
_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_Placement = list[tuple[int, ...]]

TopicCommand = CreateTopic | CreateInternalTopic | CreatePartitions | AlterTopicConfigs | ReplaceTopicConfigs


def invalid_name(name: str) -> str | None:
    """The reason why Kafka refuses a topic of this name; None if it does not."""
    if name == "":
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > MAX_NAME_LENGTH:
        return (
            f"Topic name is invalid: the length of '{name}' is longer than the max allowed length "
            f"{MAX_NAME_LENGTH}"
        )
    if not _NAME.fullmatch(name):
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than ASCII "
            "alphanumerics, '.', '_' and '-'"
        )
    return None


def plan(state: ControllerState, index: int, command: TopicCommand) -> Topic | Refused:
    """The topic as the command, applied at log index `index`, would leave it."""
    if isinstance(command, CreateTopic):
        return _creation(state, index, command)
    if isinstance(command, CreateInternalTopic):
        return state.by_name.get(command.name) or _internal(state, index, command)
    topic = existing(state, command)
    if isinstance(topic, Refused):
        return topic
    if isinstance(command, CreatePartitions):
        return _growth(state, index, topic, command)
    if isinstance(command, AlterTopicConfigs):
        configs = topic_config.TABLE.changed(topic.configs, command.changes)
    else:
        configs = topic_config.TABLE.from_pairs(command.configs)
    if isinstance(configs, Refused):
        return configs
    if refused := _unreachable(configs, _replication_factor(state, topic)):
        return refused
    return topic if configs == topic.configs else topic._replace(configs=configs, version=index)


def put(state: ControllerState, index: int, topic: Topic) -> None:
    """Make a topic that was planned part of the state."""
    state.put_topic(topic)
    state.next_group = max(state.next_group, topic.partitions[-1].group + 1)
    state.version = index


def remove(state: ControllerState, index: int, topic: Topic) -> None:
    """Forget a topic, and with it its groups."""
    state.remove_topic(topic, index)
    node_folders.forget_groups(state, [partition.group for partition in topic.partitions])
    state.version = index


def existing(
    state: ControllerState, command: CreatePartitions | DeleteTopic | AlterTopicConfigs | ReplaceTopicConfigs
) -> Topic | Refused:
    """The topic of a change, which may be any but an internal one; that is deleted only if a node's
    replacement waits for a partition that it has lost.

    The number of an internal topic's partitions decides the place of each key: with one more, every key would
    be elsewhere, and with the topic all groups and transactions would be forgotten.
    """
    topic = state.topics.get(command.topic_id)
    if topic is None:
        return Refused(KafkaError.UNKNOWN_TOPIC_ID, f"There is no topic with id {command.topic_id.hex()}.")
    lost = isinstance(command, DeleteTopic) and node_folders.is_stuck(state, topic)
    if topic.name in INTERNAL_TOPICS and not lost:
        reason = f"Topic '{topic.name}' is internal: it has no records, and only the broker changes it."
        return Refused(KafkaError.INVALID_TOPIC_EXCEPTION, reason)
    shapes = isinstance(command, CreatePartitions | DeleteTopic)
    program = owner_of(state.view_programs, topic.topic_id) if shapes and not lost else None
    if program is not None:
        reason = f"Topic '{topic.name}' is written by the views of program '{program}': change or drop that."
        return Refused(KafkaError.POLICY_VIOLATION, reason)
    return topic


def _internal(state: ControllerState, index: int, command: CreateInternalTopic) -> Topic | Refused:
    if command.topic_id in state.topics or command.topic_id in state.deleted:
        reason = f"Topic id {command.topic_id.hex()} was given to another topic; draw another."
        return Refused(KafkaError.INCONSISTENT_TOPIC_ID, reason)
    placement = _chosen(state, command.partitions, command.replication_factor, ())
    if isinstance(placement, Refused):
        return placement
    return Topic(
        command.topic_id, command.name, _partitions(state, placement), {}, state.cluster_epoch, index
    )


def _creation(state: ControllerState, index: int, command: CreateTopic) -> Topic | Refused:
    if command.made_at >= index:
        raise Corruption(f"entry {index}: a topic id was drawn at {command.made_at}, after its own creation")
    present = state.topics.get(command.topic_id)
    if present and present.name == command.name:
        return present  # a retry whose first attempt was applied
    if refused := _id_refused(state, command, present):
        return refused
    if reason := invalid_name(command.name):
        return Refused(KafkaError.INVALID_TOPIC_EXCEPTION, reason)
    if metric_name(command.name) in INTERNAL_TOPICS:
        reason = f"Topic '{command.name}' has the name of an internal one, which the broker creates itself."
        return Refused(KafkaError.INVALID_TOPIC_EXCEPTION, reason)
    if program := reserved(state.view_programs).get(command.name):
        reason = f"Topic '{command.name}' is that of a view of program '{program}'."
        return Refused(KafkaError.TOPIC_ALREADY_EXISTS, reason)
    if is_hidden(command.name):
        reason = f"Names that begin with '{HIDDEN_PREFIX}' are for topics of views that are being filled."
        return Refused(KafkaError.INVALID_TOPIC_EXCEPTION, reason)
    return planned_creation(state, index, command)


def planned_creation(state: ControllerState, index: int, command: CreateTopic) -> Topic | Refused:
    """As `plan`, also for a name that is kept for views."""
    if command.name in state.by_name:
        return Refused(KafkaError.TOPIC_ALREADY_EXISTS, f"Topic '{command.name}' already exists.")
    if other := state.colliding.get(metric_name(command.name)):
        reason = f"Topic '{command.name}' collides with existing topic: {other}"
        return Refused(KafkaError.INVALID_TOPIC_EXCEPTION, reason)
    configs = topic_config.TABLE.from_pairs(command.configs)
    if isinstance(configs, Refused):
        return configs
    placement = _placement_of_new(state, command)
    if isinstance(placement, Refused):
        return placement
    if refused := _unreachable(configs, len(placement[0])):
        return refused
    partitions = _partitions(state, placement)
    return Topic(command.topic_id, command.name, partitions, configs, state.cluster_epoch, index)


def _unreachable(configs: Configs, replication_factor: int) -> Refused | None:
    """Kafka takes it and refuses every record with acks=all; here the topic's creator is told."""
    wanted = MIN_INSYNC_REPLICAS.of(configs)
    if wanted <= replication_factor:
        return None
    reason = (
        f"Invalid value {wanted} for configuration min.insync.replicas: the topic's replication factor is "
        f"{replication_factor}, so no record could be acknowledged with acks=all"
    )
    return Refused(KafkaError.INVALID_CONFIG, reason)


def _id_refused(state: ControllerState, command: CreateTopic, present: Topic | None) -> Refused | None:
    if present:
        reason = f"Topic id {command.topic_id.hex()} is that of topic '{present.name}'; draw another."
        return Refused(KafkaError.INCONSISTENT_TOPIC_ID, reason)
    if command.topic_id in state.deleted:
        reason = f"Topic '{command.name}' was created under this id and has been deleted since."
        return Refused(KafkaError.UNKNOWN_TOPIC_ID, reason)
    if command.made_at < state.forgotten_index:
        reason = (
            f"The request to create '{command.name}' is too old to tell from a repeated one; make it again."
        )
        return Refused(KafkaError.REQUEST_TIMED_OUT, reason)
    return None


def _placement_of_new(state: ControllerState, command: CreateTopic) -> _Placement | Refused:
    if command.assignments is None:
        if command.partitions <= 0:
            reason = "Number of partitions was set to an invalid non-positive value."
            return Refused(KafkaError.INVALID_PARTITIONS, reason)
        if command.replication_factor <= 0:
            reason = "Replication factor must be larger than 0."
            return Refused(KafkaError.INVALID_REPLICATION_FACTOR, reason)
        return _chosen(state, command.partitions, command.replication_factor, ())
    for name, value in (
        ("replication factor", command.replication_factor),
        ("numPartitions", command.partitions),
    ):
        if value != DERIVED:
            reason = f"A manual partition assignment was specified, but {name} was not set to -1."
            return Refused(KafkaError.INVALID_REQUEST, reason)
    if not command.assignments:
        return Refused(KafkaError.INVALID_REPLICA_ASSIGNMENT, "No partition was assigned any replica.")
    return _given(state, command.assignments, len(command.assignments[0]), 0)


def _growth(state: ControllerState, index: int, topic: Topic, command: CreatePartitions) -> Topic | Refused:
    present = len(topic.partitions)
    if command.count == present:
        return Refused(KafkaError.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    if command.count < present:
        reason = (
            f"The topic {topic.name} currently has {present} partition(s); {command.count} would not be an "
            "increase."
        )
        return Refused(KafkaError.INVALID_PARTITIONS, reason)
    more = command.count - present
    if command.assignments is None:
        placement = _chosen(state, more, _replication_factor(state, topic), topic.partitions)
    elif len(command.assignments) != more:
        reason = (
            f"Attempted to add {more} additional partition(s), but only {len(command.assignments)} "
            "assignment(s) were specified."
        )
        return Refused(KafkaError.INVALID_REPLICA_ASSIGNMENT, reason)
    else:
        placement = _given(state, command.assignments, _replication_factor(state, topic), present)
    if isinstance(placement, Refused):
        return placement
    partitions = topic.partitions + _partitions(state, placement)
    return topic._replace(partitions=partitions, version=index)


def _replication_factor(state: ControllerState, topic: Topic) -> int:
    """Replicas that a partition of the topic is to have: those of the first one, where its move ends.

    Amid a move the replicas that leave are still among a partition's, and count for nothing here.
    """
    move = state.moves.get(topic.partitions[0].group) if state.feature_level >= TARGETS else None
    return topic.replication_factor if move is None else len(move.target)


def _chosen(
    state: ControllerState, count: int, replication_factor: int, present: Sequence[PartitionAssignment]
) -> _Placement | Refused:
    if too_many := _too_many(len(present) + count):
        return too_many
    racks = state.racks()
    if replication_factor > len(racks):
        reason = (
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor "
            f"of {replication_factor} cannot be reached because only {len(racks)} broker(s) are registered"
            f"{', alive and not drained' if state.draining else ' and alive'}."
        )
        return Refused(KafkaError.INVALID_REPLICATION_FACTOR, reason)
    replicas = [partition.replicas for partition in present]
    return place(racks, count, replication_factor, present=replicas, loads=state.loads())


def _given(
    state: ControllerState, assignments: Sequence[Sequence[int]], replication_factor: int, present: int
) -> _Placement | Refused:
    if too_many := _too_many(present + len(assignments)):
        return too_many
    for nodes in assignments:
        if reason := _assignment_fault(state, nodes, replication_factor):
            return Refused(KafkaError.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment {reason}")
    return [tuple(nodes) for nodes in assignments]


def _assignment_fault(state: ControllerState, nodes: Sequence[int], replication_factor: int) -> str | None:
    if not nodes:
        return "includes an empty replica list."
    for position, node in enumerate(nodes):
        registration = state.nodes.get(node)
        if registration is None:
            return f"includes broker {node}, but no such broker is registered."
        if registration.fenced:
            return f"includes broker {node}, which is fenced."
        if node in state.draining:
            return f"includes broker {node}, which is being drained."
        if node in nodes[:position]:
            return f"includes the broker {node} more than once."
    if len(nodes) != replication_factor:
        return (
            f"includes a partition with {len(nodes)} replica(s), but this is not consistent with previous "
            f"partitions, which have {replication_factor} replica(s)."
        )
    return None


def _too_many(count: int) -> Refused | None:
    if count <= MAX_PARTITIONS:
        return None
    reason = (
        f"Excessively large number of partitions per request: {count}, a topic may have {MAX_PARTITIONS}."
    )
    return Refused(KafkaError.POLICY_VIOLATION, reason)


def _partitions(state: ControllerState, placement: _Placement) -> tuple[PartitionAssignment, ...]:
    return tuple(
        PartitionAssignment(group, replicas, state.cluster_epoch)
        for group, replicas in enumerate(placement, state.next_group)
    )
