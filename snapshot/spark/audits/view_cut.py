"""The cut of a program of views at a restore point, and its topics up to that very cut.

The documents of a point are of different moments. A transaction that was decided before the first of them may
have its marker in some and not in others: the group's document comes first, so a view's topic often has a
marker that the group's offsets lack, or the other way round. What counts is what the transaction's
coordinator says, whose document comes last: a transaction that it has decided to commit is committed in all
of them, and any other one that is open is in none (docs/restore.md, "Transactions").
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from strandline.snapshot.document import SnapshotDocument
from strandline.snapshot.restore_point import RestorePoint
from strandline.snapshot.spark.newest import PointCheckpoints
from strandline.snapshot.spark.views import PartitionView, newest_views, with_blocks
from strandline.snapshot.storage import Storage
from strandline.statemachine.controller.controller_state import ControllerState, Topic
from strandline.statemachine.controller.view_state import ProgramVersion, ViewProgram, group_name
from strandline.statemachine.groups.groups import GroupsMachine
from strandline.statemachine.groups.offsets import CommittedOffset, Offsets
from strandline.statemachine.internal_topics import GROUPS_TOPIC, TRANSACTIONS_TOPIC, coordinator_of
from strandline.statemachine.partition.partition_state import snapshot_fields
from strandline.statemachine.partition.producers import Producers
from strandline.statemachine.transactions.transaction_state import Transaction, TransactionState
from strandline.statemachine.transactions.transactions import TransactionsMachine

Cut = Mapping[tuple[bytes, int], int]
"""Offsets by topic id and partition."""


class ProgramAt(NamedTuple):
    """A program at a point."""

    cut: Cut
    """Offsets of its inputs, up to which its views' topics have everything."""
    transactions: tuple[Transaction, ...]
    """The newest ones of its processes, the live one's and the one's that filled the version."""
    state: str
    """The name of the state that the version has stored last; empty for none."""


class UnknownOutcome(Exception):
    """A transaction is open in a view's topic of which the point does not say whether it is committed."""


class PointPrograms:
    """The programs of views at one restore point. Calls raise SourceError, StorageError, BadObject."""

    def __init__(self, storage: Storage, point: RestorePoint) -> None:
        self._storage = storage
        self._checkpoints = PointCheckpoints(storage, point)
        self._state: ControllerState | None = None

    @property
    def state(self) -> ControllerState:
        """The controller's."""
        if self._state is None:
            self._state = self._checkpoints.controller()
        return self._state

    def at(self, program: ViewProgram, version: ProgramVersion) -> ProgramAt | None:
        """A program's version; None where it has committed nothing, live or before that in its filling."""
        groups = [group_name(program.name, program.created, attempt) for attempt in (None, version.attempt)]
        newest = {group: self._transaction(group) for group in groups}
        for group in groups:
            own = own_offsets(self._offsets(group), newest[group], version.attempt)
            if own:
                cut = {place: one.offset for place, one in own.items()}
                state = _told(next(iter(own.values())).metadata)[0]  # they are all of one commit
                return ProgramAt(cut, tuple(one for one in newest.values() if one is not None), state)
        return None

    def input(self, topic_id: bytes, cut: Cut) -> list[PartitionView] | None:
        """The partitions of an input below a cut; None where one has no document, or the topic is gone."""
        found = self._views(topic_id)
        if found is None:
            return None
        below = [view.within(view.first, cut.get((topic_id, view.number), 0)) for view in found]
        return with_blocks(self._storage, below)

    def lacks_records(self, topic_id: bytes, *, keyed: bool) -> bool:
        """Tell whether records of an input are gone that a version may have taken while they were there."""
        return any(
            self._checkpoints.of_group(
                place.group,
                lambda name, document: lacks_records(snapshot_fields(document.state), keyed=keyed),
            )
            for place in self.state.topics[topic_id].partitions
        )

    def output(self, topic_id: bytes, transactions: Sequence[Transaction]) -> list[PartitionView] | None:
        """The partitions of a view's topic, with what these transactions have committed and no more.

        None where one has no document, or the topic is gone. Raises UnknownOutcome.
        """
        found = self._views(topic_id)
        if found is None:
            return None

        def end(name: str, document: SnapshotDocument) -> int:
            fields = snapshot_fields(document.state)
            producers = Producers.restored(fields["producers"])
            return committed_end(producers, fields["start_offset"], fields["next_offset"], transactions)

        places = self.state.topics[topic_id].partitions
        ends = [self._checkpoints.of_group(place.group, end) or 0 for place in places]
        return with_blocks(
            self._storage, [replace(view, end=end) for view, end in zip(found, ends, strict=True)]
        )

    def _views(self, topic_id: bytes) -> list[PartitionView] | None:
        topic = self.state.topics.get(topic_id)
        if topic is None:
            return None
        places = [(topic, number) for number in range(len(topic.partitions))]
        found = newest_views(self._checkpoints, places, committed=True).values()
        views = [view for view in found if view is not None]
        return views if len(views) == len(places) else None

    def _offsets(self, group: str) -> Offsets | None:
        def load(name: str, document: SnapshotDocument) -> Offsets | None:
            machine = GroupsMachine(lambda index, captured: None)
            machine.restore(document.state)
            found = machine.groups.get(group)
            return found.offsets if found else None

        coordinator = self._coordinator(GROUPS_TOPIC, group)
        return None if coordinator is None else self._checkpoints.of_group(coordinator, load)

    def _transaction(self, transactional_id: str) -> Transaction | None:
        def load(name: str, document: SnapshotDocument) -> Transaction | None:
            machine = TransactionsMachine(lambda index, captured: None)
            machine.restore(document.state)
            return machine.transactions.get(transactional_id)

        coordinator = self._coordinator(TRANSACTIONS_TOPIC, transactional_id)
        return None if coordinator is None else self._checkpoints.of_group(coordinator, load)

    def _coordinator(self, name: str, key: str) -> int | None:
        topic: Topic | None = self.state.by_name.get(name)
        return None if topic is None else topic.partitions[coordinator_of(key, len(topic.partitions))].group


