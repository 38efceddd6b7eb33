"""What became of each batch, by the history, beside what its client knows of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tests.histories.history import Ending, Transaction
from tests.simulation.whole.compaction.history import Copies
from tests.simulation.whole.ledger import Sent
from tests.simulation.whole.transactions.journal import Journal

Broken = Callable[[str, str], None]


def check_batches(copies: Copies, sent: Iterable[Sent], broken: Broken) -> None:
    """What was acknowledged was written where its producer was told, and what was refused was not written."""
    for batch in sent:
        at = copies.history(batch.place).batches.get(batch.body)
        if batch.acked is not None and at != batch.acked:
            broken("acknowledged and lost", f"{batch}, at {batch.acked}, was written at {at}")
        if batch.refused is not None and at is not None:
            broken("refused and there", f"{batch} was refused ({batch.refused}), was written at {at}")


def check_endings(copies: Copies, journal: Journal, broken: Broken) -> None:
    """A committed transaction is there as a whole, an aborted one is not, and one in doubt is either."""
    by_transaction: dict[Transaction, list[Sent]] = {}
    for batch, transaction in journal.batches.items():
        by_transaction.setdefault(transaction, []).append(batch)
    for transaction, batches in by_transaction.items():
        fates = [_fate(copies, batch) for batch in batches]
        allowed: tuple[set[bool], ...] = ({True}, {False})
        if transaction.ending is Ending.COMMITTED:
            allowed = ({True},)
        elif transaction.ending is Ending.ABORTED:
            allowed = ({False},)
        if set(fates) not in allowed:
            told = [f"{batch}: {fate}" for batch, fate in zip(batches, fates, strict=True)]
            broken("torn transactions", f"one of {transaction.client} was {transaction.ending}: {told}")


def _fate(copies: Copies, batch: Sent) -> bool:
    """Whether a batch is there and committed; a batch is decided as a whole."""
    history = copies.history(batch.place)
    at = history.batches.get(batch.body)
    return at is not None and history.records[at].fate is True
