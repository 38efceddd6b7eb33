"""The transactional producer of a version: columns of keys and values to the brokers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol
from uuid import UUID

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from confluent_kafka import KafkaError, KafkaException

from strandline.cluster.view_worker import limits
from strandline.cluster.view_worker.fetched import Place
from strandline.cluster.view_worker.node_link import TopicPlace
from strandline.cluster.view_worker.way import Way, addresses, connected
from strandline.snapshot.compression import Compression
from strandline.snapshot.connection import ANSWER_SECONDS, ConnectionLost
from strandline.snapshot.producing import transactions
from strandline.snapshot.producing.batch_sender import BatchSender
from strandline.snapshot.producing.brokers import GROUP, TRANSACTION, Address, Brokers
from strandline.snapshot.producing.errors import Fenced, SinkError
from strandline.snapshot.producing.partitioning import places_of
from strandline.snapshot.producing.record_batch import framed
from strandline.snapshot.producing.record_columns import packed

REQUEST_SECONDS: Final = ANSWER_SECONDS + 15.0
"""For each question, and between two acknowledgements of records: a node that stands still is given up before
that, and another one asked. A transaction may last longer."""
TRANSACTION_SECONDS: Final = 60.0
ENDED: Final = "\0"
"""Of offsets' metadata: librdkafka's Python client writes it, and reads on until it finds one."""
_WAITING_BYTES: Final = 8 << 20
"""Of batches that wait or are under way, beyond which no more are made."""


class Producer(Protocol):
    """Writes in one transaction after the other. Raises KafkaException, after which it is of no more use.

    `place` is a topic that is there; keys and values are Arrow arrays of large binaries, without null keys.
    """

    def connect(self) -> None:
        """Find the coordinators, so that `take_over` need not. It does so where this fails."""

    def take_over(self) -> None:
        """Shut out the process before, and end its transaction."""

    def write(self, place: TopicPlace, keys: Any, values: Any) -> None:
        """Write records, a tombstone where the value is null."""

    def commit(self, offsets: Mapping[Place, int], metadata: str) -> None:
        """Commit what was written, and offsets of the group that has the producer's name."""


class LeaderProducer:
    """Sends batches to the partitions' leaders itself. Not for several threads.

    Where a request was interrupted, a broker may have it still, and take it in a later transaction: the end
    of one, or its offsets. So the producer gets another epoch before its next transaction.
    """

    def __init__(self, way: Way, name: str) -> None:
        """`name` is that of the version's group, and the transactional id too."""
        bootstrap = [Address(*one) for one in addresses(way)]
        self._brokers = Brokers(
            bootstrap, REQUEST_SECONDS, lambda host, port: connected((host, port), way, name)
        )
        self._name = name

    def connect(self) -> None:
        """See Producer."""
        with suppress(ConnectionLost, SinkError):
            for kind in (TRANSACTION, GROUP):
                for address, _ in self._brokers.by_coordinator(kind, [self._name]):
                    self._brokers.connection(address)

    def take_over(self) -> None:
        """See Producer."""
        with _told():
            self._identify(transactions.begin(self._brokers, self._name, TRANSACTION_SECONDS))

    def write(self, place: TopicPlace, keys: Any, values: Any) -> None:
        """See Producer."""
        now = time.time_ns() // 1_000_000
        with _told():
            self._brokers.expect_renamed(place.name, UUID(bytes=place.topic_id), self._name)
            for partition, chosen in _by_partition(keys, place.partitions):
                of = place.name, partition
                some = (keys, values) if chosen is None else (keys.take(chosen), values.take(chosen))
                for records, count in packed(*some, limits.batch_bytes(place)):
                    sequence = self._sender.sequence(of)
                    batch = framed(records, count, now, now, self._producer, sequence, Compression.NONE)
                    self._sender.put(of, batch, count)
                    self._sender.send(most=_WAITING_BYTES)

    def commit(self, offsets: Mapping[Place, int], metadata: str) -> None:
        """See Producer."""
        with _told():
            self._sender.send(most=0)
            if offsets:
                told = metadata + ENDED
                transactions.commit_offsets(self._brokers, self._producer, self._name, offsets, told)
            if offsets or self._sender.in_transaction:
                transactions.end(self._brokers, self._producer, commit=True)
            if self._brokers.interrupted:
                self._identify(
                    transactions.begin(self._brokers, self._name, TRANSACTION_SECONDS, self._producer)
                )
            self._sender.begin()

    def _identify(self, producer: transactions.Producer) -> None:
        self._brokers.interrupted = False
        self._producer = producer
        self._sender = BatchSender(self._brokers, producer)


def _by_partition(keys: Any, count: int) -> Iterator[tuple[int, Any]]:
    """The numbers of the keys of each partition, in their order; None for all keys."""
    if count == 1:
        yield 0, None
        return
    places = places_of(keys, count)
    order = np.argsort(places, kind="stable")
    numbers, starts = np.unique(places[order], return_index=True)
    for number, chosen in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
        yield number, pa.array(chosen)


@contextmanager
def _told() -> Iterator[None]:
    """Raise the library's errors, which the process ends with."""
    try:
        yield
    except Fenced as fenced:
        raise KafkaException(KafkaError(KafkaError._FENCED, str(fenced), True)) from fenced
    except SinkError as error:
        raise KafkaException(KafkaError(KafkaError._FAIL, str(error))) from error
