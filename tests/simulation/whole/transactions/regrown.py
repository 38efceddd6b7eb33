"""What became of transactions in a restored cluster, before anything new is begun there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from tests.histories.history import Ending, Transaction
from tests.simulation.whole.ledger import Ledger
from tests.simulation.whole.transactions.followers import Follower
from tests.simulation.whole.transactions.journal import Journal

CHECK = "restored transactions"


class RegrownTransactions:
    """From the loss of all folders on: what clients knew by then, held against what is there."""

    def __init__(self, journal: Journal, ledger: Ledger) -> None:
        self._journal = journal
        self._ledger = ledger
        self._in_doubt: Collection[Transaction] = {
            one
            for one in journal.history.transactions
            if one.ending is Ending.UNKNOWN or (one.ended is None and one.commit_asked is not None)
        }

    def judge(self, reader: Follower, taken: float, counts: Counter[str]) -> None:
        """Each is there as a whole or not at all, by what `reader` found; what is not there never was.

        What was committed before `taken`, in the world's seconds, is there.
        """
        there = {read.value: read.offset for reads in reader.found.values() for read in reads}
        for transaction in self._journal.history.transactions:
            self._judge(transaction, there, taken, counts)
        for poll in self._journal.history.polls:
            poll.read = [read for read in poll.read if there.get(read.value) == read.offset]

    def _judge(
        self, transaction: Transaction, there: dict[str, int], taken: float, counts: Counter[str]
    ) -> None:
        found = [sent.value for sent in transaction.sent if sent.value in there]
        whole = len(found) == len(transaction.sent)
        if found and not whole:
            self._broken(f"one of {transaction.client} is torn: of {transaction.sent} {found} are there")
        doubt, ending = transaction in self._in_doubt, transaction.ending
        if found and not doubt and ending is not Ending.COMMITTED:
            self._broken(f"one of {transaction.client} is committed, and was not: {found}")
        if ending is Ending.COMMITTED and not whole:
            if (transaction.ended or 0.0) < taken:
                self._broken(f"one of {transaction.client} was committed at {transaction.ended}, and is lost")
            counts["transactions lost"] += 1
        if found:
            counts["transactions restored"] += 1
            transaction.ending, transaction.ended = Ending.COMMITTED, transaction.ended or self._journal.now
        elif transaction.sent:
            transaction.ending = Ending.ABORTED
            transaction.sent[:] = [sent._replace(offset=None) for sent in transaction.sent]
            # What it read may be lost as well, and its place taken.
            transaction.consumed.clear()

    def _broken(self, text: str) -> None:
        self._ledger.broken(CHECK, text)
