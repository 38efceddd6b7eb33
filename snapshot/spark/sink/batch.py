"""One batch of a query: what its tasks do, and what its driver does. Exactly once, whatever is killed when.

1. A task takes a transactional id of its own, writes its records, and leaves the transaction open.
2. The driver decides: see progress.py. Before that nothing of the batch is ever read, from then on all.
3. The driver commits the tasks' transactions by what was recorded of them, not by a new epoch, which would
   abort them. Where a batch is run again after a crash, that comes first, and nothing is written.

A transaction that the cluster aborted after the decision, since it took longer than it may, is written again
by the task that has the same records. Nothing else is ever written twice. See docs/spark.md.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from strandline.snapshot.producing.brokers import Brokers
from strandline.snapshot.producing.errors import Fenced, SinkError
from strandline.snapshot.producing.transactions import ABORTED, COMMITTED, Described, describe, end
from strandline.snapshot.spark.sink.options import SinkOptions
from strandline.snapshot.spark.sink.progress import Ledger, Prepared, Progress

BY_HAND: Final = (
    "write by hand what is missing in the topic, then start with the option lostTransactions=accept"
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Identity:
    """A batch of a query, and the run of the query that writes it."""

    query: str
    run: str
    batch: int | None
    """None for a write that is not one of a series: nothing is known of it once its driver is gone."""
    consecutive: bool = False
    """Whether every batch comes, one after the other; a program that numbers writes may leave some out."""
    spark_id: str = ""
    """Spark's id of the query, which is another one with another checkpoint; empty where a program numbers
    writes by itself."""

    @property
    def claimant(self) -> str:
        """The text by which the progress names the run."""
        return f"{self.spark_id}/{self.run}" if self.spark_id else self.run

    def __str__(self) -> str:
        return (
            f"the write {self.query}" if self.batch is None else f"batch {self.batch} of query {self.query}"
        )


@dataclass(frozen=True)
class TaskDone:
    """The outcome that a task tells its driver."""

    identity: Identity
    task: int
    prepared: Prepared | None = None
    """Its open transaction; None if it had nothing to write."""
    again: bool = False
    """Whether that takes the place of one that is lost, of a batch that was decided before."""
    found: int = 0
    """Records that it did not write, since their batch was decided before."""

    @property
    def records(self) -> int:
        return self.found if self.prepared is None else self.prepared.records


def claimed(
    options: SinkOptions, brokers: Brokers, ledger: Ledger, identity: Identity, turn: int
) -> Progress:
    """The query's progress with the claim of this run. Raises SinkError, Unanswered."""
    assert identity.batch is not None, "others are not claimed"
    progress = ledger.claim(
        identity.claimant,
        identity.batch,
        turn,
        lambda found: check(options, found, identity),
        lambda found: _settled(options, brokers, found, identity),
    )
    check(options, progress, identity)
    return progress


def _settled(options: SinkOptions, brokers: Brokers, progress: Progress, identity: Identity) -> Progress:
    """The progress once the newest decision is carried out, where another batch than that comes now.

    Spark repeats a batch until its driver has carried it out. A program that numbers its writes may leave one
    out that was decided, and its transactional ids are those that the next one begins with. The claim stays
    under the topic of that decision: under another one it would hide the decision from a repeated write of
    that number, which would be doubled, or passed over. Raises SinkError, Unanswered.
    """
    assert identity.batch is not None, "others are not claimed"
    if identity.consecutive:
        return replace(progress, topic=options.progress_topic)
    if progress.next_batch == identity.batch + 1:
        return progress
    left = [one for one in progress.tasks if not one.settled]
    states = describe(brokers, [one.producer(identity.query).transactional_id for one in left])
    lost = []
    for one in left:
        state = states[one.producer(identity.query).transactional_id]
        there = state == Described(COMMITTED, one.producer_id, one.epoch)
        if not there and not committed(options, brokers, identity.query, one):
            lost.append(one)
    if lost:
        before = progress.next_batch - 1
        raise SinkError(
            f"{identity} comes behind {before}, which was decided, and {len(lost)} of whose {len(left)} "
            f"transactions were aborted before they were committed: write {before} again first, or {BY_HAND}"
        )
    return replace(progress, tasks=tuple(one.as_settled() for one in progress.tasks))


