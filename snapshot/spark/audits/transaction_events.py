"""Events of transactions in the logs: coordinators' decisions, and their effects in partitions and groups.

A coordinator's state has the newest transaction of each id, a partition's what is open; the rest is history,
and that is in the logs. A transaction's rows come from many groups, whose checkpoints are of different
moments. So each group also says from when to when its log is covered: what is missing outside of that is not
missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgpack
from pyspark.sql.types import BooleanType, LongType, StringType, StructField

from strandline.snapshot.spark.audits.references import GroupPlace
from strandline.statemachine.groups.classic_group import ClassicGroup
from strandline.statemachine.groups.consumer_group import ConsumerGroup
from strandline.statemachine.groups.group_commands import (
    NO_GENERATION,
    NO_MEMBER,
    GroupOpcode,
    OffsetsCommitted,
)
from strandline.statemachine.groups.group_commands import GroupTransactionEnded as OffsetsEnded
from strandline.statemachine.groups.groups import GroupsMachine
from strandline.statemachine.internal_topics import GROUPS_TOPIC, coordinator_of
from strandline.statemachine.machine import StateMachine
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import Appended, PartitionOpcode, TransactionEnded
from strandline.statemachine.partition.placeholder import InlineBatch, Placeholder
from strandline.statemachine.partition.producer_state import NO_TRANSACTION
from strandline.statemachine.transactions.transaction_commands import Enlisted, Prepared, TransactionOpcode
from strandline.statemachine.transactions.transaction_state import (
    AT_REST,
    PREPARED,
    Transaction,
    TransactionState,
)
from strandline.statemachine.transactions.transactions import TransactionsMachine

COVERED: Final = "covered"
"""The group's log is covered from `time` to `until`, by the machine's time in ms; `committed`: from the very
beginning."""
KNOWN: Final = "known"
"""At the start of the covered log, transactions of the producer up to `number` are history."""
WRITTEN: Final = "written"
"""The first batch of a transaction in a partition, or the first offsets of one in a group."""
MARKER: Final = "marker"
"""A transaction ended in a partition or a group; `open_number` is that of the one that was open."""
ENLISTED: Final = "enlisted"
"""A partition or a group became part of a transaction; `target` is its Raft group, null: no longer there."""
DECIDED: Final = "decided"
COMPLETED: Final = "completed"
OUTSIDE: Final = "outside"
"""Offsets of a transaction came from a member, or of a generation, that the group did not have there; whether
they were refused for it is not said."""

EVENT_FIELDS = [
    StructField("event", StringType()),
    StructField("kind", StringType()),
    StructField("time", LongType()),
    StructField("until", LongType()),
    StructField("producer_id", LongType()),
    StructField("producer_epoch", LongType()),
    StructField("transaction", LongType()),
    StructField("committed", BooleanType()),
    StructField("open_number", LongType()),
    StructField("transactional_id", StringType()),
    StructField("target", LongType()),
    StructField("offset", LongType()),
]
"""`offset` is a partition's, or the log index in a coordinator's log."""
EVENT_NAMES: Final = tuple(field.name for field in EVENT_FIELDS)


class Event(NamedTuple):
    """A row of EVENT_FIELDS."""

    event: str
    kind: str
    time: int
    until: int | None = None
    producer_id: int | None = None
    producer_epoch: int | None = None
    transaction: int | None = None
    committed: bool | None = None
    open_number: int | None = None
    transactional_id: str | None = None
    target: int | None = None
    offset: int | None = None


class Targets:
    """The Raft groups of what may be part of a transaction, as the controller's newest document has them."""

    def __init__(self, places: Mapping[int, GroupPlace]) -> None:
        self._partitions = {(place.topic_id, place.partition): group for group, place in places.items()}
        self._coordinators = {
            place.partition: group for group, place in places.items() if place.topic == GROUPS_TOPIC
        }

    def partition(self, topic_id: bytes, partition: int) -> int | None:
        return self._partitions.get((topic_id, partition))

    def group(self, group_id: str) -> int | None:
        if not self._coordinators:
            return None
        return self._coordinators.get(coordinator_of(group_id, len(self._coordinators)))