def lacks_records(fields: Mapping[str, Any], *, keyed: bool) -> bool:
    """Tell whether records are gone from a partition whose snapshot has these fields.

    Retention takes rows of any table, cleaning those of a table without a key: what it leaves is the same
    table only by key.
    """
    return bool(fields["start_offset"] if keyed else fields["removals"]["level_one_clean"])


def own_offsets(
    offsets: Offsets | None, newest: Transaction | None, attempt: int
) -> dict[tuple[bytes, int], CommittedOffset]:
    """The offsets that a version has committed; `newest` is the transaction of its process.

    After a cutover the live group still has the offsets of the version before.
    """
    if offsets is None:
        return {}
    there: dict[tuple[bytes, int], CommittedOffset] = {
        (topic_id, number): one
        for topic_id, partitions in offsets.committed.items()
        for number, one in partitions.items()
    }
    if newest is not None and newest.state is TransactionState.PREPARE_COMMIT:
        there |= offsets.pending.get(newest.marker_producer_id, {})
    return {place: one for place, one in there.items() if one.metadata and _told(one.metadata)[1] == attempt}


def _told(metadata: str) -> tuple[str, int]:
    """The stored state and the version; librdkafka sends the text with the 0 behind it."""
    state, attempt, *_ = json.loads(metadata.rstrip("\0"))
    return str(state), int(attempt)


def committed_end(
    producers: Producers, start_offset: int, next_offset: int, transactions: Sequence[Transaction]
) -> int:
    """The offset below which everything in a partition is decided, by its markers or by these transactions.

    Raises UnknownOutcome for an open transaction that is none of them, and for one that is committed and
    lies behind one that is not.
    """
    decided = [one for one in transactions if one.state is TransactionState.PREPARE_COMMIT]
    commits = {(one.marker_producer_id, one.number) for one in decided}
    others = {one.producer_id for one in transactions} | {one.marker_producer_id for one in transactions}
    end, committed = next_offset, -1
    for producer in producers:
        opened = producers.open_transaction(producer.producer_id)
        if opened is None:
            continue
        if (producer.producer_id, opened.number) in commits:
            committed = max(committed, opened.first_offset)
        elif producer.producer_id in others:
            end = min(end, opened.first_offset)
        else:
            raise UnknownOutcome(
                f"that of producer {producer.producer_id}, from offset {opened.first_offset} on, is none of "
                "the program's"
            )
    if committed >= end:
        raise UnknownOutcome(f"that from offset {end} on is not committed, and one behind it is")
    return max(end, start_offset)
