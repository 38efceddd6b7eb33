"""Tail points while all goes wrong: whenever one is there, a restore could go on from it.

Each new point is read as a restore reads it, from the bucket as it is at that moment. The state of each group
must be the one that its log has at the entry, and the states must fit together: no offset of a group above
its partition's end, no marker of a transaction that its coordinator has not decided, and no open transaction
that no coordinator knows. When all is over, what clients did tells of transactions that would be torn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from strandline.node.restore.reading import CannotRestore
from strandline.node.restore.stored_tails import may_need, state_at
from strandline.snapshot.document import SnapshotDocument
from strandline.snapshot.tail_document import Section, TailDocument, decode_tail, life_prefix
from strandline.snapshot.tail_point import TailPoint, decode_tail_point, tail_points_prefix
from strandline.statemachine.controller.controller_snapshot import load
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP, ControllerState
from strandline.statemachine.groups.groups import GroupsMachine
from strandline.statemachine.internal_topics import GROUPS_TOPIC, INTERNAL_TOPICS, TRANSACTIONS_TOPIC
from strandline.statemachine.partition.partition_state import PartitionState
from strandline.statemachine.transactions.transaction_state import (
    PREPARED,
    Transaction,
    TransactionState,
)
from strandline.statemachine.transactions.transactions import TransactionsMachine
from tests.histories.history import History, Place
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.replays import Replays, ignore

LOOK_SECONDS: Final = 0.3
CHECK: Final = "tail points"


@dataclass(slots=True)
class _Judged:
    """What of a point is needed when all is over."""

    name: str
    ends: dict[Place, tuple[int, int]] = field(default_factory=dict)
    """Of each partition, the next offset and the last stable offset."""


class PointJudge:
    """Looks for new points now and then, from `start` on."""

    def __init__(self, cluster: WholeCluster) -> None:
        self._cluster = cluster
        self._tails: dict[str, TailDocument] = {}
        self._replays = Replays(cluster.ledger)
        self._judged: dict[str, _Judged] = {}
        self._newest = ""

    @property
    def points(self) -> int:
        return len(self._judged)

    def has(self, topic: str) -> bool:
        """Whether the newest point has this topic."""
        return Place(topic, 0) in self._judged[self._newest].ends if self._newest in self._judged else False

    def start(self) -> None:
        self._again()

    def restored(self, documents: Iterable[SnapshotDocument]) -> None:
        """Judge from now on the points of the cluster that begins with these states."""
        self._replays.begin_with(documents)

    def _again(self) -> None:
        self.look()
        self._cluster.world.call_later(LOOK_SECONDS, self._again)

    def look(self) -> None:
        """Judge the newest point, if it is new."""
        names = self._cluster.store.keys(tail_points_prefix("simulated"))
        if not names or names[-1] <= self._newest:
            return
        self._newest = names[-1]
        point = decode_tail_point(self._cluster.store.objects[names[-1]])
        sections = self._sections(point)
        try:
            documents = {one.group: state_at(point, one, sections[one.group]) for one in point.groups}
        except CannotRestore as error:
            self._broken(f"{names[-1]}: {error}")
            return
        for document in documents.values():
            self._judge_state(names[-1], document)
        self._judge_together(names[-1], documents)

    def _broken(self, text: str) -> None:
        self._cluster.ledger.broken(CHECK, text)

    def _sections(self, point: TailPoint) -> Mapping[int, list[Section]]:
        objects = self._cluster.store.objects
        names = self._cluster.store.keys(life_prefix(point.cluster, point.incarnation))
        self._tails = {
            name: self._tails.get(name) or decode_tail(objects[name])
            for name in names
            if may_need(point, name)
        }
        wanted = {one.group: one.log_index for one in point.groups}
        found: defaultdict[int, list[Section]] = defaultdict(list)
        for tail in self._tails.values():
            for section in tail.sections:
                if section.after <= wanted.get(section.group, -1):
                    found[section.group].append(section)
        return found

    # One group.

    def _judge_state(self, name: str, document: SnapshotDocument) -> None:
        if document.group == CONTROLLER_GROUP:
            return  # without users' credentials it is another state than the log's
        replayed = self._replays.at(document.kind, document.group, document.index)
        if replayed is not None and replayed.snapshot() != document.state:
            self._broken(f"{name}: group {document.group} has another state after entry {document.index}")

    # All of them.

    def _judge_together(self, name: str, documents: Mapping[int, SnapshotDocument]) -> None:
        controller = load(documents[CONTROLLER_GROUP].state)
        judged = self._judged[name] = _Judged(name)
        states = {
            place: PartitionState.loaded(documents[group].state)
            for place, group in _partitions(controller)
            if group in documents
        }
        transactions = [*_transactions(controller, documents)]
        for place, state in states.items():
            judged.ends[place] = state.next_offset, state.last_stable_offset
            self._judge_transactions(judged, place, state, transactions)
        self._judge_offsets(name, controller, documents, judged)

    def _judge_transactions(
        self, judged: _Judged, place: Place, state: PartitionState, transactions: list[Transaction]
    ) -> None:
        by_id = {one.producer_id: one for one in transactions}
        by_id |= {one.marker_producer_id: one for one in transactions if one.state in PREPARED}
        for one in transactions:
            known = state.producers.get(one.producer_id)
            if one.state is TransactionState.ONGOING and known is not None and known.ended >= one.number:
                self._broken(
                    f"{judged.name}: {place} has the marker of transaction {one.number} of"
                    f" {one.transactional_id}, which is not decided"
                )
        for producer in state.producers:
            opened = state.producers.open_transaction(producer.producer_id)
            if opened is None:
                continue
            owner = by_id.get(producer.producer_id)
            if (
                owner is None
                or owner.number != opened.number
                or owner.state
                not in (
                    *PREPARED,
                    TransactionState.ONGOING,
                )
            ):
                self._broken(
                    f"{judged.name}: transaction {opened.number} of producer {producer.producer_id} is open"
                    f" in {place}, and no coordinator has it: {owner}"
                )

    def _judge_offsets(
        self,
        name: str,
        controller: ControllerState,
        documents: Mapping[int, SnapshotDocument],
        judged: _Judged,
    ) -> None:
        topic = controller.by_name.get(GROUPS_TOPIC)
        names = {topic_id: one.name for topic_id, one in controller.topics.items()}
        for partition in topic.partitions if topic else ():
            if partition.group not in documents:
                continue
            machine = GroupsMachine(ignore)
            machine.restore(documents[partition.group].state)
            for group_id, group in machine.groups.items():
                pending = [key for rows in group.offsets.pending.values() for key in rows.items()]
                committed = [
                    ((topic_id, number), row)
                    for topic_id, rows in group.offsets.committed.items()
                    for number, row in rows.items()
                ]
                for (topic_id, number), row in (*committed, *pending):
                    end, _ = judged.ends.get(Place(names.get(topic_id, ""), number), (row.offset, 0))
                    if row.offset > end:
                        self._broken(
                            f"{name}: {group_id} has offset {row.offset} of {names[topic_id]}-{number}, which"
                            f" ends at {end}"
                        )

    # When all is over.

    def judge(self, history: History) -> None:
        """Hold what clients did against all points: transactions that would be torn."""
        found = {
            read.value: (place, read.offset) for place, reads in history.committed.items() for read in reads
        }
        for transaction in history.transactions:
            last: dict[Place, int] = {}
            for sent in transaction.sent:
                if sent.value in found:
                    place, offset = found[sent.value]
                    last[place] = max(last.get(place, 0), offset)
            for judged in self._judged.values():
                self._judge_torn(judged, transaction.client, last)

    def _judge_torn(self, judged: _Judged, client: str, last: Mapping[Place, int]) -> None:
        """`last` are the last offsets of a committed transaction, by partition."""
        if not any(offset < judged.ends.get(place, (0, 0))[1] for place, offset in last.items()):
            return  # no partition says that it was committed
        for place, offset in last.items():
            end, _ = judged.ends.get(place, (0, 0))
            if offset >= end:
                self._broken(f"{judged.name}: a transaction of {client} is torn: {place} ends at {end}")

    def behind(self) -> str | None:
        """What the newest point lacks once all is calm; None if nothing."""
        self.look()
        judged = self._judged.get(self._newest)
        if judged is None:
            return "there is no tail point"
        controller = self._cluster.newest().controller.machine
        for topic in controller.topics:
            if topic.name in INTERNAL_TOPICS:
                continue
            for number, partition in enumerate(topic.partitions):
                newest = self._cluster.ledger.objects.newest(partition.group)
                place = Place(topic.name, number)
                ends = None if newest is None else (newest.next_offset, newest.last_stable_offset)
                if newest is not None and judged.ends.get(place) != ends:
                    return f"the newest tail point has {judged.ends.get(place)} of {place}, which is {ends}"
        return None


def _partitions(controller: ControllerState) -> Iterable[tuple[Place, int]]:
    for topic in controller.topics.values():
        if topic.name not in INTERNAL_TOPICS:
            for number, partition in enumerate(topic.partitions):
                yield Place(topic.name, number), partition.group


def _transactions(
    controller: ControllerState, documents: Mapping[int, SnapshotDocument]
) -> Iterable[Transaction]:
    topic = controller.by_name.get(TRANSACTIONS_TOPIC)
    for partition in topic.partitions if topic else ():
        if partition.group in documents:
            machine = TransactionsMachine(ignore)
            machine.restore(documents[partition.group].state)
            yield from machine.transactions.values()
