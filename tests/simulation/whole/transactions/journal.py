"""What the transactional clients of one run did and saw, on the world's clock: the input of the checker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tests.histories.history import Ending, History, Place, Poll, Read, Sent, Transaction
from tests.simulation.whole import ledger


class Journal:
    """One history. Every value is sent once; batches are known by what the ledger knows them by."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.history = History()
        self.counts: Counter[str] = Counter()
        """Transactions by ending, and what befell clients."""
        self.batches: dict[ledger.Sent, Transaction] = {}
        """The transaction of each batch that was made."""
        self.calm = False
        """Whether the faults are over."""
        self._now = now
        self._made = 0
        self._values: dict[ledger.Sent, list[str]] = {}

    @property
    def now(self) -> float:
        return self._now()

    def values(self, count: int) -> list[str]:
        """Values that nobody else sends."""
        first, self._made = self._made, self._made + count
        return [f"v{number}" for number in range(first, self._made)]

    def holds(self, batch: ledger.Sent, values: list[str]) -> None:
        self._values[batch] = values

    def reads(self, topic: str, offset: int, batch: ledger.Sent) -> list[Read]:
        """The records of a batch that somebody was given; none where a batch is of no transaction."""
        place = Place(topic, batch.place.partition)
        values = self._values.get(batch, ())
        return [Read(place, offset + number, value) for number, value in enumerate(values)]

    def began(self, client: str) -> Transaction:
        transaction = Transaction(client, self._now())
        self.history.transactions.append(transaction)
        return transaction

    def sent(self, transaction: Transaction, topic: str, batch: ledger.Sent) -> None:
        """These records are part of the transaction from now on, whether they ever arrive or not."""
        place = Place(topic, batch.place.partition)
        self.batches[batch] = transaction
        transaction.sent += [Sent(place, value, None) for value in self._values[batch]]

    def acknowledged(self, transaction: Transaction, batch: ledger.Sent, offset: int) -> None:
        at = {value: offset + number for number, value in enumerate(self._values[batch])}
        transaction.sent[:] = [
            sent._replace(offset=at[sent.value]) if sent.value in at else sent for sent in transaction.sent
        ]

    def ended(self, transaction: Transaction, ending: Ending) -> None:
        transaction.ending, transaction.ended = ending, self._now()
        self.counts[ending.value] += 1

    def polled(self, consumer: str, reads: list[Read]) -> None:
        if reads:
            self.history.polls.append(Poll(consumer, 1, self._now(), reads))
