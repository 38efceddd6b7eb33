"""The commands of a groups' coordinator but for those of KIP-848, their results, and how the log holds them.

The kinds 1 to 31 stand here, 32 to 63 belong to consumer groups of KIP-848 (consumer_group_commands). A
command carries whatever its judgement needs: member, generation, number. What its proposer knew may be out of
date, so it is judged again when it is applied, and refused by value with Kafka's own code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple

NO_MEMBER = ""
"""Member id of a client that is not a member: an admin client, or a consumer that assigns its partitions."""
NO_GENERATION = -1
"""Generation (or member epoch) of a client that is not a member."""
NO_RETENTION = -1
"""The commit names no retention of its own: the cluster's holds."""


class GroupOpcode(IntEnum):
    """First element of an entry; a number is never used for anything else."""

    START_GENERATION = 1
    ASSIGN_GENERATION = 2
    REPLACE_STATIC_MEMBER = 3
    COMMIT_OFFSETS = 4
    COMMIT_TRANSACTION_OFFSETS = 5
    END_TRANSACTION = 6
    DELETE_GROUP = 7
    DELETE_OFFSETS = 8
    EXPIRE_OFFSETS = 9
    FORGET_TOPICS = 10


class Member(NamedTuple):
    """A member of a classic group's generation, as it joined. Timeouts are milliseconds."""

    member_id: str
    instance_id: str | None
    """Its `group.instance.id` when it is a static member (KIP-345)."""
    client_id: str
    client_host: str
    session_timeout: int
    rebalance_timeout: int
    protocols: Sequence[tuple[str, bytes]]
    """Protocols in order of preference, each with the metadata that the group's leader assigns by."""


class PartitionOffset(NamedTuple):
    """The offset to go on from, as a client commits it; leader epoch -1: none given."""

    partition: int
    offset: int
    leader_epoch: int
    metadata: str


class TopicOffsets(NamedTuple):
    """The offsets that one commit has for a topic."""

    topic_id: bytes
    topic: str
    partitions: Sequence[PartitionOffset]


@dataclass(frozen=True, slots=True)
class StartGeneration:
    """The join phase is complete: these members form this generation, and wait for their assignments.

    `generation` is the group's present one and 1 more; any from 1 on will do where the group is not there, or
    is no classic one and has no members. No members: the group is empty from now on, `protocol` and `leader`
    are "". Result: GenerationStarted, or Refused with ILLEGAL_GENERATION (another one was faster) or
    INCONSISTENT_GROUP_PROTOCOL (a consumer group that has members).
    """

    kind: ClassVar[int] = GroupOpcode.START_GENERATION
    group: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: Sequence[Member]

    def fields(self) -> list[Any]:
        return [self.group, self.generation, self.protocol_type, self.protocol, self.leader, self.members]


@dataclass(frozen=True, slots=True)
class AssignGeneration:
    """The leader of the generation has assigned; a member without an assignment has b"". The group is stable.

    Result: GenerationAssigned, or Refused with UNKNOWN_MEMBER_ID (no such group), ILLEGAL_GENERATION, or
    REBALANCE_IN_PROGRESS (this generation is assigned already).
    """

    kind: ClassVar[int] = GroupOpcode.ASSIGN_GENERATION
    group: str
    generation: int
    assignments: Mapping[str, bytes]
    """By member id; in the order of the members, so that equal assignments give equal entries."""

    def fields(self) -> list[Any]:
        return [self.group, self.generation, list(self.assignments.items())]


@dataclass(frozen=True, slots=True)
class ReplaceStaticMember:
    """A static member is back under a new member id, within its generation and with its assignment (KIP-345).

    Commits under the old id are fenced from here on. The leader stays the leader, under its new id.
    Result: MemberReplaced, or Refused with ILLEGAL_GENERATION or UNKNOWN_MEMBER_ID (`old` no longer holds the
    instance id of `member`).
    """

    kind: ClassVar[int] = GroupOpcode.REPLACE_STATIC_MEMBER
    group: str
    generation: int
    old: str
    member: Member

    def fields(self) -> list[Any]:
        return [self.group, self.generation, self.old, self.member]


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Commit offsets, all or none. `generation` is the member epoch where the group is one of KIP-848.

    Result: OffsetsCommitted, or Refused with the code of the group's kind (classic or consumer). Without a
    group, GROUP_ID_NOT_FOUND unless the generation is NO_GENERATION: then the commit makes the group.
    """

    kind: ClassVar[int] = GroupOpcode.COMMIT_OFFSETS
    group: str
    member_id: str
    generation: int
    instance_id: str | None
    offsets: Sequence[TopicOffsets]
    retention: int = NO_RETENTION
    """Milliseconds from the commit to the expiry of these offsets, as old clients may ask for."""

    def fields(self) -> list[Any]:
        return [
            self.group,
            self.member_id,
            self.generation,
            self.instance_id,
            self.offsets,
            self.retention,
        ]


@dataclass(frozen=True, slots=True)
class CommitTransactionOffsets:
    """Add offsets to a transaction: they are pending until its marker comes.

    Result: OffsetsCommitted, or Refused: as CommitOffsets (but ILLEGAL_GENERATION for a stale member epoch,
    and for a group that is not there), INVALID_PRODUCER_EPOCH (a newer incarnation was here),
    INVALID_TXN_STATE (this transaction has ended here, or a later one is open), CONCURRENT_TRANSACTIONS (an
    earlier one is open still).
    """

    kind: ClassVar[int] = GroupOpcode.COMMIT_TRANSACTION_OFFSETS
    group: str
    member_id: str
    generation: int
    instance_id: str | None
    producer_id: int
    producer_epoch: int
    transaction: int
    """The transaction's number, by its coordinator."""
    offsets: Sequence[TopicOffsets]

    def fields(self) -> list[Any]:
        return [
            self.group,
            self.member_id,
            self.generation,
            self.instance_id,
            self.producer_id,
            self.producer_epoch,
            self.transaction,
            self.offsets,
        ]


