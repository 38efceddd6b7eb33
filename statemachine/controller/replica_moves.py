"""Moves of partitions to other nodes: Kafka's partition reassignment (KIP-455).

A move is a target in the controller's log, nothing more. While it lasts the partition's replicas are those of
the target and all others that may still be members, so every one of them is hosted. The leader of its group
adds the members that are missing and then removes those that shall go, one at a time (Raft §6), and reports
the move when exactly the target's members are committed. Whatever is asked for in between only sets another
target: a move is cancelled by going back to where the partition was.
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.statemachine.controller import node_folders
from strandline.statemachine.controller.controller_commands import ANY_MOVE, MoveReplicas, ReplicasMoved
from strandline.statemachine.controller.controller_state import ControllerState, Move, Topic
from strandline.statemachine.controller.topic_config import MIN_INSYNC_REPLICAS
from strandline.statemachine.kafka_errors import KafkaError, Refused

MOST_REPLICAS = 32
"""Replicas that one partition may be given; each further one costs its leader as much as the first."""


def move(state: ControllerState, index: int, command: MoveReplicas) -> Topic | Refused:
    """Begin, redirect or cancel the move of one partition; the topic as it then is."""
    found = _found(state, command)
    if isinstance(found, Refused):
        return found
    topic, target = found
    partition = topic.partitions[command.partition]
    present = state.moves.get(partition.group)
    if present is not None and target == present.target:
        return topic
    if present is None and target == partition.replicas:
        return topic
    leaving = tuple(node for node in partition.replicas if node not in target)
    if present is not None or set(target) != set(partition.replicas):
        original = present.original if present is not None else partition.replicas
        state.moves[partition.group] = Move(target, original, index)
    state.put_replicas(topic, command.partition, target + leaving)
    state.version = index
    return state.topics[topic.topic_id]


def validate(state: ControllerState, command: MoveReplicas) -> Refused | None:
    """The refusal that applying the command now would give; changes nothing."""
    found = _found(state, command)
    return found if isinstance(found, Refused) else None


def moved(state: ControllerState, index: int, command: ReplicasMoved) -> int:
    """Groups have the members of their targets; how many moves are left."""
    for group, target, since in command.groups:
        present = state.moves.get(group)
        if present is None or present.target != tuple(target) or since not in (ANY_MOVE, present.since):
            continue
        topic_id, number = state.places[group]
        del state.moves[group]
        state.moved.add(group)
        state.put_replicas(state.topics[topic_id], number, present.target)
        node_folders.forget_moved(state, group, present.target)
        state.version = index
    return len(state.moves)


def joins(state: ControllerState, group: int, node: int) -> bool:
    """Whether a node that has nothing of the group is to learn its members from the leader.

    The group was there before: it ended a move, or it began on other nodes and moves for the first time.
    """
    present = state.moves.get(group)
    return group in state.moved or (present is not None and node not in present.original)


def founders(state: ControllerState, group: int, replicas: tuple[int, ...]) -> tuple[int, ...]:
    """The members that the group begins with on each of them, if it never began."""
    present = state.moves.get(group)
    return replicas if present is None else present.original


def _found(state: ControllerState, command: MoveReplicas) -> tuple[Topic, tuple[int, ...]] | Refused:
    """The topic and the target of a command that may be carried out."""
    topic = state.topics.get(command.topic_id)
    if topic is None:
        return Refused(KafkaError.UNKNOWN_TOPIC_ID, f"There is no topic with id {command.topic_id.hex()}.")
    if not 0 <= command.partition < len(topic.partitions):
        reason = f"Topic {topic.name} has no partition {command.partition}."
        return Refused(KafkaError.UNKNOWN_TOPIC_OR_PARTITION, reason)
    partition = topic.partitions[command.partition]
    present = state.moves.get(partition.group)
    if command.target is not None:
        target = tuple(command.target)
        fault = _fault(state, topic, partition.replicas, target)
        return fault or (topic, target)
    if present is None:
        return Refused(KafkaError.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    return topic, present.original


def _fault(
    state: ControllerState, topic: Topic, replicas: Sequence[int], target: Sequence[int]
) -> Refused | None:
    reason = _reason(state, topic, replicas, target)
    if reason is None:
        return None
    return Refused(KafkaError.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment {reason}")


def _reason(
    state: ControllerState, topic: Topic, replicas: Sequence[int], target: Sequence[int]
) -> str | None:
    if not target:
        return "includes an empty replica list."
    if len(target) > MOST_REPLICAS:
        return f"includes {len(target)} replicas, and a partition may have {MOST_REPLICAS}."
    for position, node in enumerate(target):
        registration = state.nodes.get(node)
        if node in target[:position]:
            return f"includes the broker {node} more than once."
        if registration is None:
            return f"includes broker {node}, but no such broker is registered."
        if registration.fenced and node not in replicas:
            return f"includes broker {node}, which is not alive: start it first, or name another."
        if node in state.draining and node not in replicas:
            return f"includes broker {node}, which is being drained: name another, or end that."
    if below_minimum(topic, target):
        wanted = MIN_INSYNC_REPLICAS.of(topic.configs)
        return (
            f"includes {len(target)} replica(s), and min.insync.replicas of the topic is {wanted}, so no "
            "record could be acknowledged with acks=all: lower it first."
        )
    return None


def below_minimum(topic: Topic, replicas: Sequence[int]) -> bool:
    """Whether the topic's min.insync.replicas asks for more than these replicas of a partition."""
    return MIN_INSYNC_REPLICAS.of(topic.configs) > len(replicas)
