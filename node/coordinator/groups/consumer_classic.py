"""Members of a consumer group that speak the classic protocol: their requests as the plan sees them.

While a group changes from one protocol to the other it has members of both. The rules are Kafka's
(GroupMetadataManager.classicGroupJoinToConsumerGroup and its like); `hosted` handles
the requests.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from strandline.node.coordinator.groups.classic_state import JoinRequest
from strandline.node.coordinator.groups.consumer_draft import Draft
from strandline.node.coordinator.groups.consumer_member import Partition
from strandline.node.coordinator.groups.consumer_topics import Topics
from strandline.statemachine.groups.consumer_group import ConsumerGroup
from strandline.statemachine.groups.consumer_group_commands import (
    NOTHING,
    STABLE,
    UNRELEASED,
    UNREVOKED,
    ClassicMetadata,
    ConsumerMember,
    Downgrade,
    partitions_of,
)
from strandline.statemachine.groups.consumer_protocol import Subscription
from strandline.statemachine.groups.conversions import selected_protocol

MAX_GROUP_BYTES: Final = 3 * 1024 * 1024
"""Of the members of a group that becomes classic: a generation is one entry of the log, which takes 4 MiB."""


@dataclass(frozen=True, slots=True)
class ClassicJoin:
    """A JoinGroup to a consumer group."""

    member_id: str
    """Its own, or the one that it is given."""
    is_known: bool
    """Whether it brought its member id."""
    request: JoinRequest
    subscription: Subscription
    """Of the protocol that it prefers."""
    owned: frozenset[Partition]
    """Partitions that the member owns now, of topics that exist."""

    @property
    def instance_id(self) -> str | None:
        """Of a static member."""
        return self.request.instance_id

    @property
    def protocols(self) -> Collection[str]:
        """Names of those it can use."""
        return [name for name, _ in self.request.protocols]

    @property
    def size(self) -> int:
        """Approximate bytes of its protocols in a log entry."""
        return sum(len(name) + len(metadata) for name, metadata in self.request.protocols)

    def updated(self, member: ConsumerMember) -> ConsumerMember:
        """The member with the fields of this JoinGroup. It subscribes by names, without an assignor."""
        return member._replace(
            instance_id=self.instance_id or member.instance_id,
            rack_id=self.subscription.rack_id or member.rack_id,
            client_id=self.request.client_id,
            client_host=self.request.client_host,
            rebalance_timeout_ms=round(self.request.rebalance * 1000),
            topics=tuple(sorted(set(self.subscription.topics))),
            pattern="",
            assignor=None,
            classic=ClassicMetadata(round(self.request.session * 1000), tuple(self.request.protocols)),
        )


def has_to_rejoin(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether a member that speaks the classic protocol has to join again, to revoke partitions or to get
    some: the answer to its Heartbeat."""
    if member.epoch < group.epoch or member.state == UNREVOKED:
        return True
    return member.state == UNRELEASED and not _waits_for_others(group, member)


def is_outdated(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether a SyncGroup is too late: there is a newer target that the member does not know yet.

    A member that has to revoke partitions knows of it already, and revokes them once it has the rest of its
    assignment.
    """
    return member.epoch < group.epoch and member.state != UNREVOKED


def _waits_for_others(group: ConsumerGroup, member: ConsumerMember) -> bool:
    missing = frozenset(partitions_of(group.targets.get(member.member_id, NOTHING)))
    return any(partition in group.owners for partition in missing.difference(partitions_of(member.assigned)))


def downgrade_of(draft: Draft, topics: Topics, max_members: int, *, renewed: bool) -> Downgrade | None:
    """The classic group that a consumer group becomes when all its members speak the classic protocol.

    None if another member is left, or if the classic protocol could not represent the group. The members need
    not join again if one static member just came back with the other protocol.
    """
    if not 0 < draft.count <= max_members or draft.classic < draft.count:
        return None
    members = draft.all_members()
    protocols = [member.classic.protocols for member in members if member.classic is not None]
    protocol = selected_protocol(protocols)
    if protocol is None or sum(map(_size, members)) > MAX_GROUP_BYTES:
        return None
    settled = all((one.epoch, one.state) == (draft.epoch, STABLE) for one in members)
    agreed = all(one[0][0] == protocol for one in protocols)
    targets = [draft.target(member.member_id) for member in members]
    ids = sorted({topic_id for target in targets for topic_id, _ in target})
    names = [(topic_id, topics.name_of(topic_id)) for topic_id in ids]
    return Downgrade(
        protocol,
        renewed or not settled or not agreed,
        [(topic_id, name) for topic_id, name in names if name is not None],
    )


def _size(member: ConsumerMember) -> int:
    assert member.classic is not None
    names = (member.member_id, member.instance_id or "", member.client_id, member.client_host)
    protocols = sum(8 + len(name) + len(metadata) for name, metadata in member.classic.protocols)
    return sum(len(name.encode()) for name in names) + protocols
