"""The state machine of a coordinator of transactions: permissions, and the outcome of each transaction.

It decides everything that must not be forgotten or decided twice: producer ids and epochs, the numbers of
transactions, what is in them, their outcome. Sending markers and waiting is the leader's, and leaves no trace
here but the Complete at its end. docs/transactions.md tells the states and the reasons.

Raise first, then abort: an abort against its producer raises the epoch in the same entry, and its markers
carry the raised one. In between no producer can begin a transaction with the old epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import msgpack

from strandline.statemachine.coordinator_machine import CoordinatorMachine
from strandline.statemachine.internal_topics import TRANSACTIONS_KIND
from strandline.statemachine.kafka_errors import KafkaError, Refused
from strandline.statemachine.machine import Captured, Rows, rows
from strandline.statemachine.transactions.transaction_commands import (
    LAST_EPOCH,
    NO_EPOCH,
    NO_PRODUCER_ID,
    Enlisted,
    Initialized,
    Prepared,
    ProducerIdNeeded,
    TopicPartition,
    TransactionOpcode,
)
from strandline.statemachine.transactions.transaction_state import (
    AT_REST,
    PREPARED,
    Transaction,
    TransactionState,
    transaction_from,
)

_NOBODY = (NO_PRODUCER_ID, NO_EPOCH)
_FENCED = Refused(
    KafkaError.PRODUCER_FENCED, "There is a newer producer with this transactional id, or it was aborted."
)
_UNKNOWN_PRODUCER = Refused(
    KafkaError.INVALID_PRODUCER_ID_MAPPING, "The producer id is not the one this transactional id has."
)
_COMPLETING = Refused(
    KafkaError.CONCURRENT_TRANSACTIONS, "The transaction before is still being completed: ask again."
)
_NOTHING_OPEN = Refused(KafkaError.INVALID_TXN_STATE, "There is no open transaction that this could end.")


class TransactionsMachine(CoordinatorMachine):
    """The transactional ids of one coordinator; see StateMachine for what the log asks of it."""

    kind = TRANSACTIONS_KIND

    def __init__(self, on_checkpoint: Callable[[int, Captured], None]) -> None:
        super().__init__(on_checkpoint)
        self._transactions: dict[str, Transaction] = {}
        self._ongoing: dict[str, None] = {}
        self._prepared: dict[str, None] = {}
        self._age = 0

    def go_on_from(self, now: int) -> None:
        """See CoordinatorMachine. No id was used later than that: else those that are too many would stay."""
        if now < self.time:
            for key in [one.transactional_id for one in self._transactions.values() if one.updated > now]:
                self._transactions[key] = one = self._transactions[key].copy(self._age)
                one.updated = now
        super().go_on_from(now)

    # What the leader reads.

    @property
    def transactions(self) -> Mapping[str, Transaction]:
        """By transactional id; to be read only."""
        return self._transactions

    @property
    def prepared(self) -> list[Transaction]:
        """Transactions that are decided and not complete: their markers have yet to be written."""
        return [self._transactions[transactional_id] for transactional_id in self._prepared]

    def newest_prepared(self) -> Iterator[Transaction]:
        """As `prepared`, by one entry after the other, the newest first; as a snapshot has them after one."""
        return (self._transactions[transactional_id] for transactional_id in reversed(self._prepared))

    @property
    def ongoing(self) -> list[Transaction]:
        """The open ones."""
        return [self._transactions[transactional_id] for transactional_id in self._ongoing]

    def expires(self, expiration_ms: int, now: int) -> bool:
        """Whether ExpireIds would forget an id at this time, in ms."""
        return any(_is_expired(one, expiration_ms, now) for one in self._transactions.values())

    def newest_since(self, count: int) -> int | None:
        """Time in ms after which at most the newest `count` ids were used; None if there are no more.

        A sort, which takes up to 50 ms with 75,000 ids. To keep them in order would cost each transaction.
        """
        if len(self._transactions) <= count:
            return None
        return sorted([one.updated for one in self._transactions.values()])[-count]

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Sequence[tuple[bytes, int]],
        groups: Sequence[str],
    ) -> Enlisted | Refused:
        """The number of the open transaction that has all of these; changes nothing.

        What comes while a transaction is being completed belongs to none that is open. To have it wait would
        make a late batch part of the transaction that comes next.
        """
        one = self._transactions.get(transactional_id)
        if one is None:
            return _UNKNOWN_PRODUCER
        refused = _foreign(one, producer_id, epoch)
        if refused is not None:
            return refused
        there = all(TopicPartition(*partition) in one.partitions for partition in partitions)
        if one.state is TransactionState.ONGOING and there and all(group in one.groups for group in groups):
            return Enlisted(one.number)
        return Refused(KafkaError.INVALID_TXN_STATE, "It is not part of an open transaction.")

    # Commands.

    def _changed(self, transactional_id: str) -> Transaction | None:
        """The row of an id, to be changed."""
        one = self._transactions.get(transactional_id)
        if one is not None and one.age != self._age:
            one = self._transactions[transactional_id] = one.copy(self._age)
        return one

    def _initialize(
        self, index: int, transactional_id: str, timeout_ms: int, producer_id: int, epoch: int, new_id: int
    ) -> Initialized | Prepared | ProducerIdNeeded | Refused:
        asking = (producer_id, epoch)
        one = self._changed(transactional_id)
        if one is None:
            if new_id == NO_PRODUCER_ID:
                return ProducerIdNeeded()
            one = Transaction(transactional_id, new_id, 0, timeout_ms, updated=self.time, age=self._age)
            self._transactions[transactional_id] = one
            return one.given()
        again = one.was(asking)
        if asking not in (_NOBODY, one.identity) and not again:
            return _FENCED
        if one.state in PREPARED:
            return _COMPLETING
        if one.state is TransactionState.ONGOING:
            return self._abort_of_predecessor(one, asking, new_id)
        if not again:
            if one.is_exhausted:
                if new_id == NO_PRODUCER_ID:
                    return ProducerIdNeeded()
                one.producer_id, one.epoch = new_id, 0
            else:
                one.epoch += 1
            one.remember(asking)
            one.state = TransactionState.EMPTY
        one.timeout_ms, one.updated = timeout_ms, self.time
        return one.given()

    def _abort_of_predecessor(
        self, one: Transaction, asking: tuple[int, int], new_id: int
    ) -> Prepared | ProducerIdNeeded:
        """A starting producer ends the open transaction: its own, or that of the process it replaces."""
        if asking != _NOBODY and one.is_exhausted and new_id == NO_PRODUCER_ID:
            return ProducerIdNeeded()
        one.raise_epoch(new_id)
        return self._prepare(one, asking, commit=False)

    def _enlist(
        self,
        index: int,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Sequence[Sequence[Any]],
        groups: Sequence[str],
    ) -> Enlisted | Refused:
        one = self._changed(transactional_id)
        if one is None:
            return _UNKNOWN_PRODUCER
        refused = _foreign(one, producer_id, epoch)
        if refused is not None:
            return refused
        if one.state in PREPARED:
            return _COMPLETING
        if not partitions and not groups:
            return Refused(KafkaError.INVALID_REQUEST, "There is nothing to add.")
        if one.state is not TransactionState.ONGOING:
            one.begin(self.time)
            self._ongoing[transactional_id] = None
        for topic_id, partition in partitions:
            one.partitions[TopicPartition(topic_id, partition)] = None
        for group in groups:
            one.groups[group] = None
        one.updated = self.time
        return Enlisted(one.number)

    def _end(
        self,
        index: int,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        commit: bool,
        raises: bool,
        new_id: int,
    ) -> Prepared | ProducerIdNeeded | Refused:
        one = self._changed(transactional_id)
        if one is None:
            return _UNKNOWN_PRODUCER
        asking = (producer_id, epoch)
        if raises and one.was(asking):
            return _FENCED if one.state is TransactionState.EMPTY else _decided(one, commit)
        refused = _foreign(one, producer_id, epoch)
        if refused is not None:
            return refused
        if not raises:
            if one.state is TransactionState.EMPTY:
                return _NOTHING_OPEN
            if one.state is not TransactionState.ONGOING:
                return _decided(one, commit)
            one.keep_epoch()
            return self._prepare(one, _NOBODY, commit)
        if one.state in PREPARED:
            return _COMPLETING
        if commit and one.state is not TransactionState.ONGOING:
            return _NOTHING_OPEN
        if one.is_exhausted and new_id == NO_PRODUCER_ID:
            return ProducerIdNeeded()
        one.raise_epoch(new_id)
        if one.state is TransactionState.ONGOING:
            return self._prepare(one, asking, commit)
        # Nothing was added to it, or what was to be added never came here. It has a number like every other.
        one.begin(self.time)
        one.state, one.updated = TransactionState.COMPLETE_ABORT, self.time
        one.remember(asking)
        return Prepared(one.number, *one.identity)

    def _abort(self, index: int, transactional_id: str, number: int) -> Prepared | Refused:
        one = self._changed(transactional_id)
        if one is None:
            return Refused(KafkaError.TRANSACTIONAL_ID_NOT_FOUND, "No such transactional id is known.")
        if one.number != number:
            return _NOTHING_OPEN
        if one.state is TransactionState.ONGOING:
            one.raise_epoch(NO_PRODUCER_ID)
            return self._prepare(one, _NOBODY, commit=False)
        if one.state in (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT):
            return Prepared(one.number, *one.identity)
        return _NOTHING_OPEN

    def _prepare(self, one: Transaction, former: tuple[int, int], commit: bool) -> Prepared:
        one.state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        one.remember(former)
        one.updated = self.time
        del self._ongoing[one.transactional_id]
        self._prepared[one.transactional_id] = None
        return Prepared(one.number, *one.identity)

    def _complete(self, index: int, transactional_id: str, number: int) -> bool:
        one = self._changed(transactional_id)
        if one is None or one.number != number or one.state not in PREPARED:
            return False
        one.complete()
        one.updated = self.time
        del self._prepared[transactional_id]
        return True

    def _expire_ids(self, index: int, expiration_ms: int, now: int) -> int:
        self.go_on_from(now)
        gone = [
            transactional_id
            for transactional_id, one in self._transactions.items()
            if _is_expired(one, expiration_ms, now)
        ]
        for transactional_id in gone:
            del self._transactions[transactional_id]
        return len(gone)

    HANDLERS: ClassVar[Mapping[int, Callable[..., Any]]] = {
        TransactionOpcode.INITIALIZE_PRODUCER: _initialize,
        TransactionOpcode.ENLIST: _enlist,
        TransactionOpcode.END: _end,
        TransactionOpcode.ABORT: _abort,
        TransactionOpcode.COMPLETE: _complete,
        TransactionOpcode.EXPIRE_IDS: _expire_ids,
    }

    # Its part of the snapshot.

    def fields(self) -> dict[str, Any]:
        """`transactions`: a row for each transactional id, in the order of the ids."""
        held = dict(self._transactions)
        self._age += 1
        return {"transactions": Rows(len(held), lambda: (held[key].row() for key in sorted(held)))}

    def load(self, name: str, source: msgpack.Unpacker) -> None:
        """See CoordinatorMachine."""
        for row in rows(source):
            one = transaction_from(row)
            self._transactions[one.transactional_id] = one
            if one.state is TransactionState.ONGOING:
                self._ongoing[one.transactional_id] = None
            elif one.state in PREPARED:
                self._prepared[one.transactional_id] = None


def _foreign(one: Transaction, producer_id: int, epoch: int) -> Refused | None:
    """The reason why this is not the producer of the transactional id; None if it is."""
    if producer_id != one.producer_id:
        return _UNKNOWN_PRODUCER
    # No producer has the last epoch: it is only used to fence the producer that had the epoch before it.
    return _FENCED if epoch != one.epoch or epoch == LAST_EPOCH else None


def _decided(one: Transaction, commit: bool) -> Prepared | Refused:
    """The answer to a repeated end of a transaction: that of the first time, or that it ended otherwise."""
    if one.commits == commit:
        return Prepared(one.number, *one.identity)
    return Refused(
        KafkaError.INVALID_TXN_STATE,
        f"The transaction is {one.state.value} already, it cannot be {'committed' if commit else 'aborted'}.",
    )


def _is_expired(one: Transaction, expiration_ms: int, now: int) -> bool:
    return one.state in AT_REST and one.updated + expiration_ms <= now
