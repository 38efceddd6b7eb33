"""The anomalies that Jepsen's work on Kafka and its kin names, found in a history; a right one has none.

Writes of transactions that overlap in time may interleave, in Kafka as here: a partition's order is that of
arrival, and isolation concerns what is visible. So a write cycle counts where the order of the transactions
in time forbids it. What a client does not know (no answer to its commit) is allowed either way, but one way
only.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from tests.histories.history import Ending, History, Place, Read, Sent, Transaction

EVIDENCE: Final = 10
"""Findings of one kind that are told."""


class Anomaly(NamedTuple):
    """One finding; `kind` is the name of the check."""

    kind: str
    text: str


class _Known:
    """A history with what every check looks up."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.writer: dict[str, Transaction] = {
            sent.value: transaction for transaction in history.transactions for sent in transaction.sent
        }
        self.visible: dict[str, list[Read]] = defaultdict(list)
        for reads in history.committed.values():
            for read in reads:
                self.visible[read.value].append(read)

    def is_there(self, sent: Sent) -> bool:
        """Whether a record is visible at the end where it was sent to."""
        return any(read.place == sent.place for read in self.visible.get(sent.value, ()))

    def seen(self) -> Iterator[Read]:
        """Everything that any reader of committed records was given."""
        for poll in self.history.polls:
            yield from poll.read
        for reads in self.history.committed.values():
            yield from reads

    def given(self) -> Iterator[Read]:
        """As `seen`, and what transactions consumed."""
        yield from self.seen()
        for transaction in self.history.transactions:
            yield from transaction.consumed


def lost_writes(known: _Known) -> Iterator[str]:
    """A record of a transaction whose commit was acknowledged is not there at the end."""
    for transaction in known.history.transactions:
        if transaction.ending is Ending.COMMITTED:
            for sent in transaction.sent:
                if not known.is_there(sent):
                    yield f"{sent.value} of {transaction.client}, committed, is not in {sent.place}"


def duplicates(known: _Known) -> Iterator[str]:
    """A record that was sent once is there more than once."""
    for value, reads in known.visible.items():
        if len(reads) > 1:
            yield f"{value} is there {len(reads)} times: {[tuple(read[:2]) for read in reads]}"


def aborted_reads(known: _Known) -> Iterator[str]:
    """A reader of committed records was given one of a transaction that aborted."""
    for read in known.given():
        writer = known.writer.get(read.value)
        if writer is not None and writer.ending is Ending.ABORTED:
            yield f"{read.value} at {read.offset} of {read.place}: {writer.client} aborted it"


def unwritten_reads(known: _Known) -> Iterator[str]:
    """A reader was given what nobody sent."""
    for read in known.seen():
        if known.writer and read.value not in known.writer and read.value not in known.history.inputs:
            yield f"{read.value} at {read.offset} of {read.place} was sent by nobody"


def intermediate_reads(known: _Known) -> Iterator[str]:
    """A reader was given a record before its writer had asked for the commit."""
    for poll in known.history.polls:
        for read in poll.read:
            writer = known.writer.get(read.value)
            if writer is None or writer.ending is Ending.ABORTED:
                continue
            if writer.commit_asked is None or poll.ended < writer.commit_asked:
                early = f"at {poll.ended:g}, before {writer.client} committed"
                yield f"{poll.consumer} was given {read.value} {early}"


def torn_transactions(known: _Known) -> Iterator[str]:
    """Of one transaction some records are visible at the end, and others are not."""
    for transaction in known.history.transactions:
        there = [sent.value for sent in transaction.sent if known.is_there(sent)]
        if there and len(there) < len(transaction.sent):
            missing = [sent.value for sent in transaction.sent if not known.is_there(sent)]
            yield f"of {transaction.client}, {transaction.ending.value}: {there} there, {missing} not"


def inconsistent_offsets(known: _Known) -> Iterator[str]:
    """One offset of a partition held different records for different clients."""
    held: dict[tuple[Place, int], str] = {}
    told = [
        (sent.place, sent.offset, sent.value)
        for transaction in known.history.transactions
        for sent in transaction.sent
        if sent.offset is not None
    ]
    for place, offset, value in [*told, *known.given()]:
        other = held.setdefault((place, offset), value)
        if other != value:
            yield f"{place} has {other} and {value} at {offset}"


