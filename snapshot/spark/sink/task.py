"""A task's work for a batch: its records, in a transaction that it leaves open. See batch.py."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from strandline.snapshot.producing.brokers import Brokers
from strandline.snapshot.producing.errors import Fenced, SinkError
from strandline.snapshot.producing.transactions import Producer, begin
from strandline.snapshot.spark.sink.batch import BY_HAND, Identity, TaskDone, claimed, committed
from strandline.snapshot.spark.sink.columns import Columns
from strandline.snapshot.spark.sink.options import SinkOptions
from strandline.snapshot.spark.sink.progress import Ledger, Prepared, task_id
from strandline.snapshot.spark.sink.record_writer import RecordWriter


class TaskSink:
    """The tasks' half of a sink."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(
        self, identity: Identity, task: int, attempt: int, columns: Columns, batches: Iterable[Any]
    ) -> TaskDone:
        """Write a task's rows, or find that they are there. `attempt` is of the task, from 0.

        All of `batches` is taken in any case: Spark gives up a Python process that leaves some.
        Raises SinkError, Unanswered.
        """
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return TaskDone(identity, task)
        rows = itertools.chain([first], filled)
        with Brokers(self._options.bootstrap, self._options.patience_seconds) as brokers:
            if identity.batch is None:
                return self._write(brokers, identity, task, attempt, columns, rows, None)
            progress = claimed(
                self._options,
                brokers,
                Ledger(brokers, identity.query, self._options.progress_topic),
                identity,
                turn=task,
            )
            if progress.next_batch != identity.batch + 1:
                return self._write(brokers, identity, task, attempt, columns, rows, None)
            decided = progress.task(task)
            if decided is not None and not committed(self._options, brokers, identity.query, decided):
                # Never in the slot that is lost: what became of that is all that is known of it.
                slot = decided.slot + 1 + attempt
                return self._write(brokers, identity, task, slot, columns, rows, decided)
            return TaskDone(identity, task, found=sum(batch.num_rows for batch in rows))

    def _write(
        self,
        brokers: Brokers,
        identity: Identity,
        task: int,
        slot: int,
        columns: Columns,
        rows: Iterable[Any],
        lost: Prepared | None,
    ) -> TaskDone:
        name = task_id(identity.query, task, slot)
        producer = begin(brokers, name, self._options.transaction_seconds)
        try:
            prepared = self._records(brokers, producer, task, slot, columns, rows)
            if lost is not None and (prepared.records, prepared.digest) != (lost.records, lost.digest):
                raise SinkError(
                    f"{identity} was decided, task {task} lost its {lost.records} records since, and the "
                    f"batch has others there now ({prepared.records}): the source gives its rows to other "
                    f"tasks; {BY_HAND}"
                )
        except BaseException as error:
            with suppress(SinkError):
                # Not by ending it: that leaves the state that a timeout does, after which it counts as lost.
                begin(brokers, name, self._options.transaction_seconds)
            if isinstance(error, Fenced):
                raise SinkError(
                    f"{identity}, task {task}: its transaction is over ({error}): another run of this query "
                    "goes on, or the task took longer than transactionTimeoutSeconds "
                    f"({self._options.transaction_seconds:g}): make batches smaller"
                ) from error
            raise
        return TaskDone(identity, task, prepared, lost is not None)

    def _records(
        self,
        brokers: Brokers,
        producer: Producer,
        task: int,
        slot: int,
        columns: Columns,
        batches: Iterable[Any],
    ) -> Prepared:
        writer = RecordWriter(brokers, producer, self._options.compression)
        for batch in batches:
            writer.write(columns.rows(batch, brokers.partitions, task + writer.records))
        writer.finish()
        return Prepared(task, slot, producer.producer_id, producer.epoch, writer.records, writer.digest)
