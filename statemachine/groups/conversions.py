"""Conversion of a group with members to the other protocol, and the command that changes a consumer group.

Kafka's ConsumerGroup.fromClassicGroup and ClassicGroup.fromConsumerGroup. The generation becomes the group's
epoch and the epoch of each member, and the epoch becomes the generation again. So a commit that was sent
before a conversion is checked by the same number after it.

This module knows the owners of partitions more exactly than Kafka. A member of the cooperative protocol
keeps, until it joins again, also the partitions that it owned at its last join and that were not assigned to
it again. Kafka treats them as free, and may give them to another member at once; here the member first has to
revoke them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

from strandline.statemachine.groups.classic_group import ClassicGroup
from strandline.statemachine.groups.consumer_group import ConsumerGroup
from strandline.statemachine.groups.consumer_group_commands import (
    CHANGE_CONSUMER_GROUP,
    NOTHING,
    STABLE,
    UNREVOKED,
    Assignment,
    ChangeConsumerGroup,
    ClassicMetadata,
    ConsumerGroupChanged,
    ConsumerGroupMoved,
    ConsumerMember,
    Downgrade,
    assignment,
    change_from,
)
from strandline.statemachine.groups.consumer_protocol import (
    CONSUMERS,
    Partitions,
    read_assignment,
    read_subscription,
    write_assignment,
)
from strandline.statemachine.groups.group_commands import NO_MEMBER, Member
from strandline.statemachine.groups.group_state import GroupsState
from strandline.statemachine.kafka_errors import KafkaError, Refused
from strandline.statemachine.machine import Corruption


class NotConvertible(Exception):
    """The classic group cannot become a consumer group; the text goes to the client."""


def fingerprint(classic: ClassicGroup) -> bytes:
    """Digest of a generation, whether it is assigned, and its members: a conversion is planned from these."""
    hashed = blake2b(b"%d %d" % (classic.generation, classic.awaits_assignment), digest_size=8)
    for member_id in classic.members:
        hashed.update(b";%b" % member_id.encode())
    return hashed.digest()


def topics_of(classic: ClassicGroup) -> list[str]:
    """Names of the topics that members have partitions of, ascending; raises NotConvertible."""
    given = [*_given(classic).values(), *_claims(classic).values()]
    return sorted({topic for partitions in given for topic, _ in partitions})


def from_classic(classic: ClassicGroup, ids: Mapping[str, bytes]) -> ConsumerGroup:
    """The consumer group that a classic one with members becomes; raises NotConvertible.

    `ids` are the topics that are there. All members are in the generation as their epoch, have what they were
    assigned, and are to have it.
    """
    given = {member_id: _by_id(partitions, ids) for member_id, partitions in _given(classic).items()}
    taken = {partition for partitions in given.values() for partition in partitions}
    if len(taken) < sum(map(len, given.values())):
        raise NotConvertible("a partition is assigned to two members")
    members = []
    for member_id, owned in _claims(classic).items():
        kept = given[member_id]
        rest = [partition for partition in _by_id(owned, ids) if partition not in taken]
        taken.update(rest)
        if classic.awaits_assignment:  # what this generation assigns is not known, and what it has stays
            kept, rest = rest, []
        members.append(_consumer(classic, classic.members[member_id], assignment(kept), assignment(rest)))
    group = ConsumerGroup()
    targets = {member.member_id: member.assigned for member in members}
    group.change(0, 0, ChangeConsumerGroup("", 0, classic.generation, None, None, [], members, targets))
    return group


def to_classic(group: ConsumerGroup, downgrade: Downgrade, time: int) -> ClassicGroup:
    """The classic group that a consumer group becomes if all its members speak the classic protocol.

    Each member is assigned its target. Without a leader all members have to join again; see
    ClassicGroup.leader.
    """
    names = dict(downgrade.topics)
    members = {member_id: _member(group.members[member_id]) for member_id in sorted(group.members)}
    leader = NO_MEMBER if downgrade.rebalances else next(iter(members))
    return ClassicGroup.of(
        (group.epoch, CONSUMERS, downgrade.protocol, leader, time),
        members.values(),
        {
            member_id: write_assignment(
                {
                    names[topic_id]: numbers
                    for topic_id, numbers in group.targets.get(member_id, NOTHING)
                    if topic_id in names
                },
                dict(member.protocols)[downgrade.protocol],
            )
            for member_id, member in members.items()
        },
    )


def selected_protocol(members: Iterable[Sequence[tuple[str, bytes]]]) -> str | None:
    """The protocol of a generation of members with these: all have it, and most prefer it, of equals the one
    that comes first by name. None: they have none in common."""
    protocols = [[name for name, _ in one] for one in members]
    common = set(protocols[0]).intersection(*protocols) if protocols else set()
    votes = Counter(next(name for name in one if name in common) for one in protocols if common)
    return min(votes, key=lambda name: (-votes[name], name), default=None)


def _given(classic: ClassicGroup) -> dict[str, Partitions]:
    """The assignment of each member in this generation; raises NotConvertible."""
    found: dict[str, Partitions] = {}
    for member_id in classic.members:
        given = read_assignment(b"" if classic.assignments is None else classic.assignments[member_id])
        if given is None:
            raise NotConvertible("the embedded consumer protocol is malformed")
        if given.user_data:
            raise NotConvertible(
                "an unsupported custom assignor is in use. Please refer to the documentation or switch to a "
                "default assignor before re-attempting the upgrade"
            )
        found[member_id] = given.partitions
    return found


def _claims(classic: ClassicGroup) -> dict[str, Partitions]:
    """The partitions that each member owned when it joined this generation; raises NotConvertible."""
    found = {}
    for member_id, member in classic.members.items():
        subscription = read_subscription(dict(member.protocols).get(classic.protocol_name, b""))
        if subscription is None:
            raise NotConvertible("the embedded consumer protocol is malformed")
        found[member_id] = subscription.owned
    return found


def _by_id(partitions: Partitions, ids: Mapping[str, bytes]) -> list[tuple[bytes, int]]:
    named = {(topic, number) for topic, numbers in partitions for number in numbers}
    return sorted((ids[topic], number) for topic, number in named if topic in ids)


def _consumer(
    classic: ClassicGroup, member: Member, assigned: Assignment, revoking: Assignment
) -> ConsumerMember:
    subscription = read_subscription(dict(member.protocols)[classic.protocol_name])
    assert subscription is not None
    return ConsumerMember(
        member.member_id,
        member.instance_id,
        subscription.rack_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout,
        tuple(sorted(set(subscription.topics))),
        "",
        None,
        classic.generation,
        classic.generation,
        UNREVOKED if revoking else STABLE,
        assigned,
        revoking,
        ClassicMetadata(member.session_timeout, tuple(member.protocols)),
    )


def _member(member: ConsumerMember) -> Member:
    if member.classic is None:
        raise Corruption(f"{member.member_id} of a group that becomes classic speaks the consumer protocol")
    return Member(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.classic.session_timeout_ms,
        member.rebalance_timeout_ms,
        list(member.classic.protocols),
    )


# The command.


def _apply_change(
    state: GroupsState, index: int, *fields: Any
) -> ConsumerGroupChanged | ConsumerGroupMoved | Refused:
    change = change_from(fields)
    group = state.groups.get(change.group)
    membership = None if group is None else group.membership
    present = membership.version if isinstance(membership, ConsumerGroup) else 0
    if change.version != present:
        return ConsumerGroupMoved(present)
    if change.upgrade is not None:
        if not isinstance(membership, ClassicGroup) or fingerprint(membership) != change.upgrade.origin:
            return ConsumerGroupMoved(present)
        state.put_membership(change.group, from_classic(membership, dict(change.upgrade.topics)))
    elif not isinstance(membership, ConsumerGroup):
        if membership is not None and not membership.is_empty:
            return Refused(KafkaError.GROUP_ID_NOT_FOUND)
        state.put_membership(change.group, ConsumerGroup())
    changed = state.membership_of(change.group)
    assert isinstance(changed, ConsumerGroup)
    changed.change(index, state.time, change)
    if change.downgrade is not None:
        state.put_membership(change.group, to_classic(changed, change.downgrade, state.time))
    return ConsumerGroupChanged(index)


HANDLERS: Final[Mapping[int, Callable[..., Any]]] = {CHANGE_CONSUMER_GROUP: _apply_change}
