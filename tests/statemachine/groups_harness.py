"""A groups' coordinator in a test: entries in their order, and the names its members and topics have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strandline.statemachine.coordinator_machine import CoordinatorCommand, encode
from strandline.statemachine.groups.consumer_group_commands import STABLE, ChangeConsumerGroup, ConsumerMember
from strandline.statemachine.groups.group_commands import (
    NO_GENERATION,
    NO_MEMBER,
    AssignGeneration,
    CommitOffsets,
    CommitTransactionOffsets,
    EndGroupTransaction,
    ExpireOffsets,
    Member,
    PartitionOffset,
    StartGeneration,
    TopicOffsets,
)
from strandline.statemachine.groups.groups import GroupsMachine
from strandline.statemachine.groups.offsets import CommittedOffset
from strandline.statemachine.kafka_errors import KafkaError, Refused
from strandline.statemachine.machine import Captured, packed

EVENTS, CLICKS = b"events" + bytes(10), b"clicks" + bytes(10)
NAMES = {EVENTS: "events", CLICKS: "clicks"}
DAY = 24 * 60 * 60 * 1000


def ignore(index: int, captured: Captured) -> None:
    """Checkpoints are not published here."""


def subscription(*topics: str) -> bytes:
    """A consumer's metadata: ConsumerProtocolSubscription, version 0, with no user data."""
    names = b"".join(len(topic.encode()).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


def member(member_id: str, instance_id: str | None = None, *topics: str) -> Member:
    protocols = [("range", subscription(*topics)), ("other", b"")]
    return Member(member_id, instance_id, "client", "/10.0.0.1", 45_000, 300_000, protocols)


def consumers(version: int, epoch: int, *member_ids: str, removed: Sequence[str] = ()) -> ChangeConsumerGroup:
    """Members of KIP-848 in this epoch, subscribed to events, join group g; others leave it."""
    members = [
        ConsumerMember(one, None, None, "", "", 1, ("events",), "", None, epoch, epoch, STABLE, (), ())
        for one in member_ids
    ]
    return ChangeConsumerGroup("g", version, epoch, None, None, removed, members, {})


def offsets(offset: int, *partitions: int, topic: bytes = EVENTS, metadata: str = "") -> list[TopicOffsets]:
    rows = [PartitionOffset(partition, offset, 3, metadata) for partition in partitions or (0,)]
    return [TopicOffsets(topic, NAMES[topic], rows)]


class Groups:
    """One machine and its log."""

    def __init__(self) -> None:
        self.machine = GroupsMachine(ignore)
        self.index = self.term = 0
        self.time = 1000
        self.begin_term()

    def begin_term(self) -> None:
        self.index += 1
        self.term += 1
        self.machine.begin_term(self.index, self.term, 1)

    def do(self, command: CoordinatorCommand) -> Any:
        self.index += 1
        return self.machine.apply(self.index, self.term, encode(self.term, self.time, command))

    def refused(self, command: CoordinatorCommand) -> KafkaError:
        """The code of a refusal, which changed nothing."""
        before = packed(self.machine.fields())
        result = self.do(command)
        assert isinstance(result, Refused), result
        assert packed(self.machine.fields()) == before
        return result.error

    def restart(self) -> None:
        """Go on from the snapshot, which a second one equals."""
        state = self.machine.snapshot()
        self.machine = GroupsMachine(ignore)
        self.machine.restore(state)
        assert self.machine.snapshot() == state

    def expire(self, retention: int, producer_expiry: int) -> Any:
        """Let time pass for all groups."""
        return self.do(ExpireOffsets([*self.machine.groups], self.time, retention, producer_expiry))

    def generation(
        self, *members: Member, group: str = "g", generation: int = 1, assigned: bool = True
    ) -> None:
        leader = members[0].member_id if members else ""
        protocol = "range" if members else ""
        assert self.do(StartGeneration(group, generation, "consumer", protocol, leader, members)) == (
            generation,
        )
        if members and assigned:
            assignments = {one.member_id: b"its" for one in members}
            assert self.do(AssignGeneration(group, generation, assignments)) == (generation,)

    def commit(
        self,
        rows: list[TopicOffsets],
        member_id: str = NO_MEMBER,
        generation: int = NO_GENERATION,
        *,
        group: str = "g",
        instance_id: str | None = None,
        retention: int = -1,
    ) -> CommitOffsets:
        return CommitOffsets(group, member_id, generation, instance_id, rows, retention)

    def add(
        self,
        rows: list[TopicOffsets],
        producer: int = 7,
        number: int = 1,
        epoch: int = 0,
        *,
        group: str = "g",
        member_id: str = NO_MEMBER,
        generation: int = NO_GENERATION,
        instance_id: str | None = None,
    ) -> CommitTransactionOffsets:
        return CommitTransactionOffsets(
            group, member_id, generation, instance_id, producer, epoch, number, rows
        )

    def end(
        self, producer: int = 7, number: int = 1, epoch: int = 0, *, commit: bool = True
    ) -> EndGroupTransaction:
        return EndGroupTransaction(producer, epoch, number, commit, 1)

    def committed(self, partition: int = 0, topic: bytes = EVENTS, group: str = "g") -> int | None:
        """The offset that is there, None without one."""
        row = self.row(partition, topic, group)
        return None if row is None else row.offset

    def row(self, partition: int = 0, topic: bytes = EVENTS, group: str = "g") -> CommittedOffset | None:
        there = self.machine.groups.get(group)
        return None if there is None else there.offsets.get(topic, partition)

    def pending(self, partition: int = 0, topic: bytes = EVENTS, group: str = "g") -> bool:
        there = self.machine.groups.get(group)
        return there is not None and there.offsets.is_pending(topic, partition)
