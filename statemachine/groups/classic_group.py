"""The members of a classic group: its generation, its members, and the assignment of each.

The state has only the results of completed joins and syncs; the coordinator's leader keeps the waiting
requests. That is enough to fence commits in the log by member, instance and generation (KIP-447), and for a
new leader to go on with the present generation. The rules are those of Kafka's ClassicGroup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import Any, ClassVar

from strandline.statemachine.groups.consumer_protocol import CONSUMERS, subscribed_topics
from strandline.statemachine.groups.group_commands import (
    NO_GENERATION,
    NO_MEMBER,
    Member,
)
from strandline.statemachine.kafka_errors import KafkaError


class ClassicGroup:
    """A generation of a classic group, the last one that was started."""

    protocol: ClassVar[str] = "classic"

    __slots__ = (
        "_instances",
        "_since",
        "assignments",
        "generation",
        "leader",
        "members",
        "protocol_name",
        "protocol_type",
    )

    def __init__(
        self, generation: int, protocol_type: str, protocol_name: str, leader: str, since: int
    ) -> None:
        self.generation = generation
        self.protocol_type = protocol_type
        self.protocol_name = protocol_name
        """The protocol that all members use, "" without members."""
        self.leader = leader
        """Member id of the member that assigns. "" without members, and also with members if the group was a
        consumer group until now, so that they have to join again."""
        self.members: dict[str, Member] = {}
        """By member id, in the order they joined."""
        self.assignments: dict[str, bytes] | None = None
        """By member id, of every member; None until the leader has assigned, and in a group without members
        to assign to."""
        self._instances: dict[str, str] = {}
        """Member id by instance id."""
        self._since = since

    @classmethod
    def of(
        cls,
        what: tuple[int, str, str, str, int],
        members: Iterable[Member],
        assignments: Mapping[str, bytes],
    ) -> ClassicGroup:
        """A generation (the constructor's arguments) with members and what each of them is assigned."""
        made = cls(*what)
        made.take_members([*members])
        made.assignments = dict(assignments)
        return made

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def empty_since(self) -> int:
        return self._since

    @property
    def awaits_assignment(self) -> bool:
        """Kafka's CompletingRebalance: the generation has started, its leader has not assigned yet."""
        return bool(self.members) and self.assignments is None

    def member_of_instance(self, instance_id: str) -> Member | None:
        """The member that has this `group.instance.id` now."""
        member_id = self._instances.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def refuse_member(self, member_id: str, instance_id: str | None) -> KafkaError | None:
        """Error for a request under ids that are no member's; None for a member (Kafka's validateMember)."""
        if instance_id is not None:
            present = self.member_of_instance(instance_id)
            if present is None:
                return KafkaError.UNKNOWN_MEMBER_ID
            if present.member_id != member_id:
                return KafkaError.FENCED_INSTANCE_ID
        return None if member_id in self.members else KafkaError.UNKNOWN_MEMBER_ID

    def refuse_commit(
        self, member_id: str, instance_id: str | None, generation: int, *, transactional: bool
    ) -> KafkaError | None:
        """See Membership. A commit without member id and generation is taken while the group has no members,
        and always in a transaction, because old clients do not send them (KIP-447)."""
        if generation < 0 and self.is_empty:
            return None
        if generation > NO_GENERATION or member_id != NO_MEMBER or instance_id is not None:
            refusal = self.refuse_member(member_id, instance_id)
            if refusal is not None:
                return refusal
            if generation != self.generation:
                return KafkaError.ILLEGAL_GENERATION
        elif not transactional and not self.is_empty:
            return KafkaError.UNKNOWN_MEMBER_ID
        if not transactional and self.awaits_assignment:
            return KafkaError.REBALANCE_IN_PROGRESS
        return None

    def refuse_fetch(self, member_id: str | None, generation: int) -> KafkaError | None:
        """See Membership: any client may fetch a classic group's offsets."""
        return None

    def subscriptions(self) -> Callable[[str], bool] | None:
        """See Membership. None: the members do not consume. To every topic if metadata cannot be read."""
        if self.members and self.protocol_type != CONSUMERS:
            return None
        names: set[str] = set()
        metadata = (dict(member.protocols).get(self.protocol_name, b"") for member in self.members.values())
        for each in dict.fromkeys(metadata):  # that of most members is the same
            topics = subscribed_topics(each)
            if topics is None:
                return lambda topic: True
            names.update(topics)
        return names.__contains__

    def replace(self, old: str, member: Member) -> None:
        """Replace the former member `old` of a static member, which has the same instance id."""
        # In its place: the order of the members is part of the state.
        self.members = {
            new.member_id: new
            for new in (member if one.member_id == old else one for one in self.members.values())
        }
        if self.assignments is not None:
            self.assignments = {
                member.member_id if member_id == old else member_id: assignment
                for member_id, assignment in self.assignments.items()
            }
        if self.leader == old:
            self.leader = member.member_id
        assert member.instance_id is not None
        self._instances[member.instance_id] = member.member_id

    def copy(self) -> ClassicGroup:
        """See Membership. What else it has is replaced and not changed."""
        made = copy(self)
        made._instances = dict(self._instances)
        return made

    def fields(self) -> list[Any]:
        """Plain values for a snapshot."""
        return [
            self.generation,
            self.protocol_type,
            self.protocol_name,
            self.leader,
            self._since,
            list(self.members.values()),
            None if self.assignments is None else list(self.assignments.items()),
        ]

    @classmethod
    def loaded(cls, fields: list[Any]) -> ClassicGroup:
        """The object that `fields` was taken from; raises ValueError if the fields contradict each other."""
        generation, protocol_type, protocol_name, leader, since, members, assignments = fields
        loaded = cls(generation, protocol_type, protocol_name, leader, since)
        loaded.take_members(members)
        if assignments is not None:
            loaded.assignments = dict(assignments)
            if list(loaded.assignments) != list(loaded.members):
                raise ValueError("assignments of others than the members")
        return loaded

    def take_members(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add members in the order in which they joined; raises ValueError when two have one id."""
        static = 0
        for row in rows:
            member = member_of_row(row)
            self.members[member.member_id] = member
            if member.instance_id is not None:
                static += 1
                self._instances[member.instance_id] = member.member_id
        if len(self.members) != len(rows) or len(self._instances) != static:
            raise ValueError("two members have one id")
        if self.leader != NO_MEMBER and self.leader not in self.members:
            raise ValueError(f"the leader {self.leader!r} is not a member")


def member_of_row(row: Sequence[Any]) -> Member:
    """A member as a command or a snapshot has it."""
    member = Member(*row)
    return member._replace(protocols=[(name, metadata) for name, metadata in member.protocols])