@dataclass(frozen=True, slots=True)
class EndGroupTransaction:
    """A transaction's marker for all groups of this coordinator. Result: GroupTransactionEnded, always."""

    kind: ClassVar[int] = GroupOpcode.END_TRANSACTION
    producer_id: int
    producer_epoch: int
    transaction: int
    commit: bool
    coordinator_term: int

    def fields(self) -> list[Any]:
        return [
            self.producer_id,
            self.producer_epoch,
            self.transaction,
            self.commit,
            self.coordinator_term,
        ]


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """Forget a group of either kind that has no members, with all its offsets, pending ones included.

    Result: GroupDeleted, or Refused with GROUP_ID_NOT_FOUND or NON_EMPTY_GROUP.
    """

    kind: ClassVar[int] = GroupOpcode.DELETE_GROUP
    group: str

    def fields(self) -> list[Any]:
        return [self.group]


@dataclass(frozen=True, slots=True)
class DeleteOffsets:
    """Forget some of a group's offsets, unless a member is subscribed to their topic (KIP-496).

    Result: OffsetsDeleted, or Refused with GROUP_ID_NOT_FOUND, or NON_EMPTY_GROUP (members, but none that
    consume: what they subscribe to cannot be known).
    """

    kind: ClassVar[int] = GroupOpcode.DELETE_OFFSETS
    group: str
    topics: Sequence[tuple[bytes, str, Sequence[int]]]
    """Topic id, name, partitions."""

    def fields(self) -> list[Any]:
        return [self.group, self.topics]


@dataclass(frozen=True, slots=True)
class ExpireOffsets:
    """Let time pass: forget offsets of groups without members, groups that have nothing left, and producers.

    An offset goes `retention` ms after its commit and after its group became empty, whatever is later; one
    with a retention of its own goes when that is over. A producer goes that has nothing open and ended
    nothing for `producer_expiry` ms. The limits travel in the command, so nodes configured otherwise stay
    replicas. Only the groups that are named are looked at, so that applying it takes no longer with all the
    others; a name without a group is passed over. Result: Expired.

    `now` (ms) is a clock that most nodes agree on. Age is judged by it and not by the time of the state, and
    the state goes on from it: should a node whose clock was ahead have led before, time goes back here.
    """

    kind: ClassVar[int] = GroupOpcode.EXPIRE_OFFSETS
    groups: Sequence[str]
    now: int
    retention: int
    producer_expiry: int

    def fields(self) -> list[Any]:
        return [self.groups, self.now, self.retention, self.producer_expiry]


@dataclass(frozen=True, slots=True)
class ForgetTopics:
    """These topics are deleted for good: forget these groups' offsets for them, pending ones included.

    A name without a group is passed over. Result: TopicsForgotten.
    """

    kind: ClassVar[int] = GroupOpcode.FORGET_TOPICS
    groups: Sequence[str]
    topic_ids: Sequence[bytes]

    def fields(self) -> list[Any]:
        return [self.groups, self.topic_ids]


class GenerationStarted(NamedTuple):
    """The group has this generation now."""

    generation: int


class GenerationAssigned(NamedTuple):
    """The members of this generation have their assignments now."""

    generation: int


class MemberReplaced(NamedTuple):
    """The static member has this member id now."""

    member_id: str


class OffsetsCommitted(NamedTuple):
    """All offsets of the command are there: committed, or pending in their transaction."""

    log_index: int


class GroupTransactionEnded(NamedTuple):
    """The transaction is over here; `offsets` became committed by it. `ignored`: it was over before."""

    offsets: int
    ignored: bool = False


class GroupDeleted(NamedTuple):
    """Number of offsets that were deleted with the group."""

    offsets: int


class OffsetsDeleted(NamedTuple):
    """Number of deleted offsets, and ids of the topics that were kept because a member subscribes to them."""

    offsets: int
    subscribed: list[bytes]


class Expired(NamedTuple):
    """Expired offsets, groups that were deleted because nothing of them was left, and expired producers."""

    offsets: int
    groups: list[str]
    producers: int


class TopicsForgotten(NamedTuple):
    """Number of offsets that were deleted with their topics."""

    offsets: int
