"""The generations of a classic group: how one starts, is assigned, and has a static member replaced.

A command names the generation that it was made in, and one of another generation is refused. The rules are
those of Kafka's ClassicGroup.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from strandline.statemachine.groups.classic_group import ClassicGroup, member_of_row
from strandline.statemachine.groups.group_commands import (
    GenerationAssigned,
    GenerationStarted,
    GroupOpcode,
    MemberReplaced,
)
from strandline.statemachine.groups.group_state import GroupsState
from strandline.statemachine.kafka_errors import KafkaError, Refused
from strandline.statemachine.machine import Corruption


def start_generation(
    state: GroupsState,
    index: int,
    group_id: str,
    generation: int,
    protocol_type: str,
    protocol_name: str,
    leader: str,
    members: Sequence[Sequence[Any]],
) -> GenerationStarted | Refused:
    """A rebalance has ended with these members; the leader's assignment comes next."""
    group = state.groups.get(group_id)
    present = None if group is None else group.membership
    if present is not None and not isinstance(present, ClassicGroup) and not present.is_empty:
        return Refused(KafkaError.INCONSISTENT_GROUP_PROTOCOL)
    if isinstance(present, ClassicGroup) and generation != present.generation + 1:
        return Refused(KafkaError.ILLEGAL_GENERATION)
    started = ClassicGroup(generation, protocol_type, protocol_name, leader, state.time)
    if generation < 1:
        raise Corruption(f"generation {generation} of group {group_id!r}")
    started.take_members(members)
    state.put_membership(group_id, started)
    return GenerationStarted(generation)


def _classic(state: GroupsState, group_id: str) -> ClassicGroup | None:
    """A group's members, to be changed."""
    membership = state.membership_of(group_id) if group_id in state.groups else None
    return membership if isinstance(membership, ClassicGroup) else None


def _assign_generation(
    state: GroupsState, index: int, group_id: str, generation: int, assignments: Sequence[tuple[str, bytes]]
) -> GenerationAssigned | Refused:
    classic = _classic(state, group_id)
    if classic is None:
        return Refused(KafkaError.UNKNOWN_MEMBER_ID)
    if classic.generation != generation:
        return Refused(KafkaError.ILLEGAL_GENERATION)
    if not classic.awaits_assignment:
        return Refused(KafkaError.REBALANCE_IN_PROGRESS)
    assigned = dict(assignments)
    # An assignment may name a former member, if a static member came back after the command was made.
    classic.assignments = {member_id: assigned.get(member_id, b"") for member_id in classic.members}
    return GenerationAssigned(generation)


def _replace_static_member(
    state: GroupsState, index: int, group_id: str, generation: int, old: str, row: Sequence[Any]
) -> MemberReplaced | Refused:
    classic = _classic(state, group_id)
    member = member_of_row(row)
    if classic is None or member.instance_id is None:
        return Refused(KafkaError.UNKNOWN_MEMBER_ID)
    if classic.generation != generation:
        return Refused(KafkaError.ILLEGAL_GENERATION)
    present = classic.member_of_instance(member.instance_id)
    if present is None or present.member_id != old:
        return Refused(KafkaError.UNKNOWN_MEMBER_ID)
    if member.member_id != old and member.member_id in classic.members:
        raise Corruption(f"member id {member.member_id!r} of group {group_id!r} is another's")
    classic.replace(old, member)
    return MemberReplaced(member.member_id)


HANDLERS: Mapping[int, Callable[..., Any]] = {
    GroupOpcode.START_GENERATION: start_generation,
    GroupOpcode.ASSIGN_GENERATION: _assign_generation,
    GroupOpcode.REPLACE_STATIC_MEMBER: _replace_static_member,
}
