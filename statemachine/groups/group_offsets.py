"""The commands on a group's offsets, whatever its kind: commit, transaction, marker, deletion, expiry.

Each is judged here, when it is applied: what its proposer saw may be out of date, and only the log knows
whether a commit came before the generation that took its partitions away, or after its transaction's marker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from strandline.statemachine.groups.group_commands import (
    NO_RETENTION,
    Expired,
    GroupDeleted,
    GroupOpcode,
    GroupTransactionEnded,
    OffsetsCommitted,
    OffsetsDeleted,
    TopicsForgotten,
)
from strandline.statemachine.groups.group_state import GroupsState
from strandline.statemachine.groups.offsets import NO_EXPIRY, CommittedOffset
from strandline.statemachine.groups.transactional_producers import NOTHING_OPEN
from strandline.statemachine.kafka_errors import KafkaError, Refused

_TO_A_PRODUCER: Final[Mapping[KafkaError, KafkaError]] = MappingProxyType(
    {
        KafkaError.STALE_MEMBER_EPOCH: KafkaError.ILLEGAL_GENERATION,
        KafkaError.GROUP_ID_NOT_FOUND: KafkaError.ILLEGAL_GENERATION,
    }
)
"""A producer has never heard of some of a member's errors: to it, the generation is over."""

Topics = Sequence[tuple[bytes, str, Sequence[tuple[int, int, int, str]]]]


def _refuse_commit(
    state: GroupsState,
    group_id: str,
    member_id: str,
    generation: int,
    instance_id: str | None,
    *,
    transactional: bool,
) -> KafkaError | None:
    group = state.groups.get(group_id)
    if group is None or group.membership is None:
        # Without members, a consumer that assigns its partitions itself may commit; a former member may not.
        if generation < 0:
            return None
        return KafkaError.GROUP_ID_NOT_FOUND if group is None else KafkaError.UNKNOWN_MEMBER_ID
    return group.membership.refuse_commit(member_id, instance_id, generation, transactional=transactional)


def _rows(
    topics: Topics, time: int, expires_at: int, index: int
) -> Iterator[tuple[bytes, str, int, CommittedOffset]]:
    for topic_id, topic, partitions in topics:
        for partition, offset, leader_epoch, metadata in partitions:
            committed = CommittedOffset(offset, leader_epoch, metadata, time, expires_at, index)
            yield topic_id, topic, partition, committed


def _commit_offsets(
    state: GroupsState,
    index: int,
    group_id: str,
    member_id: str,
    generation: int,
    instance_id: str | None,
    topics: Topics,
    retention: int,
) -> OffsetsCommitted | Refused:
    refusal = _refuse_commit(state, group_id, member_id, generation, instance_id, transactional=False)
    if refusal is not None:
        return Refused(refusal)
    offsets = state.offsets_of(group_id)
    expires_at = NO_EXPIRY if retention == NO_RETENTION else state.time + retention
    for row in _rows(topics, state.time, expires_at, index):
        offsets.commit(*row)
    return OffsetsCommitted(index)


def _commit_transaction_offsets(
    state: GroupsState,
    index: int,
    group_id: str,
    member_id: str,
    generation: int,
    instance_id: str | None,
    producer_id: int,
    epoch: int,
    number: int,
    topics: Topics,
) -> OffsetsCommitted | Refused:
    refusal = _refuse_transaction(state, producer_id, epoch, number)
    if refusal is None:
        refusal = _refuse_commit(state, group_id, member_id, generation, instance_id, transactional=True)
    if refusal is not None:
        return Refused(_TO_A_PRODUCER.get(refusal, refusal))
    producer = state.producers.touched(producer_id, epoch, state.time)
    producer.open = number
    producer.groups[group_id] = None
    offsets = state.offsets_of(group_id)
    for row in _rows(topics, state.time, NO_EXPIRY, index):
        offsets.add_pending(producer_id, *row)
    return OffsetsCommitted(index)


