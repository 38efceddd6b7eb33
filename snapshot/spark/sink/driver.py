"""The driver's work for a batch: the decision, and carrying it out. See batch.py."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from strandline.snapshot.producing.brokers import Brokers
from strandline.snapshot.producing.errors import Fenced, SinkError
from strandline.snapshot.producing.transactions import (
    COMMITTING,
    ONGOING,
    Described,
    begin,
    describe,
    end,
    open_ids,
)
from strandline.snapshot.spark.sink.batch import (
    BY_HAND,
    Identity,
    TaskDone,
    check,
    check_replayed,
    claimed,
    committed,
)
from strandline.snapshot.spark.sink.options import SinkOptions
from strandline.snapshot.spark.sink.progress import Ledger, Prepared, Progress, is_task_id

CLEANING_SECONDS: Final = 10.0
"""Longest wait for what need not succeed: the transactions end by themselves."""
READERS_SECONDS: Final = 10.0
"""Longest wait for a batch's records to be there for readers. It is some milliseconds, as a rule."""
PARALLEL_ENDS: Final = 8
"""Connections over which transactions are ended at once."""
_MOST_NAMED: Final = 20

_log = logging.getLogger(__name__)


class DriverSink:
    """The driver's half of a sink."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def commit(self, done: Sequence[TaskDone]) -> None:
        """Decide that a batch is written, and carry it out. Said again it does no more.

        Raises SinkError: the batch is not decided, or is and cannot be carried out; Unanswered: it may be
        either. In all of these cases the query, started again, goes on rightly.
        """
        identity = done[0].identity
        there = {one.task for one in done}
        with self._brokers() as brokers:
            if identity.batch is None:
                tasks = [one.prepared for one in done if one.prepared is not None]
                self._check_open(brokers, identity, tasks)
                self._settle(identity, tasks, there)
                return
            ledger = self._ledger(brokers, identity.query)
            progress = self._own_progress(brokers, ledger, done)
            check(self._options, progress, identity)
            decision = self._to_decide(brokers, progress, done)
            if decision is not None:
                try:
                    progress = ledger.decide(progress, identity.batch, decision)
                except Fenced as error:
                    raise _taken_over(identity) from error
            self._settle(identity, progress.tasks, there)
        if not identity.consecutive and not all(one.settled for one in progress.tasks):
            self._remember(identity.query, progress)
        self._clean(identity.query)

    def _own_progress(self, brokers: Brokers, ledger: Ledger, done: Sequence[TaskDone]) -> Progress:
        """The query's progress, claimed by this run; by the driver itself if no task had to claim it."""
        identity = done[0].identity
        if all(one.prepared is None for one in done):
            return claimed(self._options, brokers, ledger, identity, turn=0)
        progress = ledger.read_stable()
        if progress is None or progress.run != identity.claimant:
            raise _taken_over(identity)
        return progress

    def _to_decide(
        self, brokers: Brokers, progress: Progress, done: Sequence[TaskDone]
    ) -> list[Prepared] | None:
        """The transactions of the decision that is to be made, None if there is none to make."""
        identity = done[0].identity
        assert identity.batch is not None, "others are not decided"
        told = {one.task: one for one in done if one.prepared is not None}
        prepared = {task: one.prepared for task, one in told.items() if one.prepared is not None}
        if progress.next_batch == identity.batch + 1:
            again = {task: prepared[task] for task, one in told.items() if one.again}
            if not again:
                check_replayed(self._options, progress, done)
                return None
            self._check_open(brokers, identity, again.values())
            return [again.get(one.task, one) for one in progress.tasks]
        self._check_open(brokers, identity, prepared.values())
        return list(prepared.values())

    def _check_open(self, brokers: Brokers, identity: Identity, tasks: Iterable[Prepared]) -> None:
        """Raise SinkError if a transaction is over already: it took too long, or its task was replaced.

        It cannot be ruled out that this happens later. Then it is found when the transactions are ended.
        """
        producers = [one.producer(identity.query) for one in tasks]
        states = describe(brokers, [one.transactional_id for one in producers])
        for one in producers:
            if states[one.transactional_id] != Described(ONGOING, one.producer_id, one.epoch):
                raise SinkError(
                    f"{identity}: {one.transactional_id} was aborted before the batch was whole; nothing of "
                    "it is written. A batch may take transactionTimeoutSeconds "
                    f"({self._options.transaction_seconds:g}): make it smaller, and start the query again"
                )

    def _settle(self, identity: Identity, tasks: Sequence[Prepared], there: Container[int]) -> None:
        """Commit the transactions of a decided batch; `there`: the numbers of the tasks that it has now.

        Raises SinkError if one is lost, Unanswered.
        """

        def some(number: int) -> list[Prepared]:
            with self._brokers() as brokers:
                mine = tasks[number::PARALLEL_ENDS]
                return [one for one in mine if not committed(self._options, brokers, identity.query, one)]

        workers = min(PARALLEL_ENDS, len(tasks))
        if not workers:
            return
        with ThreadPoolExecutor(workers) as pool:
            lost = [one for found in pool.map(some, range(workers)) for one in found]
        if not lost:
            if not identity.consecutive:
                self._await_readers(identity, tasks)
            return
        cure = "start the query again, which writes their records again"
        if identity.batch is None or any(one.task not in there for one in lost):
            cure = f"{BY_HAND} (tasks {', '.join(str(one.task) for one in lost[:_MOST_NAMED])})"
        raise SinkError(
            f"{identity} was decided, and {len(lost)} of its {len(tasks)} transactions were aborted before "
            f"they were committed: {cure}"
        )

    def _remember(self, query: str, progress: Progress) -> None:
        """Write down that a program's write is committed: a later one asks, maybe in a month.

        The cluster has forgotten its transactional ids by then, and without them it cannot be told. As long
        as they are there they tell, so this need not succeed.
        """
        with self._brokers(CLEANING_SECONDS) as brokers, suppress(SinkError, Fenced):
            self._ledger(brokers, query).settle(progress)

    def _await_readers(self, identity: Identity, tasks: Sequence[Prepared]) -> None:
        """Return once each partition has the markers of the transactions: until then no reader sees records.

        A broker answers an end as soon as that is in its log, and a program reads what it has written. A
        stream does not, and has no time for it. What is committed stays so in any case.
        """
        left = {one.producer(identity.query).transactional_id: one for one in tasks if not one.settled}
        with self._brokers(READERS_SECONDS) as brokers:
            deadline = brokers.deadline()
            try:
                while left:
                    states = describe(brokers, list(left))
                    left = {
                        name: one
                        for name, one in left.items()
                        if states[name] == Described(COMMITTING, one.producer_id, one.epoch)
                    }
                    if left:
                        deadline.pause("the markers", f"{len(left)} transactions are being completed")
            except SinkError:
                _log.warning(
                    "%s is written, and consumers see it later: the cluster is still to complete %d of its "
                    "transactions",
                    identity,
                    len(left),
                )

    def abort(self, done: Sequence[TaskDone | None]) -> None:
        """Abort what tasks left open, unless the batch was decided; what cannot be done now is left to time.

        Spark calls this after a failed `commit` too.
        """
        told = [one for one in done if one is not None and one.prepared is not None]
        if not told:
            return
        identity = told[0].identity
        with self._brokers(CLEANING_SECONDS) as brokers, suppress(SinkError):
            # Where it was decided again, what the new decision names must stay.
            decided: Sequence[Prepared] = ()
            if identity.batch is not None:
                progress = self._ledger(brokers, identity.query).read_stable()
                decided = progress.tasks if progress and progress.next_batch > identity.batch else ()
            for one in told:
                assert one.prepared is not None, "chosen above"
                if one.prepared not in decided:
                    with suppress(Fenced):
                        end(brokers, one.prepared.producer(identity.query), commit=False)

    def _clean(self, query: str) -> None:
        """Abort what other attempts of tasks, and earlier runs, left open: it would hold up readers."""
        with self._brokers(CLEANING_SECONDS) as brokers:
            try:
                for name in open_ids(brokers, lambda one: is_task_id(query, one)):
                    begin(brokers, name, self._options.transaction_seconds)
            except SinkError as error:
                _log.warning("transactions that earlier attempts left open end by themselves: %s", error)

    def _brokers(self, seconds: float | None = None) -> Brokers:
        return Brokers(self._options.bootstrap, seconds or self._options.patience_seconds)

    def _ledger(self, brokers: Brokers, query: str) -> Ledger:
        return Ledger(brokers, query, self._options.progress_topic)


def _taken_over(identity: Identity) -> SinkError:
    return SinkError(
        f"{identity}: another run of this query has taken over, and this one may not decide any more. Two "
        "queries need two checkpoint locations, or two names by the option 'query'"
    )
