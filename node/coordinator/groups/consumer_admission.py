"""Finds the member that a request to a consumer group comes from: present, new, or refused.

The rules are Kafka's (getOrMaybeSubscribeDynamicConsumerGroupMember,
getOrMaybeSubscribeStaticConsumerGroupMember), for members of either protocol.
"""

from __future__ import annotations

from strandline.node.coordinator.groups.consumer_classic import ClassicJoin
from strandline.node.coordinator.groups.consumer_draft import Draft
from strandline.node.coordinator.groups.consumer_member import (
    JOINING,
    MemberHeartbeat,
    newcomer,
    refuse_epoch,
)
from strandline.node.refusal import Refusal
from strandline.statemachine.groups.consumer_group_commands import LEFT_FOR_A_WHILE, ConsumerMember
from strandline.statemachine.groups.consumer_protocol import CONSUMERS
from strandline.statemachine.kafka_errors import KafkaError


class Admission:
    """The members that may take part in one draft of a group."""

    def __init__(self, group_id: str, draft: Draft, max_members: int) -> None:
        self._group_id = group_id
        self._draft = draft
        self._max_members = max_members

    def member(self, event: MemberHeartbeat) -> ConsumerMember | Refusal:
        """The member of a heartbeat by the consumer protocol; it stays in the group, or joins it."""
        if event.instance_id is None:
            member = self._draft.member(event.member_id)
            if member is not None:
                return refuse_epoch(member, event) or member
            if event.epoch == JOINING:
                return self._newcomer(event.member_id)
            return self._unknown(event.member_id)
        return self._static_member(event, event.instance_id)

    def classic_member(self, join: ClassicJoin) -> ConsumerMember | Refusal:
        """The member of a JoinGroup by the classic protocol. Any member id may join, known or not."""
        refusal = self._refuse_protocols(join)
        if refusal is not None:
            return refusal
        if join.instance_id is None:
            return self._draft.member(join.member_id) or self._newcomer(join.member_id)
        holder = self._holder(join.instance_id)
        if not join.is_known:
            if isinstance(holder, Refusal):
                return self._newcomer(join.member_id)
            return holder._replace(epoch=JOINING, previous_epoch=JOINING)
        if isinstance(holder, Refusal) or holder.member_id == join.member_id:
            return holder
        return _fenced(join.member_id, join.instance_id, holder)

    def leaving(self, event: MemberHeartbeat) -> ConsumerMember | Refusal:
        """The member that leaves."""
        if event.instance_id is None:
            return self._draft.member(event.member_id) or self._unknown(event.member_id)
        holder = self._holder(event.instance_id)
        if isinstance(holder, Refusal) or holder.member_id == event.member_id:
            return holder
        return _fenced(event.member_id, event.instance_id, holder)

    def _static_member(self, event: MemberHeartbeat, instance_id: str) -> ConsumerMember | Refusal:
        """The static member that holds the instance id after this heartbeat.

        Unlike Kafka, a member that joins again under the member id it has is accepted: it is a process whose
        first answer was lost.
        """
        holder = self._holder(instance_id)
        if isinstance(holder, Refusal):
            if event.epoch != JOINING:
                return holder
            return self._draft.member(event.member_id) or self._newcomer(event.member_id)
        comes_back = event.epoch == JOINING and holder.epoch == LEFT_FOR_A_WHILE
        if holder.member_id == event.member_id and not comes_back:
            return refuse_epoch(holder, event) or holder
        if event.epoch != JOINING:
            return _fenced(event.member_id, instance_id, holder)
        if holder.epoch != LEFT_FOR_A_WHILE and holder.classic is None:
            reason = (
                f"Static member {event.member_id} with instance id {instance_id} cannot join the group "
                f"because the instance id is owned by {holder.member_id} member."
            )
            return Refusal(KafkaError.UNRELEASED_INSTANCE_ID, reason)
        return holder._replace(epoch=JOINING, previous_epoch=JOINING)

    def _refuse_protocols(self, join: ClassicJoin) -> Refusal | None:
        """Members of the classic protocol need a protocol in common: the group may be theirs again."""
        if join.request.protocol_type == CONSUMERS and self._draft.supports(join.protocols):
            return None
        reason = f"Member {join.member_id}'s protocols are not supported."
        return Refusal(KafkaError.INCONSISTENT_GROUP_PROTOCOL, reason)

    def _newcomer(self, member_id: str) -> ConsumerMember | Refusal:
        if self._draft.count < self._max_members:
            return newcomer(member_id)
        reason = f"The consumer group has reached its maximum capacity of {self._max_members} members."
        return Refusal(KafkaError.GROUP_MAX_SIZE_REACHED, reason)

    def _holder(self, instance_id: str) -> ConsumerMember | Refusal:
        reason = f"Instance id {instance_id} is unknown."
        return self._draft.holder(instance_id) or Refusal(KafkaError.UNKNOWN_MEMBER_ID, reason)

    def _unknown(self, member_id: str) -> Refusal:
        reason = f"Member {member_id} is not a member of group {self._group_id}."
        return Refusal(KafkaError.UNKNOWN_MEMBER_ID, reason)


def _fenced(member_id: str, instance_id: str, holder: ConsumerMember) -> Refusal:
    reason = (
        f"Static member {member_id} with instance id {instance_id} was fenced by member {holder.member_id}."
    )
    return Refusal(KafkaError.FENCED_INSTANCE_ID, reason)
