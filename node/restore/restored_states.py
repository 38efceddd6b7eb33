"""The states that a restored cluster's nodes begin with, made of a restore point's.

Every group goes on at a term and a log index above all that the cluster before can have used for it, so that
no leader epoch, no name of a level-one object and no name of a checkpoint comes a second time. Pure: the
same point and arguments give the same documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from strandline.node.restore.reading import CannotRestore
from strandline.node.restore.stored_point import StoredPoint
from strandline.snapshot.document import SnapshotDocument
from strandline.statemachine.controller import controller_snapshot, restored_controller
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP
from strandline.statemachine.controller.restored_controller import TERMS, earlier_terms
from strandline.statemachine.groups.groups import GroupsMachine
from strandline.statemachine.internal_topics import (
    GROUPS_KIND,
    TRANSACTIONS_KIND,
    TRANSACTIONS_TOPIC,
    coordinator_kind,
)
from strandline.statemachine.machine import Captured, StateMachine
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.transactions.restored_transactions import resumed
from strandline.statemachine.transactions.transactions import TransactionsMachine

MAX_TERM: Final = (1 << 31) - 1
"""A term is the leader epoch that clients are told, an int32 in Kafka's protocol. 8,191 steps fit."""
INDEXES: Final = 1 << 40
"""Log indexes for each step: 12 million entries a second for a day."""
DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class RestoredCluster:
    """Identities of a restored cluster, decided before its states are made."""

    incarnation: str
    folders: Mapping[int, int]
    """Identity of the new data folder of each node."""
    steps: int
    """The number of times that each number moves on from the point; at least 1."""
    lineage: int
    """See `next_lineage`."""


def point_lineage(stored: StoredPoint) -> int:
    """The lineage of the cluster that took the point: 0, or as its restore recorded it."""
    made = stored.point.incarnation
    return max((attempt.lineage for attempt in stored.attempts if attempt.incarnation == made), default=0)


def next_lineage(stored: StoredPoint, now_ms: int) -> int:
    """The number of times that the numbers moved on since the first life, for a restore now (Unix ms).

    Steps count from the first life, not from the point: attempts go on from different points. It is two more
    than for any attempt, whatever its point, as each may have made a cluster that ran: so ids of groups of
    two lives are more than a step apart, wherever in a step they are, and a partition that is added again has
    higher terms (`earlier_terms`). And it is one more for each day since the point, in which a cluster may
    have gone on. A clock that went back does not matter to the first.
    """
    newest = max((attempt.lineage for attempt in stored.attempts), default=0)
    days = max(0, now_ms - stored.point.taken_ms) // DAY_MS
    return 2 + days + max(newest, point_lineage(stored))


def check_terms(stored: StoredPoint, steps: int) -> None:
    """Raise CannotRestore unless all terms, `steps` on, leave the restored cluster those of one step."""
    # No group has more of earlier terms than the newest one.
    highest = earlier_terms(stored.controller.next_group)
    highest = max([highest, *(document.term for document in stored.documents.values())])
    if highest + (steps + 1) * TERMS > MAX_TERM:
        raise CannotRestore(
            f"terms go up to {highest} at the point, and would go on from {highest + steps * TERMS}: clients"
            f" know leader epochs up to {MAX_TERM}",
            "check this machine's clock, as each day since the point counts; else name a later point with"
            " --point",
        )


def restored_documents(stored: StoredPoint, made: RestoredCluster) -> Iterator[SnapshotDocument]:
    """The state of each group, the controller's first; raises CannotRestore for one that cannot be read.

    The states of `stored` are used up: call this once.
    """
    far = made.steps
    state = stored.controller
    next_id = restored_controller.first_producer_id(state, far)
    transactional: dict[int, bytes] = {}
    topic = state.by_name.get(TRANSACTIONS_TOPIC)
    for number, place in enumerate(topic.partitions if topic else ()):
        document = stored.documents.get(place.group)
        if document is not None:
            try:
                transactional[place.group], taken = resumed(document.state, next_id)
            except ValueError as error:
                raise CannotRestore(
                    f"{TRANSACTIONS_TOPIC}-{number}: {error}",
                    "use the release that wrote it, or name an earlier point with --point",
                ) from None
            next_id += taken
    restored_controller.move_on(
        state, steps=far, incarnation=made.incarnation, folders=made.folders, next_producer_id=next_id
    )
    nodes = tuple(sorted(made.folders))
    controller = _moved(stored, CONTROLLER_GROUP, Controller.kind, far)
    yield replace(controller, voters=nodes, learners=(), state=controller_snapshot.capture(state))
    for topic in state.topics.values():
        for place in topic.partitions:
            kind = coordinator_kind(topic.name) or PartitionStateMachine.kind
            document = _moved(stored, place.group, kind, far)
            if place.group in transactional:
                document = replace(document, state=transactional[place.group])
            elif not document.state:
                document = replace(document, state=_empty(kind, place.creation_epoch).snapshot())
            yield replace(document, voters=tuple(sorted(place.replicas)), learners=())


def _moved(stored: StoredPoint, group: int, kind: str, far: int) -> SnapshotDocument:
    """The group's document at its new place in the log; without a state if the point has none."""
    document = stored.documents.get(group)
    if document is None:
        document = SnapshotDocument(stored.point.cluster, kind, group, 0, 0, (), (), b"")
    if document.kind != kind:
        raise CannotRestore(
            f"the state of group {group} is that of a {document.kind}, and the group's is a {kind}",
            "name another point with --point",
        )
    term = max(document.term, earlier_terms(group)) + far * TERMS
    return replace(document, index=document.index + far * INDEXES, term=term, folders=())


def _empty(kind: str, creation_epoch: int) -> StateMachine:
    if kind == GROUPS_KIND:
        return GroupsMachine(_never)
    if kind == TRANSACTIONS_KIND:
        return TransactionsMachine(_never)
    return PartitionStateMachine(creation_epoch, _never)


def _never(index: int, captured: Captured) -> None:
    raise AssertionError("no entry is applied to a state that is being restored")
