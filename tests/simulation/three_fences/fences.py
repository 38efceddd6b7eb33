"""The three fences, each with every place where it stands, and how to take it out of all of them at once.

Taken out of one place alone, the next would still keep the zombie out, and nothing would be shown. Nothing
here is ever imported by the product.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from strandline.node.kafka.handlers.produced_transactions import Questions
from strandline.node.kafka.wire.record_batch import BatchHeader
from strandline.node.partition.gaps import Gaps
from strandline.node.partition.partition import Partition
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.groups import group_offsets
from strandline.statemachine.groups.group_state import GroupsState
from strandline.statemachine.kafka_errors import KafkaError
from strandline.statemachine.partition.placeholder import Placeholder
from strandline.statemachine.partition.producers import (
    Duplicate,
    Producers,
)
from strandline.statemachine.partition.rejection import Rejected, Rejection
from strandline.statemachine.transactions import transactions
from strandline.statemachine.transactions.transaction_commands import TransactionOpcode
from strandline.statemachine.transactions.transaction_state import Transaction
from strandline.statemachine.transactions.transactions import TransactionsMachine
from tests.simulation.all_of import all_of

SEQUENCE: Final = "sequence"
EPOCH: Final = "epoch"
GENERATION: Final = "generation"


class Place(NamedTuple):
    """Where a fence stands, and how to take it out there."""

    where: str
    take_out: Callable[[], AbstractContextManager[Any]]


# The sequence.


def _of_another_transaction(
    known: Producers, producer_id: int, transaction: int
) -> Duplicate | Rejected | None:
    """The transaction's number is another fence, and stays."""
    state, opened = known.get(producer_id), known.open_transaction(producer_id)
    if state is not None and 0 < transaction <= state.ended:
        return Rejected(Rejection.TRANSACTION_ENDED, state.ended)
    if opened is not None and opened.number != transaction:
        return Rejected(Rejection.NOT_IN_TRANSACTION, opened.number)
    return None


def _any_sequence(self: Producers, batch: Placeholder) -> Duplicate | Rejected | None:
    refusal = _judge(self, batch)
    out_of_order = isinstance(refusal, Rejected) and refusal.reason is Rejection.OUT_OF_ORDER_SEQUENCE_NUMBER
    if isinstance(refusal, Duplicate) or out_of_order:
        return _of_another_transaction(self, batch.producer_id, batch.transaction)
    return refusal


_judge = Producers.check


def _not_known(*_: Any) -> None:
    """No batch is remembered."""


def _no_gap(*_: Any) -> None:
    """Nothing is missing."""


def _any_first_sequence(
    self: Questions, partition: Partition, topic: Topic, number: int, header: BatchHeader
) -> Any:
    return _transaction_of(self, partition, topic, number, header._replace(base_sequence=0))


_transaction_of = Questions.transaction_of

# The producer's epoch.


def _any_epoch(self: Producers, batch: Placeholder) -> Duplicate | Rejected | None:
    refusal = _judge(self, batch)
    if not (isinstance(refusal, Rejected) and refusal.reason is Rejection.INVALID_PRODUCER_EPOCH):
        return refusal
    other = _of_another_transaction(self, batch.producer_id, batch.transaction)
    return other or (Rejected(Rejection.OUT_OF_ORDER_SEQUENCE_NUMBER, 0) if batch.base_sequence else None)


def _any_epochs_offsets(state: GroupsState, producer_id: int, epoch: int, number: int) -> KafkaError | None:
    known = state.producers.get(producer_id)
    return _refuse_transaction(state, producer_id, epoch if known is None else known.epoch, number)


_refuse_transaction = group_offsets._refuse_transaction


def _any_epochs_request(one: Transaction, producer_id: int, epoch: int) -> Any:
    return _foreign(one, producer_id, one.epoch)


_foreign = transactions._foreign


def _any_epochs_start(
    self: TransactionsMachine, index: int, name: str, timeout_ms: int, producer_id: int, epoch: int, new: int
) -> Any:
    one = self.transactions.get(name)
    if one is not None and producer_id == one.producer_id and not one.was((producer_id, epoch)):
        epoch = one.epoch
    return _initialize(self, index, name, timeout_ms, producer_id, epoch, new)


_initialize = TransactionsMachine._initialize

# The group's generation.


def _any_member(*_: Any, **__: Any) -> None:
    """Whoever commits is a member of the present generation."""


FENCES: Final[dict[str, tuple[Place, ...]]] = {
    SEQUENCE: (
        Place(
            "apply of an append: Producers.check",
            lambda: patch.object(Producers, "check", _any_sequence),
        ),
        Place(
            "the partition's leader: Producers.duplicate",
            lambda: patch.object(Producers, "duplicate", _not_known),
        ),
        Place("the partition's leader: Gaps", lambda: patch.object(Gaps, "refusal", _no_gap)),
        Place(
            "the partition's leader: first batch of a transaction (Questions.transaction_of)",
            lambda: patch.object(Questions, "transaction_of", _any_first_sequence),
        ),
    ),
    EPOCH: (
        Place(
            "apply of an append: Producers.check",
            lambda: patch.object(Producers, "check", _any_epoch),
        ),
        Place(
            "apply of a transaction's offsets: group_offsets._refuse_transaction",
            lambda: patch.object(group_offsets, "_refuse_transaction", _any_epochs_offsets),
        ),
        Place(
            "apply at the coordinator, and its verifications: transactions._foreign",
            lambda: patch.object(transactions, "_foreign", _any_epochs_request),
        ),
        Place(
            "apply of InitProducerId with an epoch of its own: TransactionsMachine._initialize",
            lambda: patch.dict(
                TransactionsMachine.HANDLERS, {TransactionOpcode.INITIALIZE_PRODUCER: _any_epochs_start}
            ),
        ),
    ),
    GENERATION: (
        Place(
            "apply of offsets: group_offsets._refuse_commit, by ClassicGroup and ConsumerGroup",
            lambda: patch.object(group_offsets, "_refuse_commit", _any_member),
        ),
    ),
}


def without(fence: str | None) -> AbstractContextManager[None]:
    """To run with a fence taken out of every place where it stands; None: all three stand."""
    return all_of(place.take_out() for place in (FENCES[fence] if fence is not None else ()))
