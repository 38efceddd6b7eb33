"""The next steps of one consumer group member: KIP-848's reconciliation, and the check of its heartbeats.

A member revokes partitions before it gets others, and gets a partition only once no other member has it.
Between two of its heartbeats its state does not change, so it owns what it was last assigned, or less.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from strandline.node.refusal import Refusal
from strandline.statemachine.groups.consumer_group_commands import (
    NOTHING,
    STABLE,
    UNRELEASED,
    UNREVOKED,
    Assignment,
    ConsumerMember,
    assignment,
    partitions_of,
)
from strandline.statemachine.kafka_errors import KafkaError

JOINING: Final = 0
LEAVING: Final = -1
Partition = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class MemberHeartbeat:
    """A member's heartbeat; None for fields that have not changed since its last one."""

    member_id: str
    epoch: int
    """Its own, or JOINING, LEAVING, LEFT_FOR_A_WHILE."""
    client_id: str
    client_host: str
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int | None = None
    topics: tuple[str, ...] | None = None
    """Ascending, none twice."""
    pattern: str | None = None
    assignor: str | None = None
    owned: frozenset[Partition] | None = None

    @property
    def full(self) -> bool:
        """Whether it has all fields, as after an error; then the answer has all fields too."""
        subscribes = self.topics is not None or self.pattern is not None
        return self.rebalance_timeout_ms is not None and subscribes and self.owned is not None

    def updated(self, member: ConsumerMember) -> ConsumerMember:
        """The member with the fields of this heartbeat."""
        return member._replace(
            instance_id=_or(self.instance_id, member.instance_id),
            rack_id=_or(self.rack_id, member.rack_id),
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=(
                member.rebalance_timeout_ms
                if self.rebalance_timeout_ms is None
                else self.rebalance_timeout_ms
            ),
            topics=member.topics if self.topics is None else self.topics,
            pattern=member.pattern if self.pattern is None else self.pattern,
            assignor=_or(self.assignor, member.assignor),
            classic=None,
        )


def newcomer(member_id: str) -> ConsumerMember:
    """A member before its first request."""
    return ConsumerMember(member_id, None, None, "", "", -1, (), "", None, 0, 0, STABLE, NOTHING, NOTHING)


def refuse_epoch(member: ConsumerMember, heartbeat: MemberHeartbeat) -> Refusal | None:
    """The reason to fence a member; None if its epoch is right, or one behind and the answer may be lost.

    Kafka's `throwIfConsumerGroupMemberEpochIsInvalid`. An epoch of JOINING is always right: the member owns
    nothing.
    """
    if heartbeat.epoch in (JOINING, member.epoch):
        return None
    if heartbeat.epoch > member.epoch:
        how = "greater"
    elif heartbeat.epoch == member.previous_epoch and _within(heartbeat.owned, member.assigned):
        return None
    else:
        how = "smaller"
    return Refusal(
        KafkaError.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {how} member epoch ({heartbeat.epoch}) than the one known by the "
        f"group coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
    )


def reconciled(
    member: ConsumerMember,
    owned: Collection[Partition] | None,
    reported_epoch: int,
    epoch: int,
    target: Assignment,
    owner_of: Callable[[Partition], str | None],
) -> ConsumerMember:
    """The member one step nearer to its target, or itself if no step can be taken.

    Kafka's `CurrentAssignmentBuilder`. `owned`: the partitions it reports as its own, None: no change;
    `reported_epoch`: the epoch it reports; `owner_of`: the present owner of a partition.
    """
    if member.state == STABLE and member.epoch == epoch:
        return member
    if member.state == UNREVOKED and _owns(owned, partitions_of(member.revoking)):
        return member
    wanted = frozenset(partitions_of(target))
    had = partitions_of(member.assigned)
    kept = [partition for partition in had if partition in wanted]
    revoked = [partition for partition in had if partition not in wanted]
    if revoked and _owns(owned, revoked):
        return member._replace(
            previous_epoch=reported_epoch,
            state=UNREVOKED,
            assigned=assignment(kept),
            revoking=assignment(revoked),
        )
    missing = wanted.difference(kept)
    # Partitions that the member itself has just revoked have no owner either.
    free = [partition for partition in missing if owner_of(partition) in (None, member.member_id)]
    state = STABLE if len(free) == len(missing) else UNRELEASED
    step = (epoch, state, assignment(kept + free), NOTHING)
    if step == (member.epoch, member.state, member.assigned, member.revoking):
        return member
    return member._replace(
        epoch=epoch,
        previous_epoch=reported_epoch,
        state=state,
        assigned=assignment(kept + free),
        revoking=NOTHING,
    )


def _owns(owned: Collection[Partition] | None, partitions: Collection[Partition]) -> bool:
    """Whether the member may still own any of these: true until it reports its partitions without them."""
    return owned is None or any(partition in owned for partition in partitions)


def _within(owned: frozenset[Partition] | None, assigned: Assignment) -> bool:
    return owned is not None and owned <= frozenset(partitions_of(assigned))


def _or(new: str | None, old: str | None) -> str | None:
    return old if new is None else new
