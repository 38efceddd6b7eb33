"""The sink driven as Spark drives it, without Spark: tasks, commit, abort after what failed, and restarts.

A kill is played at a request: from it on the process sends nothing any more, as one that is gone.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from pyspark.sql.types import BinaryType, StringType, StructType

from strandline.snapshot.connection import Api, Connection
from strandline.snapshot.spark.sink.batch import Identity, TaskDone
from strandline.snapshot.spark.sink.columns import Columns
from strandline.snapshot.spark.sink.driver import DriverSink
from strandline.snapshot.spark.sink.options import parse
from strandline.snapshot.spark.sink.task import TaskSink

SCHEMA = StructType().add("key", StringType()).add("value", BinaryType())
_RUNS = itertools.count()

Rows = Callable[[int, int], list[str]]
"""The values of a batch's task."""


class Killed(BaseException):
    """The process is gone. Not an Exception: nothing that it would still do counts."""


class Life:
    """Requests that a process sends until it is killed: before the n-th, or with its answer unread."""

    def __init__(self) -> None:
        self.sent: list[Api] = []
        self.die_at: int | None = None
        self.unread = False
        self.on_request: Callable[[Api, Any], None] = lambda api, request: None
        self._dead = False
        self._lock = threading.Lock()

    def begin(self, die_at: int | None = None, *, unread: bool = False) -> None:
        self.sent, self.die_at, self.unread, self._dead = [], die_at, unread, False

    def before(self, api: Api, request: Any) -> bool:
        """Whether this is the last request."""
        self.on_request(api, request)
        with self._lock:
            last = self.die_at is not None and len(self.sent) == self.die_at
            if self._dead or (last and not self.unread):
                self._dead = True
                raise Killed
            self.sent.append(api)
            self._dead = last
        return last


@contextmanager
def lived(monkeypatch: pytest.MonkeyPatch) -> Iterator[Life]:
    """Every request of the sink goes through a Life."""
    life = Life()
    send, receive = Connection.send, Connection.receive

    def counted(connection: Connection, api: Api, request: Any) -> None:
        last = life.before(api, request)
        send(connection, api, request)
        if last:
            receive(connection)
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Connection, "send", counted)
        yield life


class Play:
    """A query, its checkpoint and its rows. Batches before `done` are in Spark's commit log."""

    def __init__(
        self, bootstrap: str, topic: str, query: str, rows: Rows, tasks: int = 2, **options: str
    ) -> None:
        given = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "patienceSeconds": "40", **options}
        self.options = parse(given, streaming=True)
        self.columns = Columns(SCHEMA, topic)
        self.query, self.rows, self.tasks, self.done = query, rows, tasks, 0
        self.spark_id, self.consecutive = f"id-of-{query}", True
        self.start()

    def start(self) -> None:
        """A new run of the query."""
        self.run = f"run-{next(_RUNS)}"

    def identity(self, batch: int) -> Identity:
        return Identity(self.query, self.run, batch, consecutive=self.consecutive, spark_id=self.spark_id)

    def task(self, batch: int, task: int, attempt: int = 0) -> TaskDone:
        values = self.rows(batch, task)
        table = pa.table(
            {
                "key": pa.array([value.rpartition(":")[2] for value in values], pa.string()),
                "value": pa.array([value.encode() for value in values], pa.binary()),
            }
        )
        batches = table.to_batches(max_chunksize=7)
        return TaskSink(self.options).write(self.identity(batch), task, attempt, self.columns, batches)

    def commit(self, done: list[TaskDone]) -> None:
        """As Spark: what fails is aborted, and the run ends."""
        try:
            DriverSink(self.options).commit(done)
        except Exception:
            DriverSink(self.options).abort(list(done))
            raise
        batch = done[0].identity.batch
        assert batch is not None
        self.done = batch + 1

    def batch(self) -> None:
        """The next batch of this run."""
        self.commit([self.task(self.done, number) for number in range(self.tasks)])


def values(
    bootstrap: str, topic: str, partitions: int = 3, isolation: str = "read_committed"
) -> Counter[str]:
    """What a consumer reads of a topic; each value, so many times."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "judge",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    found: Counter[str] = Counter()
    try:
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
        ended: set[int] = set()
        while len(ended) < partitions:
            message = consumer.poll(30)
            assert message is not None, "no end of the topic in 30 s"
            error = message.error()
            if error is None:
                value = message.value()
                assert value is not None
                found[value.decode()] += 1
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(message.partition() or 0)
    finally:
        consumer.close()
    return found
