"""`writeStream.format("strandline")` and `write.format("strandline")`, as Spark drives them.

Spark makes a writer beside the driver, and sends copies to its tasks, where `write` runs. For `commit` and
`abort` of a stream it makes another writer each time, which knows nothing but the options. So all that a
driver has to know comes in the tasks' messages. Spark pickles these between its own processes. `abort` is
called after a `commit` that failed, too. A stream's task knows its query and batch from its local properties.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from strandline.snapshot.producing.errors import SinkError
from strandline.snapshot.spark.sink.batch import Identity, TaskDone
from strandline.snapshot.spark.sink.columns import Columns
from strandline.snapshot.spark.sink.driver import DriverSink
from strandline.snapshot.spark.sink.options import SinkOptions, parse
from strandline.snapshot.spark.sink.task import TaskSink

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_RUN: Final = "spark.jobGroup.id"
"""Spark's id of this run of a stream; it is another one after each start."""


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    """The outcome that a task tells the driver, as Spark carries it."""

    done: TaskDone


class StrandlineStreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches, each once. Raises SinkError."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = parse(options, streaming=True)
        self._columns = Columns(schema, self._options.topic)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        context = _context()
        found = {name: context.getLocalProperty(name) for name in (_QUERY, _BATCH, _RUN)}
        missing = [name for name, value in found.items() if not value]
        if missing:
            raise SinkError(f"Spark does not tell its tasks {', '.join(missing)}: use PySpark 4.2 or later")
        identity = Identity(
            self._options.query or str(found[_QUERY]),
            str(found[_RUN]),
            int(str(found[_BATCH])),
            consecutive=True,
            spark_id=str(found[_QUERY]),
        )
        return _written(self._options, self._columns, identity, context, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        done = _all_done(messages)
        if done[0].identity.batch != batchId:
            raise SinkError(
                f"Spark told its tasks of batch {done[0].identity.batch} and its driver of {batchId}: "
                "nothing is decided; use another release of PySpark"
            )
        DriverSink(self._options).commit(done)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        DriverSink(self._options).abort(_done(messages))


class StrandlineWriter(DataSourceArrowWriter):
    """Writes a frame once; of a series of writes each number once. Raises SinkError."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = parse(options, streaming=False)
        self._columns = Columns(schema, self._options.topic)
        run = str(uuid.uuid4())
        self._identity = Identity(self._options.query or run, run, self._options.batch)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return _written(self._options, self._columns, self._identity, _context(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        DriverSink(self._options).commit(_all_done(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        DriverSink(self._options).abort(_done(messages))


def _written(
    options: SinkOptions,
    columns: Columns,
    identity: Identity,
    context: TaskContext,
    iterator: Iterator[Any],
) -> TaskMessage:
    sink = TaskSink(options)
    return TaskMessage(
        sink.write(identity, context.partitionId(), context.attemptNumber(), columns, iterator)
    )


def _context() -> TaskContext:
    found = TaskContext.get()
    assert found is not None, "Spark writes in tasks"
    return found


def _done(messages: Sequence[WriterCommitMessage | None]) -> list[TaskDone | None]:
    return [one.done if isinstance(one, TaskMessage) else None for one in messages]


def _all_done(messages: Sequence[WriterCommitMessage | None]) -> list[TaskDone]:
    done = [one for one in _done(messages) if one is not None]
    if not done or len(done) < len(messages):
        raise SinkError("Spark commits a batch some of whose tasks have no outcome: start the query again")
    return done
