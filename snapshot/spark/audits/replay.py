"""Applying a published log to the checkpoint before it: does that give the checkpoint after it?

The state machines are pure, so the same entries must give the same bytes today as they gave on the node. What
differs means that a replica's state was not what its log says: a defect, or damage that has a valid digest.

On the way every batch that a partition ever got passes by, with its offset and where it lay in level zero,
long after level one has its records. Other audits compare with that, so it is handed out as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgpack
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from strandline.snapshot.document import SnapshotDocument
from strandline.snapshot.log_document import decode_log
from strandline.snapshot.names import LogName, SnapshotName, log_name, snapshot_name
from strandline.snapshot.spark.audits.documents import Listing, is_little, of_this_release, read_document
from strandline.snapshot.spark.audits.references import GroupPlace
from strandline.snapshot.spark.audits.transaction_events import EVENT_FIELDS, Targets, TransactionEvents
from strandline.snapshot.spark.audits.work import ClusterStorage, frame
from strandline.snapshot.spark.audits.written import WRITTEN_FIELDS, WrittenBatches
from strandline.snapshot.storage import ObjectMissing, Storage, StorageError
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.groups.groups import GroupsMachine
from strandline.statemachine.machine import Captured, StateMachine
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.transactions.transactions import TransactionsMachine

AGREES = "agrees"
DIFFERS = "differs"
NOT_COVERED = "not covered"

SCHEMA = StructType(
    [
        StructField("root", IntegerType(), False),
        StructField("group", LongType(), False),
        StructField("log_index", LongType(), False),
        StructField("after", LongType()),
        StructField("entries", LongType()),
        StructField("outcome", StringType()),
        StructField("problem", StringType()),
        *WRITTEN_FIELDS,
        *EVENT_FIELDS,
    ]
)
"""A row for each checkpoint; one without `outcome` for each batch found on the way to it, and one with an
`event` for each that transactions brought."""
_NO_BATCH = (None,) * len(WRITTEN_FIELDS)
_NO_EVENT = (None,) * len(EVENT_FIELDS)

Outcome = tuple[int | None, int | None, str, str | None]
"""after, entries, outcome, problem."""


def replay_rows(
    spark: SparkSession,
    storages: Sequence[ClusterStorage],
    listings: Sequence[Listing],
    places: Sequence[Mapping[int, GroupPlace]],
) -> DataFrame:
    """The rows of SCHEMA of all groups, which are replayed in parallel."""
    stores = [storage.storage for storage in storages]
    # Once for all groups: it knows all partitions.
    targets = [Targets(known) for known in places]
    items = []
    for root, found in enumerate(listings):
        groups: dict[int, tuple[list[Any], list[Any]]] = {}
        for name in found.documents:
            groups.setdefault(name.group, ([], []))[0].append(tuple(name))
        for entry in found.logs:
            groups.setdefault(entry.group, ([], []))[1].append(tuple(entry))
        items += [(root, group, *names) for group, names in groups.items()]

    def work(item: tuple[int, int, list[Any], list[Any]]) -> Iterator[tuple[Any, ...]]:
        root, group, documents, logs = item
        replay = GroupReplay(stores[root], documents, logs, targets[root])
        index = 0
        for index in sorted(replay.names):
            yield (root, group, index, *replay.outcome(index), *_NO_BATCH, *_NO_EVENT)
            for batch in replay.written.found():
                yield (root, group, index, None, None, None, None, *batch, *_NO_EVENT)
        for event in replay.events.found():
            yield (root, group, index, None, None, None, None, *_NO_BATCH, *event)

    return frame(spark, items, work, SCHEMA, here=is_little(listings))


_Found = tuple[SnapshotName, SnapshotDocument]


class GroupReplay:
    """One group's checkpoints, read as they are needed."""

    def __init__(self, storage: Storage, documents: list[Any], logs: list[Any], targets: Targets) -> None:
        self.names: dict[int, list[SnapshotName]] = {}
        for document in documents:
            name = SnapshotName(*document)
            self.names.setdefault(name.log_index, []).append(name)
        self._logs = {name.log_index: name for name in (LogName(*entry) for entry in logs)}
        self._storage = storage
        self._found: dict[int, list[_Found]] = {}
        self.written = WrittenBatches()
        """Findings since the last call."""
        self.events = TransactionEvents(targets)

    def outcome(self, index: int) -> Outcome:
        outcome = self._outcome(index)
        if outcome[1] is None:
            self.events.lost()
        if later := self._documents(index):
            self.written.in_state(_commonest(later))
        return outcome

    def _outcome(self, index: int) -> Outcome:
        name = self._logs.get(index)
        if name is None:
            return None, None, NOT_COVERED, "no log was published"
        if name.after and name.after not in self.names:
            return name.after, None, NOT_COVERED, "the checkpoint it starts from is gone"
        earlier = self._documents(name.after) if name.after else None
        later = self._documents(index)
        if not later or earlier == []:
            return name.after, None, NOT_COVERED, "no document can be read"
        try:
            data = self._storage.get(log_name(*name))
        except ObjectMissing:
            return name.after, None, NOT_COVERED, "its log was deleted since it was listed"
        except StorageError as error:
            return name.after, None, DIFFERS, f"{error}"
        try:
            log = decode_log(data)
            if (log.cluster, log.group, log.after, log.index) != tuple(name):
                return name.after, None, DIFFERS, "these are the bytes of another log"
            machine = _machine(later[0][1])
            if earlier:
                machine.restore(_commonest(earlier).state)
            self.events.begin(machine, whole=not name.after)
            entries = log.read()
            for entry in entries:
                if isinstance(entry.given, int):
                    machine.begin_term(entry.log_index, entry.term, entry.given)
                else:
                    result = machine.apply(entry.log_index, entry.term, entry.given)
                    if isinstance(machine, PartitionStateMachine):
                        self.written.applied(machine.term, entry.given, result)
                    self.events.applied(machine, entry.log_index, entry.given, result)
            state = machine.snapshot()
        except Exception as error:
            # A log that cannot be read, or that no machine could have applied: either is what is looked for.
            return name.after, None, DIFFERS, f"{error}"
        problems = [
            f"node {name.node}: {difference}"
            for name, document in later
            if (difference := _difference(document, state, entries[-1].term))
        ]
        return name.after, len(entries), DIFFERS if problems else AGREES, "; ".join(problems) or None

    def _documents(self, index: int) -> list[_Found]:
        """The documents of a checkpoint that can be read; the audit of the documents names the others."""
        if index not in self._found:
            found = []
            for name in self.names[index]:
                try:
                    stored = read_document(self._storage.get(snapshot_name(*name)), name)
                    found.append((name, of_this_release(stored)))
                except (StorageError, ValueError):
                    continue
            # The next replay starts from this one; states may be large.
            self._found = {kept: self._found[kept] for kept in list(self._found)[-1:]} | {index: found}
        return self._found[index]


