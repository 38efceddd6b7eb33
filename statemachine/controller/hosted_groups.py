"""The groups that a node has to host, as the controller's state has it.

It is a function of the state, not of what happened: one call is right after an entry, after a restart and
after a snapshot was installed, and a call that was missed does no harm.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from strandline.statemachine.controller import replica_moves
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP, ControllerState


class PartitionGroup(NamedTuple):
    """A Raft group as a node has to create it."""

    group: int
    topic_id: bytes
    topic: str
    partition: int
    replicas: tuple[int, ...]
    """The members that the group begins with, if it never began."""
    creation_epoch: int
    joins: bool = False
    """The group was there before this node's data folder, or before it came to this node: its members are to
    be learned from its leader."""


class GroupChanges(NamedTuple):
    """Replicas that a node has to create and remove, by group id."""

    create: tuple[PartitionGroup, ...]
    remove: tuple[int, ...]


def changes(state: ControllerState, node: int, hosted: Collection[int]) -> GroupChanges:
    """The difference between the groups `hosted` on a node and those that it should have.

    A group that this replica of the controller has not heard of yet is left alone: a node that comes
    back may host groups its controller, still catching up, does not know.
    """
    missing = state.hosted.get(node, set()) - set(hosted)
    replaced = state.replacement
    joins = replaced.leaving | replaced.joining if replaced and replaced.node == node else frozenset()
    create = (
        _partition_group(state, group, group in joins or replica_moves.joins(state, group, node))
        for group in sorted(missing)
    )
    return GroupChanges(tuple(create), gone(state, hosted))


def gone(state: ControllerState, hosted: Collection[int]) -> tuple[int, ...]:
    """Those of the groups `hosted` that went with their topic, for ever."""
    return tuple(sorted(group for group in hosted if is_gone(state, group)))


def is_gone(state: ControllerState, group: int) -> bool:
    """Whether a partition's group went with its topic; false for one that is not known here yet."""
    return CONTROLLER_GROUP < group < state.next_group and group not in state.places


def moved_away(state: ControllerState, node: int, group: int) -> bool:
    """Whether a partition's group is there, and not on this node as far as this state knows.

    An earlier or a later state may say otherwise, so more is needed before a replica is given up.
    """
    return group in state.places and group not in state.hosted.get(node, ())


def _partition_group(state: ControllerState, group: int, joins: bool) -> PartitionGroup:
    topic_id, number = state.places[group]
    topic = state.topics[topic_id]
    _, replicas, creation_epoch = topic.partitions[number]
    founders = replica_moves.founders(state, group, replicas)
    return PartitionGroup(group, topic_id, topic.name, number, founders, creation_epoch, joins)