def nonmonotonic_sends(known: _Known) -> Iterator[str]:
    """A client's later record got the lower offset, within one transaction or from one to the next."""
    last: dict[tuple[str, Place], tuple[int, str]] = {}
    for transaction in known.history.transactions:
        for sent in transaction.sent:
            if sent.offset is None:
                continue
            before = last.get((transaction.client, sent.place))
            if before is not None and before[0] >= sent.offset:
                yield f"{transaction.client} sent {before[1]}, then {sent.value}: {before[0]}, {sent.offset}"
            last[transaction.client, sent.place] = sent.offset, sent.value


def nonmonotonic_polls(known: _Known) -> Iterator[str]:
    """A consumer that nobody moved was given an offset again, or a lower one."""
    for (consumer, _, place), reads in _runs(known.history).items():
        for before, after in pairwise(reads):
            if after.offset <= before.offset:
                yield f"{consumer} was given {after.offset} of {place} after {before.offset}"


def skipped_polls(known: _Known) -> Iterator[str]:
    """A consumer that nobody moved was not given a committed record between two that it was given, or, where
    it read everything, anywhere."""
    order = {
        place: {read.offset: number for number, read in enumerate(reads)}
        for place, reads in known.history.committed.items()
    }
    for (consumer, _, place), reads in _runs(known.history).items():
        numbers = order.get(place, {})
        for before, after in pairwise(reads):
            first, second = numbers.get(before.offset), numbers.get(after.offset)
            if first is not None and second is not None and second > first + 1:
                missed = known.history.committed[place][first + 1 : second]
                yield f"{consumer} missed {[read.value for read in missed]} in {place} after {before.offset}"
    for consumer in known.history.followed:
        given = {read for poll in known.history.polls if poll.consumer == consumer for read in poll.read}
        for place, reads in known.history.committed.items():
            missing = [read.value for read in reads if read not in given]
            if missing:
                yield f"{consumer} read all of {place}, and was not given {missing[:EVIDENCE]}"


def _runs(history: History) -> dict[tuple[str, int, Place], list[Read]]:
    runs: dict[tuple[str, int, Place], list[Read]] = defaultdict(list)
    for poll in history.polls:
        for read in poll.read:
            runs[poll.consumer, poll.run, read.place].append(read)
    return runs


def write_cycles(known: _Known) -> Iterator[str]:
    """A transaction that began after another had been committed has a record before one of the other's."""
    for place, reads in known.history.committed.items():
        latest: Transaction | None = None
        for read in reads:
            writer = known.writer.get(read.value)
            if writer is None:
                continue
            if latest is not None and writer.ended is not None and latest.began > writer.ended:
                yield f"{place}: {read.value} of {writer.client} lies behind a later one of {latest.client}"
            if latest is None or writer.began > latest.began:
                latest = writer


def wrongly_consumed(known: _Known) -> Iterator[str]:
    """An input was consumed by no visible transaction at the end, or by more than one."""
    if not known.history.inputs:
        return
    times = Counter(
        read.value
        for transaction in known.history.transactions
        if any(sent.value in known.visible for sent in transaction.sent)
        for read in transaction.consumed
    )
    for value in known.history.inputs:
        if times[value] != 1:
            yield f"input {value} was consumed {times[value]} times"


CHECKS: Final[tuple[Callable[[_Known], Iterator[str]], ...]] = (
    lost_writes,
    duplicates,
    aborted_reads,
    unwritten_reads,
    intermediate_reads,
    torn_transactions,
    inconsistent_offsets,
    nonmonotonic_sends,
    nonmonotonic_polls,
    skipped_polls,
    write_cycles,
    wrongly_consumed,
)


def anomalies(history: History) -> list[Anomaly]:
    """Everything that is wrong with a history, a few of each kind."""
    known = _Known(history)
    found = []
    for check in CHECKS:
        for number, text in enumerate(check(known)):
            if number == EVIDENCE:
                break
            found.append(Anomaly(check.__name__, text))
    return found
