"""Serves the members of consumer groups that speak the classic protocol, on one coordinator.

No request waits for other members, as in a classic group: a JoinGroup is answered as soon as its effects are
in the log, and a SyncGroup and a Heartbeat from the state. The server's assignor makes the assignment, so no
member leads.
"""

from __future__ import annotations

import uuid

from strandline.node.coordinator.groups.classic_state import (
    UNKNOWN_MEMBER,
    JoinRequest,
    JoinResponse,
    SyncRequest,
    SyncResponse,
)
from strandline.node.coordinator.groups.consumer_classic import ClassicJoin, has_to_rejoin, is_outdated
from strandline.node.coordinator.groups.consumer_groups import (
    IS_CLASSIC,
    ConsumerGroups,
)
from strandline.node.coordinator.groups.consumer_timers import CLASSIC_JOIN, CLASSIC_SYNC
from strandline.node.coordinator.groups.context import GroupsContext
from strandline.node.refusal import Cause, Refusal
from strandline.statemachine.groups.consumer_group import ConsumerGroup
from strandline.statemachine.groups.consumer_group_commands import ConsumerMember
from strandline.statemachine.groups.consumer_protocol import CONSUMERS, read_subscription, write_assignment
from strandline.statemachine.kafka_errors import KafkaError


class HostedMembers:
    """Asked only while the coordinator leads, and only for groups that `serves`."""

    def __init__(self, coordinator: GroupsContext, consumer: ConsumerGroups) -> None:
        self._coordinator = coordinator
        self._consumer = consumer

    def serves(self, group_id: str) -> bool:
        """Whether it is a consumer group with members, of whatever protocol."""
        group = self._consumer.get(group_id)
        return group is not None and not group.is_empty

    async def join(self, group_id: str, request: JoinRequest) -> JoinResponse | None:
        """A JoinGroup; None when the group became a classic one meanwhile."""
        group = self._group(group_id)
        error = self._refusal(group, request)
        member_id = request.member_id or str(
            uuid.UUID(bytes=self._coordinator.context.rng.randbytes(16), version=4)
        )
        is_dynamic = not request.member_id and request.instance_id is None
        if error is None and is_dynamic and request.takes_member_id:
            return JoinResponse(KafkaError.MEMBER_ID_REQUIRED, member_id)
        subscription = read_subscription(request.protocols[0][1]) if error is None else None
        if error is None and subscription is None:
            error = KafkaError.UNKNOWN_SERVER_ERROR  # as Kafka: it cannot be read
        if subscription is None:
            assert error is not None
            return JoinResponse(error, request.member_id)
        owned = frozenset(
            (size.topic_id, number)
            for topic, numbers in subscription.owned
            if (size := self._consumer.topics.size(topic)) is not None
            for number in numbers
        )
        event = ClassicJoin(member_id, request.member_id != UNKNOWN_MEMBER, request, subscription, owned)
        answer = await self._consumer.submit(group_id, event)
        if answer is IS_CLASSIC:
            return None
        if isinstance(answer, Refusal):
            unknown = answer.reason in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.GROUP_MAX_SIZE_REACHED)
            return JoinResponse(answer.reason, UNKNOWN_MEMBER if unknown else request.member_id)
        return JoinResponse(None, member_id, answer.epoch, CONSUMERS, request.protocols[0][0])

    def sync(self, group_id: str, request: SyncRequest) -> SyncResponse:
        """Handle a SyncGroup: the member's assignment in the generation of the answer to its JoinGroup."""
        group = self._group(group_id)
        member = _member(group, request.member_id, request.instance_id, request.generation)
        if isinstance(member, KafkaError):
            return SyncResponse(member)
        assert member.classic is not None
        protocol, metadata = member.classic.protocols[0]
        if request.protocol_type not in (None, CONSUMERS) or request.protocol not in (None, protocol):
            return SyncResponse(KafkaError.INCONSISTENT_GROUP_PROTOCOL)
        if is_outdated(group, member):
            self._call_back(group_id, member)
            return SyncResponse(KafkaError.REBALANCE_IN_PROGRESS)
        self._consumer.timers.cancel(group_id, member.member_id, CLASSIC_SYNC)
        self._consumer.timers.restart_session(group_id, member)
        name_of = self._consumer.topics.name_of
        named = {name_of(topic_id): numbers for topic_id, numbers in member.assigned}
        assignment = write_assignment(
            {name: numbers for name, numbers in named.items() if name is not None}, metadata
        )
        return SyncResponse(None, request.protocol_type, request.protocol, assignment)

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> Cause | None:
        """Handle a Heartbeat: None, or the error that makes the member act."""
        group = self._group(group_id)
        member = _member(group, member_id, instance_id, generation)
        if isinstance(member, KafkaError):
            return member
        self._consumer.timers.restart_session(group_id, member)
        if not has_to_rejoin(group, member):
            return None
        self._call_back(group_id, member)
        return KafkaError.REBALANCE_IN_PROGRESS

    def _call_back(self, group_id: str, member: ConsumerMember) -> None:
        """Start a member's time to join again, at the first answer that tells it to."""
        if not self._consumer.timers.runs(group_id, member.member_id, CLASSIC_JOIN):
            seconds = max(member.rebalance_timeout_ms, 0) / 1000
            self._consumer.timers.limit(group_id, member.member_id, CLASSIC_JOIN, seconds)

    def _refusal(self, group: ConsumerGroup, request: JoinRequest) -> KafkaError | None:
        """The error of a JoinGroup that is refused before it gets a member id, as in Kafka; else None."""
        config = self._coordinator.context.config.groups
        if not config.min_session_seconds <= request.session <= config.max_session_seconds:
            return KafkaError.INVALID_SESSION_TIMEOUT
        if len(group.members) >= config.max_members and request.member_id not in group.members:
            return KafkaError.GROUP_MAX_SIZE_REACHED
        names = [name for name, _ in request.protocols]
        common = any(group.supported[name] == group.classic for name in names)
        fits = request.protocol_type == CONSUMERS and common
        return None if fits else KafkaError.INCONSISTENT_GROUP_PROTOCOL

    def _group(self, group_id: str) -> ConsumerGroup:
        group = self._consumer.get(group_id)
        assert group is not None
        return group


def _member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> ConsumerMember | KafkaError:
    """The member of these ids in this generation, or why there is none (validateConsumerGroupMember)."""
    if instance_id is not None:
        held = group.static.get(instance_id)
        if held is None:
            return KafkaError.UNKNOWN_MEMBER_ID
        if held != member_id:
            return KafkaError.FENCED_INSTANCE_ID
    member = group.members.get(member_id)
    if member is None or member.classic is None:
        return KafkaError.UNKNOWN_MEMBER_ID
    return member if member.epoch == generation else KafkaError.ILLEGAL_GENERATION