def _machine(document: SnapshotDocument) -> StateMachine:
    """The machine of a group before its first entry."""
    creation_epoch = 0
    if document.kind == PartitionStateMachine.kind:
        creation_epoch = msgpack.unpackb(document.state)["creation_epoch"]
    return new_machine(document.kind, creation_epoch)


def new_machine(kind: str, creation_epoch: int) -> StateMachine:
    """A machine of a kind that publishes checkpoints; only a partition's has a creation epoch. Raises
    KeyError for any other kind."""
    if kind == PartitionStateMachine.kind:
        return PartitionStateMachine(creation_epoch, _nobody)
    return _KINDS[kind](_nobody)


def _nobody(index: int, captured: Captured) -> None:
    """Publish nothing: a replay has no publisher."""


_KINDS: Mapping[str, Callable[[Callable[[int, Captured], None]], StateMachine]] = {
    Controller.kind: Controller,
    GroupsMachine.kind: GroupsMachine,
    TransactionsMachine.kind: TransactionsMachine,
}


def _commonest(found: list[_Found]) -> SnapshotDocument:
    """The document that most replicas published; of two equally common ones the lower node's."""
    counts = Counter(document.state for _, document in found)
    return max((document for _, document in found), key=lambda document: counts[document.state])


def _difference(document: SnapshotDocument, state: bytes, term: int) -> str | None:
    if document.term != term:
        return f"its document says term {document.term}, the log {term}"
    if document.state == state:
        return None
    stored, replayed = msgpack.unpackb(document.state), msgpack.unpackb(state)
    names = [name for name in {**stored, **replayed} if stored.get(name) != replayed.get(name)]
    shown = [
        f"{name} {stored.get(name)} instead of {replayed.get(name)}"
        if isinstance(stored.get(name), int) and isinstance(replayed.get(name), int)
        else name
        for name in names
    ]
    return f"its state differs in {', '.join(map(str, shown)) or 'its encoding'}"