def _refuse_transaction(state: GroupsState, producer_id: int, epoch: int, number: int) -> KafkaError | None:
    """Error for offsets that must not join this transaction, else None.

    The producer is fenced, the transaction has ended, or another one of the producer is open.
    """
    known = state.producers.get(producer_id)
    if known is None:
        return None
    if epoch < known.epoch:
        return KafkaError.INVALID_PRODUCER_EPOCH
    if number <= known.ended or number < known.open:
        return KafkaError.INVALID_TXN_STATE
    if known.open not in (NOTHING_OPEN, number):
        return KafkaError.CONCURRENT_TRANSACTIONS
    return None


def _end_transaction(
    state: GroupsState,
    index: int,
    producer_id: int,
    epoch: int,
    number: int,
    commit: bool,
    coordinator_term: int,
) -> GroupTransactionEnded:
    known = state.producers.get(producer_id)
    if known is not None and number <= known.ended:
        return GroupTransactionEnded(0, ignored=True)
    producer = state.producers.touched(producer_id, epoch, state.time)
    producer.ended, producer.coordinator_term = number, coordinator_term
    committed = 0
    if producer.open <= number:
        # The marker decides its own transaction. One before it that is open still is over, undecided.
        commits = commit and producer.open == number
        for group_id in producer.groups:
            if group_id in state.groups:
                committed += state.offsets_of(group_id).end(producer_id, commit=commits)
        producer.open = NOTHING_OPEN
        producer.groups = {}
    return GroupTransactionEnded(committed)


def _delete_group(state: GroupsState, index: int, group_id: str) -> GroupDeleted | Refused:
    group = state.groups.get(group_id)
    if group is None:
        return Refused(KafkaError.GROUP_ID_NOT_FOUND)
    if not group.is_empty:
        return Refused(KafkaError.NON_EMPTY_GROUP)
    return GroupDeleted(len(state.drop(group_id).offsets))


def _delete_offsets(
    state: GroupsState, index: int, group_id: str, topics: Sequence[tuple[bytes, str, Sequence[int]]]
) -> OffsetsDeleted | Refused:
    group = state.groups.get(group_id)
    if group is None:
        return Refused(KafkaError.GROUP_ID_NOT_FOUND)
    uses = None if group.membership is None else group.membership.subscriptions()
    if uses is None and not group.is_empty:
        return Refused(KafkaError.NON_EMPTY_GROUP)
    subscribed = []
    deleted = 0
    for topic_id, topic, partitions in topics:
        if uses is not None and uses(topic):
            subscribed.append(topic_id)
        else:
            deleted += state.offsets_of(group_id).delete(topic_id, partitions)
    return OffsetsDeleted(deleted, subscribed)


def _expire_offsets(
    state: GroupsState, index: int, groups: Sequence[str], now: int, retention: int, producer_expiry: int
) -> Expired:
    state.go_on_from(now)
    expired = 0
    gone = []
    for group_id in groups:
        group = state.groups.get(group_id)
        if group is None or not group.is_empty:
            continue
        offsets = state.offsets_of(group_id)
        expired += offsets.expire(now, retention, group.empty_since)
        if offsets.is_empty:
            gone.append(group_id)
            state.drop(group_id)
    return Expired(expired, gone, state.producers.expire(now - producer_expiry))


def _forget_topics(
    state: GroupsState, index: int, groups: Sequence[str], topic_ids: Sequence[bytes]
) -> TopicsForgotten:
    gone = dict.fromkeys(topic_ids)
    forgotten = 0
    for group_id in groups:
        group = state.groups.get(group_id)
        for topic_id in [] if group is None else [one for one in group.offsets.names if one in gone]:
            forgotten += state.offsets_of(group_id).forget_topic(topic_id)
    return TopicsForgotten(forgotten)


HANDLERS: Mapping[int, Callable[..., Any]] = {
    GroupOpcode.COMMIT_OFFSETS: _commit_offsets,
    GroupOpcode.COMMIT_TRANSACTION_OFFSETS: _commit_transaction_offsets,
    GroupOpcode.END_TRANSACTION: _end_transaction,
    GroupOpcode.DELETE_GROUP: _delete_group,
    GroupOpcode.DELETE_OFFSETS: _delete_offsets,
    GroupOpcode.EXPIRE_OFFSETS: _expire_offsets,
    GroupOpcode.FORGET_TOPICS: _forget_topics,
}