class TransactionEvents:
    """One group's events, in the order of its log. A gap in the covered log starts a new history."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._events: list[Event] = []
        self._covered: Event | None = None
        self._open: dict[int, int] = {}
        """Number of the transaction that a producer has open here."""
        self._decided: dict[str, int] = {}
        """The newest number of each transactional id that was told as decided."""

    def found(self) -> list[Event]:
        """All of them; nothing when the log is not covered up to the newest checkpoint."""
        return [] if self._covered is None else [self._covered, *self._events]

    def lost(self) -> None:
        """A gap follows the events so far."""
        self._events.clear()
        self._covered = None
        self._open.clear()
        self._decided.clear()

    def begin(self, machine: StateMachine, *, whole: bool) -> None:
        """A log is about to be applied to this state; `whole`: it is the group's first."""
        if self._covered is not None or not isinstance(machine, _MACHINES):
            return
        kind, now = machine.kind, machine.time
        self._covered = Event(COVERED, kind, now, now, committed=whole)
        if isinstance(machine, TransactionsMachine):
            for one in machine.transactions.values():
                self._begin_id(one, now)
        elif isinstance(machine, GroupsMachine):
            for producer_id, known in machine.producers:
                self._begin_producer(kind, now, producer_id, known.epoch, known.ended, known.open, 0)
        else:
            assert isinstance(machine, PartitionStateMachine), "the only other one"
            for described in machine.producers:
                producer_id = described.producer_id
                state, opened = machine.producers.get(producer_id), machine.open_transaction(producer_id)
                assert state is not None, "it was described"
                number, first = (0, 0) if opened is None else opened[:2]
                self._begin_producer(kind, now, producer_id, state.epoch, state.ended, number, first)

    def _begin_producer(
        self, kind: str, now: int, producer_id: int, epoch: int, ended: int, opened: int, first: int
    ) -> None:
        self._add(KNOWN, kind, now, producer_id, epoch, ended)
        if opened:
            self._open[producer_id] = opened
            self._add(WRITTEN, kind, now, producer_id, epoch, opened, offset=first)

    def _begin_id(self, one: Transaction, now: int) -> None:
        known = one.number if one.state in AT_REST else one.number - 1
        for producer_id in dict.fromkeys((one.producer_id, one.marker_producer_id)):
            self._add(KNOWN, TransactionsMachine.kind, now, producer_id, one.epoch, known)
        if one.state is TransactionState.ONGOING:
            self._enlist(one, [*one.partitions], [*one.groups], one.producer_id, one.epoch, now, 0)
        elif one.state in PREPARED:
            claim = (one.marker_producer_id, one.marker_epoch)
            self._enlist(one, [*one.partitions], [*one.groups], *claim, now, 0)
            self._decide(one, now, 0)

    def applied(self, machine: StateMachine, index: int, entry: bytes, result: Any) -> None:
        """An entry was applied to the machine, with this result."""
        if self._covered is None or not isinstance(machine, _MACHINES):
            return
        self._covered = self._covered._replace(until=machine.time)
        if isinstance(machine, PartitionStateMachine):
            if isinstance(result, list):
                _, _, commands = msgpack.unpackb(entry)
                for (kind, *fields), answer in zip(commands, result, strict=True):
                    self._in_partition(machine, kind, fields, answer)
            return
        _, _, kind, *fields = msgpack.unpackb(entry)
        if isinstance(machine, GroupsMachine):
            self._in_group(machine, index, kind, fields, result)
        elif isinstance(machine, TransactionsMachine):
            self._in_coordinator(machine, index, kind, fields, result)

    def _in_partition(
        self, machine: PartitionStateMachine, kind: int, fields: list[Any], answer: Any
    ) -> None:
        if kind in (PartitionOpcode.APPEND, PartitionOpcode.APPEND_INLINE):
            rows = fields[2] if kind == PartitionOpcode.APPEND else fields[0]
            make = Placeholder if kind == PartitionOpcode.APPEND else InlineBatch
            for row, one in zip(rows, answer, strict=True):
                batch: Placeholder | InlineBatch = make(*row)
                if batch.transaction != NO_TRANSACTION and isinstance(one, Appended) and not one.duplicate:
                    claim = [batch.producer_id, batch.producer_epoch, batch.transaction]
                    self._write(machine.kind, machine.time, claim, one.base_offset)
        elif kind == PartitionOpcode.END_TRANSACTION and isinstance(answer, TransactionEnded):
            self._end(machine.kind, machine.time, fields[:4], answer.base_offset)

    def _in_group(
        self, machine: GroupsMachine, index: int, kind: int, fields: list[Any], result: Any
    ) -> None:
        if kind == GroupOpcode.COMMIT_TRANSACTION_OFFSETS and not _is_member(machine, *fields[:4]):
            self._add(OUTSIDE, machine.kind, machine.time, *fields[4:7], offset=index)
        if kind == GroupOpcode.COMMIT_TRANSACTION_OFFSETS and isinstance(result, OffsetsCommitted):
            self._write(machine.kind, machine.time, fields[4:7], index)
        elif kind == GroupOpcode.END_TRANSACTION and isinstance(result, OffsetsEnded) and not result.ignored:
            self._end(machine.kind, machine.time, fields[:4], index)

    def _in_coordinator(
        self, machine: TransactionsMachine, index: int, kind: int, fields: list[Any], result: Any
    ) -> None:
        one = machine.transactions.get(fields[0]) if fields else None
        if one is None:
            return
        if isinstance(result, Enlisted):
            _, producer_id, epoch, partitions, groups = fields
            self._enlist(one, partitions, groups, producer_id, epoch, machine.time, index)
        elif isinstance(result, Prepared) and one.state in PREPARED:
            self._decide(one, machine.time, index)
        elif kind == TransactionOpcode.COMPLETE and result is True:
            self._add(
                COMPLETED, machine.kind, machine.time, one.marker_producer_id, one.marker_epoch, one.number,
                committed=one.commits, transactional_id=one.transactional_id, offset=index,
            )  # fmt: skip

    def _enlist(
        self,
        one: Transaction,
        partitions: list[Any],
        groups: list[str],
        producer_id: int,
        epoch: int,
        now: int,
        index: int,
    ) -> None:
        targets = [self._targets.partition(*partition) for partition in partitions]
        for target in (*targets, *map(self._targets.group, groups)):
            self._add(
                ENLISTED, TransactionsMachine.kind, now, producer_id, epoch, one.number,
                transactional_id=one.transactional_id, target=target, offset=index,
            )  # fmt: skip

    def _decide(self, one: Transaction, now: int, index: int) -> None:
        if self._decided.get(one.transactional_id) != one.number:
            self._decided[one.transactional_id] = one.number
            self._add(
                DECIDED, TransactionsMachine.kind, now, one.marker_producer_id, one.marker_epoch, one.number,
                committed=one.commits, transactional_id=one.transactional_id, offset=index,
            )  # fmt: skip

    def _write(self, kind: str, now: int, claim: list[int], offset: int) -> None:
        producer_id, epoch, number = claim
        if self._open.get(producer_id) != number:
            self._open[producer_id] = number
            self._add(WRITTEN, kind, now, producer_id, epoch, number, offset=offset)

    def _end(self, kind: str, now: int, ended: list[Any], offset: int) -> None:
        producer_id, epoch, number, commit = ended
        opened = self._open.pop(producer_id, None)
        self._add(
            MARKER, kind, now, producer_id, epoch, number, committed=commit, open_number=opened, offset=offset
        )

    def _add(
        self, event: str, kind: str, now: int, producer_id: int, epoch: int, number: int, **more: Any
    ) -> None:
        told = Event(event, kind, now, None, producer_id, epoch, number)
        self._events.append(told._replace(**more))


def _is_member(
    machine: GroupsMachine, group_id: str, member_id: str, generation: int, instance_id: str | None
) -> bool:
    """Whether a group has this member, in this generation or member epoch, and of this instance.

    A commit that names none of it passes: clients from before KIP-447 cannot name them. So does one without a
    generation while the group has no members, whatever its member id: it assigns itself its partitions.
    """
    group = machine.groups.get(group_id)
    membership = None if group is None else group.membership
    if generation < 0 and (membership is None or membership.is_empty):
        return True
    if isinstance(membership, ClassicGroup):
        if (member_id, instance_id) == (NO_MEMBER, None) and generation <= NO_GENERATION:
            return True
        member = membership.members.get(member_id)
        # An instance that is not named is not held against a member that has one.
        known = member is not None and instance_id in (None, member.instance_id)
        return known and generation == membership.generation
    if isinstance(membership, ConsumerGroup):
        if (member_id, generation, instance_id) == (NO_MEMBER, NO_GENERATION, None):
            return True
        return member_id in membership.members and generation == membership.members[member_id].epoch
    return False


_MACHINES: Final = (PartitionStateMachine, GroupsMachine, TransactionsMachine)
