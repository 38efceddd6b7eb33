"""One history that several threads write at once, with unique values and one clock."""

from __future__ import annotations

import itertools
import threading
import time

from tests.histories.history import Ending, History, Poll, Transaction


class Recorder:
    """Safe to use from every thread."""

    def __init__(self) -> None:
        self.history = History()
        self.trouble: list[str] = []
        """What no client should meet: an error that is neither retriable nor a fence."""
        self._lock = threading.Lock()
        self._values = itertools.count(1)

    def value(self) -> str:
        """A value that nobody else sends."""
        with self._lock:
            return f"v{next(self._values)}"

    def began(self, client: str) -> Transaction:
        transaction = Transaction(client, time.monotonic())
        with self._lock:
            self.history.transactions.append(transaction)
        return transaction

    @staticmethod
    def ended(transaction: Transaction, ending: Ending) -> None:
        transaction.ending, transaction.ended = ending, time.monotonic()

    def polled(self, poll: Poll) -> None:
        with self._lock:
            self.history.polls.append(poll)

    def input(self, value: str) -> None:
        with self._lock:
            self.history.inputs.append(value)

    def troubled(self, text: str) -> None:
        with self._lock:
            self.trouble.append(text)

    def counts(self) -> dict[str, int]:
        """Transactions by their endings."""
        with self._lock:
            endings = [one.ending for one in self.history.transactions]
        return {ending.value: endings.count(ending) for ending in Ending}
