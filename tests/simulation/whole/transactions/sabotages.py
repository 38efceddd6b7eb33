"""Fences of transactions and groups taken out again, one at a time: the seeds of transactions must find each.

What it takes is told in docs/simulation.md. Nothing here is ever imported by the product.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from strandline.node.coordinator.transactions.markers import Markers, PreparedEnd
from strandline.node.coordinator.transactions.transaction_coordinator import (
    ProducerIdentity,
    TransactionCoordinator,
)
from strandline.node.coordinator.transactions.transaction_upkeep import TransactionUpkeep
from strandline.node.kafka.handlers.fetch_partition import FetchPartition
from strandline.statemachine.groups import conversions, group_offsets
from strandline.statemachine.groups.classic_group import ClassicGroup
from strandline.statemachine.groups.offsets import Offsets
from strandline.statemachine.partition.aborted_transactions import AbortedTransactions
from strandline.statemachine.partition.placeholder import Placeholder
from strandline.statemachine.partition.producer_state import MAX_SEQUENCE, NO_TRANSACTION
from strandline.statemachine.partition.producers import Duplicate, Producers
from strandline.statemachine.partition.rejection import Rejected, Rejection
from strandline.statemachine.transactions.transaction_commands import Enlisted, TransactionOpcode
from strandline.statemachine.transactions.transaction_state import Transaction, TransactionState
from strandline.statemachine.transactions.transactions import TransactionsMachine
from tests.simulation.all_of import all_of
from tests.simulation.sabotage import Sabotage, by_name, expecting
from tests.simulation.whole.folder_sabotages import FOLDERS
from tests.simulation.whole.tail_sabotages import POINTS
from tests.simulation.whole.transactions.found_by import FOUND_BY
from tests.simulation.whole.transactions.marker_sabotages import MARKERS
from tests.simulation.whole.transactions.restore_sabotages import RESTORES

# At the partition.


def _judging(*, epoch: bool = True, number: bool = True, sequence: bool = True) -> Any:
    """Producers.check, without some of its rules."""

    def judge(self: Producers, batch: Placeholder) -> Duplicate | Rejected | None:
        known, transaction, first = self.get(batch.producer_id), batch.transaction, batch.base_sequence
        if known is None:
            return None
        if epoch and batch.producer_epoch < known.epoch:
            return Rejected(Rejection.INVALID_PRODUCER_EPOCH, known.epoch)
        if number and transaction != NO_TRANSACTION and transaction <= known.ended:
            return Rejected(Rejection.TRANSACTION_ENDED, known.ended)
        opened = self.open_transaction(batch.producer_id)
        if number and opened is not None and transaction != opened.number:
            return Rejected(Rejection.NOT_IN_TRANSACTION, opened.number)
        if not sequence:
            return None
        expected = 0
        if batch.producer_epoch == known.epoch and known.batches:
            expected = (known.batches[-1].last_sequence + 1) & MAX_SEQUENCE
            for one in known.batches:
                if one.first_sequence == first and first != expected:
                    return Duplicate(one.base_offset)
        return None if first == expected else Rejected(Rejection.OUT_OF_ORDER_SEQUENCE_NUMBER, expected)

    broken = [patch.object(Producers, "check", judge)]
    if not sequence:
        # The leader knows a retry before it is uploaded, by the same sequence.
        broken.append(patch.object(Producers, "duplicate", lambda *_: None))
    return all_of(broken)


def _reads_to_the_end(self: FetchPartition) -> None:
    _check_share(self)
    self._end = self.high_watermark
    self.active = self.settled or self._offset < self._end


_check_share = FetchPartition.check

# At the transactions' coordinator.


def _aborts_unraised(self: TransactionsMachine, index: int, transactional_id: str, number: int) -> Any:
    """As TransactionsMachine._abort, but the producer keeps its epoch, and the markers have it."""
    with patch.object(Transaction, "raise_epoch", lambda one, new_id: one.keep_epoch()):
        return _abort(self, index, transactional_id, number)


_abort = TransactionsMachine._abort


def _verifies_nothing(
    self: TransactionsMachine,
    transactional_id: str,
    producer_id: int,
    epoch: int,
    partitions: Any,
    groups: Any,
) -> Any:
    one = self.transactions.get(transactional_id)
    if one is None or not one.number:
        return _verify(self, transactional_id, producer_id, epoch, partitions, groups)
    return Enlisted(one.number)


_verify = TransactionsMachine.verify


def _takes_up_nothing(self: TransactionUpkeep, term: int) -> None:
    """As TransactionUpkeep._started, but what an earlier leader prepared is taken for carried out."""
    for one in self._replica.machine.prepared:
        self._delivering[one.transactional_id, one.number] = None
    _started(self, term)


_started = TransactionUpkeep._started


async def _delivers_once(self: Markers, decided: PreparedEnd) -> None:
    """As Markers.deliver, but whatever does not arrive at once never does."""
    await self._round(decided, decided.places)


async def _answers_early(
    self: TransactionCoordinator,
    transactional_id: str,
    producer_id: int,
    epoch: int,
    *,
    commit: bool,
    raises: bool,
) -> Any:
    """As TransactionCoordinator.end, but a commit that is going to be decided is answered at once."""
    known = self.machine.transactions.get(transactional_id)
    deciding = _end(self, transactional_id, producer_id, epoch, commit=commit, raises=raises)
    if known is None or known.state is not TransactionState.ONGOING or known.identity != (producer_id, epoch):
        return await deciding
    task = self._context.loop.create_task(deciding)
    _UNDER_WAY[task] = None
    task.add_done_callback(_UNDER_WAY.pop)
    return ProducerIdentity(producer_id, epoch + raises)


_end = TransactionCoordinator.end
_UNDER_WAY: dict[Any, None] = {}


def _has_nothing(classic: ClassicGroup) -> dict[str, tuple[()]]:
    """As conversions._given and _claims: no member has a partition."""
    return dict.fromkeys(classic.members, ())


def _none(*_: Any, **__: Any) -> None:
    """Nothing is refused."""


_MARKERS: dict[str, tuple[int, ...]] = {
    "markers-without-numbers": (12,),
    "ended-numbers-taken": (65,),
    "refusals-unheard": (2, 3),
    "markers-done-unheard": (2,),
    "state-without-stable-offset": (2,),
}

_POINTS: dict[str, tuple[int, ...]] = {
    "points-without-a-hold": (9, 23),
    "points-backwards": (9, 23),
    "points-before-tails": (67,),
}
_RESTORES: dict[str, tuple[int, ...]] = {
    "restored-forgotten": (2014,),
    "restored-open-committed": (2014,),
    "restored-pending-committed": (2014,),
}
_LOST_FOLDERS: dict[str, tuple[int, ...]] = {
    "any-folder": (1, 2),
    "joins-as-a-founder": (1, 2),
    "left-too-early": (1,),
}
"""Of the rules about data folders, those that are broken here too: nodes that coordinate lose theirs."""

_ALL = (
    Sabotage(
        "late-batch-accepted",
        "a partition looks at neither the producer's epoch nor the transaction's number",
        lambda: (_judging(epoch=False, number=False),),
        (6, 12),
    ),
    Sabotage(
        "number-ignored",
        "a partition does not look at the transaction's number: a batch may follow its own marker",
        lambda: (_judging(number=False),),
        (0, 12),
    ),
    Sabotage(
        "sequences-ignored",
        "a partition does not look at sequences",
        lambda: (_judging(sequence=False),),
        (7, 10),
    ),
    Sabotage(
        "abort-before-raise",
        "a transaction that took too long is aborted, and its producer keeps its epoch",
        lambda: (patch.dict(TransactionsMachine.HANDLERS, {TransactionOpcode.ABORT: _aborts_unraised}),),
        (59,),
    ),
    Sabotage(
        "verified-blindly",
        "the coordinator verifies any batch, with the number of its newest transaction",
        lambda: (patch.object(TransactionsMachine, "verify", _verifies_nothing),),
        (4,),
    ),
    Sabotage(
        "generation-ignored",
        "offsets of a transaction are taken from members that are none any more",
        lambda: (patch.object(group_offsets, "_refuse_commit", _none),),
        (37,),
    ),
    Sabotage(
        "conversion-frees-all",
        "a classic group that becomes a consumer group forgets which partitions its members have",
        lambda: (
            patch.object(conversions, "_given", _has_nothing),
            patch.object(conversions, "_claims", _has_nothing),
        ),
        (34,),
    ),
    Sabotage(
        "unstable-offsets-given",
        "offsets are given to members while a transaction that has others is open",
        lambda: (patch.object(Offsets, "is_pending", lambda *_: False),),
        (27,),
    ),
    Sabotage(
        "markers-not-taken-up",
        "a new leader does not bring the markers of what the one before prepared",
        lambda: (patch.object(TransactionUpkeep, "_started", _takes_up_nothing),),
        (12, 60),
    ),
    Sabotage(
        "markers-sent-once",
        "a marker that does not arrive is not sent again",
        lambda: (patch.object(Markers, "deliver", _delivers_once),),
        (2,),
    ),
    Sabotage(
        "answered-before-prepare",
        "EndTxn is answered before its decision is in a majority's logs",
        lambda: (patch.object(TransactionCoordinator, "end", _answers_early),),
        (8,),
    ),
    Sabotage(
        "read-past-stable",
        "committed readers are given what lies above the last stable offset",
        lambda: (patch.object(FetchPartition, "check", _reads_to_the_end),),
        (2,),
    ),
    Sabotage(
        "aborted-not-told",
        "committed readers are not told what was aborted",
        lambda: (patch.object(AbortedTransactions, "between", lambda *_: []),),
        (0, 1),
    ),
    *by_name(MARKERS, _MARKERS).values(),
    *by_name(POINTS, _POINTS).values(),
    *by_name(RESTORES, _RESTORES).values(),
    *by_name((hole for hole in FOLDERS if hole.name in _LOST_FOLDERS), _LOST_FOLDERS).values(),
)

SABOTAGES = expecting(_ALL, FOUND_BY)
