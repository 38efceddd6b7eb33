"""Serves the members of consumer groups that speak the classic protocol, on one coordinator.

No request waits for other members, as in a classic group: a JoinGroup is answered as soon as its effects are
in the log, and a SyncGroup and a Heartbeat from the state. The server's assignor makes the assignment, so no
member leads.
"""

from __future__ import annotations

import uuid

from kio.schema.errors import ErrorCode

from strandline.node.coordinator.groups.classic_state import UNKNOWN_MEMBER, JoinAsk, Joined, SyncAsk, Synced
from strandline.node.coordinator.groups.consumer_classic import ClassicJoin, has_to_rejoin, is_outdated
from strandline.node.coordinator.groups.consumer_groups import (
    CLASSIC_JOIN,
    CLASSIC_SYNC,
    IS_CLASSIC,
    ConsumerGroups,
)
from strandline.node.coordinator.groups.consumer_member import Refusal
from strandline.node.coordinator.groups.context import GroupsContext
from strandline.statemachine.groups.consumer_group import ConsumerGroup
from strandline.statemachine.groups.consumer_group_commands import ConsumerMember
from strandline.statemachine.groups.consumer_protocol import CONSUMERS, read_subscription, write_assignment


class HostedMembers:
    """Asked only while the coordinator leads, and only for groups that `serves`."""

    def __init__(self, coordinator: GroupsContext, consumer: ConsumerGroups) -> None:
        self._coordinator = coordinator
        self._consumer = consumer

    def serves(self, group_id: str) -> bool:
        """Whether it is a consumer group with members, of whatever protocol."""
        group = self._consumer.get(group_id)
        return group is not None and not group.is_empty

    async def join(self, group_id: str, ask: JoinAsk) -> Joined | None:
        """A JoinGroup; None when the group became a classic one meanwhile."""
        group = self._group(group_id)
        code = self._refusal(group, ask)
        member_id = ask.member_id or str(
            uuid.UUID(bytes=self._coordinator.context.rng.randbytes(16), version=4)
        )
        if code is None and not ask.member_id and ask.instance_id is None and ask.takes_member_id:
            return Joined(ErrorCode.member_id_required, member_id)
        subscription = read_subscription(ask.protocols[0][1]) if code is None else None
        if code is None and subscription is None:
            code = ErrorCode.unknown_server_error  # as Kafka: it cannot be read
        if subscription is None:
            assert code is not None
            return Joined(code, ask.member_id)
        owned = frozenset(
            (size.topic_id, number)
            for topic, numbers in subscription.owned
            if (size := self._consumer.topics.size(topic)) is not None
            for number in numbers
        )
        word = ClassicJoin(member_id, ask.member_id != UNKNOWN_MEMBER, ask, subscription, owned)
        answer = await self._consumer.ask(group_id, word)
        if answer is IS_CLASSIC:
            return None
        if isinstance(answer, Refusal):
            unknown = answer.code in (ErrorCode.unknown_member_id, ErrorCode.group_max_size_reached)
            return Joined(answer.code, UNKNOWN_MEMBER if unknown else ask.member_id)
        return Joined(ErrorCode.none, member_id, answer.epoch, CONSUMERS, ask.protocols[0][0])

    def sync(self, group_id: str, ask: SyncAsk) -> Synced:
        """Handle a SyncGroup: the member's assignment in the generation of the answer to its JoinGroup."""
        group = self._group(group_id)
        member = _member(group, ask.member_id, ask.instance_id, ask.generation)
        if isinstance(member, ErrorCode):
            return Synced(member)
        assert member.classic is not None
        protocol, metadata = member.classic.protocols[0]
        if ask.protocol_type not in (None, CONSUMERS) or ask.protocol not in (None, protocol):
            return Synced(ErrorCode.inconsistent_group_protocol)
        if is_outdated(group, member):
            self._call_back(group_id, member)
            return Synced(ErrorCode.rebalance_in_progress)
        self._coordinator.timers.cancel((CLASSIC_SYNC, group_id, member.member_id))
        self._consumer.heard(group_id, member)
        name_of = self._consumer.topics.name_of
        named = {name_of(topic_id): numbers for topic_id, numbers in member.assigned}
        assignment = write_assignment(
            {name: numbers for name, numbers in named.items() if name is not None}, metadata
        )
        return Synced(ErrorCode.none, ask.protocol_type, ask.protocol, assignment)

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Handle a Heartbeat: NONE, or the error that makes the member act."""
        group = self._group(group_id)
        member = _member(group, member_id, instance_id, generation)
        if isinstance(member, ErrorCode):
            return member
        self._consumer.heard(group_id, member)
        if not has_to_rejoin(group, member):
            return ErrorCode.none
        self._call_back(group_id, member)
        return ErrorCode.rebalance_in_progress

    def _call_back(self, group_id: str, member: ConsumerMember) -> None:
        """Start a member's time to join again, at the first answer that tells it to."""
        if self._coordinator.timers.remaining((CLASSIC_JOIN, group_id, member.member_id)) is None:
            seconds = max(member.rebalance_timeout_ms, 0) / 1000
            self._consumer.limit(group_id, member.member_id, CLASSIC_JOIN, seconds)

    def _refusal(self, group: ConsumerGroup, ask: JoinAsk) -> ErrorCode | None:
        """The error of a JoinGroup that is refused before it gets a member id, as in Kafka; else None."""
        config = self._coordinator.context.config.groups
        if not config.min_session_seconds <= ask.session <= config.max_session_seconds:
            return ErrorCode.invalid_session_timeout
        if len(group.members) >= config.max_members and ask.member_id not in group.members:
            return ErrorCode.group_max_size_reached
        names = [name for name, _ in ask.protocols]
        common = any(group.supported[name] == group.classic for name in names)
        return None if ask.protocol_type == CONSUMERS and common else ErrorCode.inconsistent_group_protocol

    def _group(self, group_id: str) -> ConsumerGroup:
        group = self._consumer.get(group_id)
        assert group is not None
        return group


def _member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> ConsumerMember | ErrorCode:
    """The member of these ids in this generation, or why there is none (validateConsumerGroupMember)."""
    if instance_id is not None:
        held = group.static.get(instance_id)
        if held is None:
            return ErrorCode.unknown_member_id
        if held != member_id:
            return ErrorCode.fenced_instance_id
    member = group.members.get(member_id)
    if member is None or member.classic is None:
        return ErrorCode.unknown_member_id
    return member if member.epoch == generation else ErrorCode.illegal_generation