def check(options: SinkOptions, progress: Progress | None, identity: Identity) -> None:
    """Raise SinkError unless the batch is the query's, and the next one or the newest."""
    assert identity.batch is not None, "others have no progress"
    if progress is None:
        if identity.batch and identity.consecutive and not options.write_unknown:
            raise SinkError(
                f"{identity}: the cluster knows nothing of the batches before it; this is another cluster "
                "or topic, or the query rested for longer than offsets are kept. If this batch is not "
                "written yet, start with the option missingProgress=write"
            )
        return
    owner = progress.run.rpartition("/")[0]
    if owner and identity.spark_id != owner:
        # Its numbers are other batches: what has the number of one that is decided would be passed over.
        raise SinkError(
            f"{identity} is another query's than the one that has written under this name so far: two "
            "queries share it, or this one has another checkpoint location now, whose batches are others. "
            "Name this one otherwise by the option 'query'"
        )
    newest = progress.next_batch - 1
    if identity.batch == newest and not identity.consecutive and progress.topic != options.progress_topic:
        # A stream that has another topic now is run again for what was decided under the one before.
        raise SinkError(
            f"{identity} was written under topic {progress.topic}, and comes for {options.progress_topic} "
            "now, where it would be passed over: a name and a number are one write. Name the writes of "
            "another topic otherwise by the option 'query'"
        )
    if identity.batch < newest:
        raise SinkError(
            f"{identity} was written long ago, the newest is {newest}: two runs of the query are under "
            "way, two queries share a name, or the checkpoint location is an old copy. End one of the two, "
            "or use the newest location; with an empty one all is written again"
        )
    ahead = identity.batch > progress.next_batch and identity.consecutive
    if ahead and not options.write_unknown:
        raise SinkError(
            f"{identity}: the newest batch that the cluster knows is {newest}; the cluster was restored, or "
            "batches were written to another one. If this batch is not written yet, start with the option "
            "missingProgress=write"
        )


def check_replayed(options: SinkOptions, progress: Progress, done: Sequence[TaskDone]) -> None:
    """Raise SinkError unless a batch that was decided before has as many records now as it had then.

    With a copy of a checkpoint location a query has batches with other ends under the same numbers, and would
    lose records or double some.
    """
    then = sum(one.records for one in progress.tasks)
    now = sum(one.records for one in done)
    if now != then and not options.accept_loss:
        raise SinkError(
            f"{done[0].identity} was written with {then} records, and has {now} now: two queries share a "
            "name, the checkpoint location is a copy, or what the query reads beside its stream has changed. "
            "Give it another name by the option 'query', or begin with an empty checkpoint location; if what "
            "was written counts, start with the option lostTransactions=accept"
        )


def committed(options: SinkOptions, brokers: Brokers, query: str, one: Prepared) -> bool:
    """Commit a decided transaction, unless it is; False if it is certain that it was aborted.

    Raises SinkError where it is not certain either way, Unanswered.
    """
    if one.settled:
        return True
    producer = one.producer(query)
    try:
        end(brokers, producer, commit=True)
        return True
    except Fenced as error:
        if options.accept_loss:
            _log.warning(
                "transactional id %s: a transaction of %d records is gone (%s), and counts as written by "
                "the option lostTransactions=accept",
                producer.transactional_id,
                one.records,
                error,
            )
            return True
        state = describe(brokers, [producer.transactional_id])[producer.transactional_id]
        # A timeout and an operator's abort raise the epoch by one. Had it been committed and the id taken
        # since, the state would be another, or the epoch higher.
        same = state.producer_id == one.producer_id and state.epoch in (one.epoch, one.epoch + 1)
        if same and state.state in ABORTED:
            return False
        raise SinkError(
            f"{producer.transactional_id}: its {one.records} records were decided to be written, and it "
            f"cannot be told whether they are ({error}; now {state.state or 'unknown'}, epoch {state.epoch} "
            f"after {one.epoch}): look whether they are in the topic, write them by hand if not, and start "
            "with the option lostTransactions=accept"
        ) from error
