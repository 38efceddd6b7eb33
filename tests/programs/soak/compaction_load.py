"""Writers of a compacted table; each has keys of its own, and knows what they must hold."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from strandline.cluster.kafka_client import client_config
from strandline.cluster.kafka_errors import error_of

TOPIC: Final = "table"
PARTITIONS: Final = 2
VALUE_BYTES: Final = 100
DELETED: Final = 0.2
"""Of the records are tombstones."""
ABORTED: Final = 0.25
"""Of the transactions."""
RECORDS: Final = 200
"""In one transaction, or at once without one."""
Delivered = Callable[[KafkaError | None, Message], None]
_ANSWER_SECONDS: Final = 15.0
_JOIN_SECONDS: Final = 120.0


class Place(NamedTuple):
    """Where a record lies that was acknowledged."""

    partition: int
    offset: int


def key_of(number: int) -> bytes:
    return b"key-%08d" % number


def partition_of(key: bytes) -> int:
    """The partition that a key's records go to."""
    return int(key[4:]) % PARTITIONS


class TableWriter:
    """Writes, updates and deletes its keys until told to stop; `problem` says why it could not go on."""

    def __init__(self, bootstrap: str, name: str, numbers: Sequence[int], rate: float, seed: int) -> None:
        """`rate`: records a second after the first of each key."""
        self.table: dict[bytes, bytes] = {}
        """What each key holds by all that was acknowledged; a deleted key is not in it."""
        self.graves: dict[bytes, Place] = {}
        """The tombstone of each key that is deleted, as far as its place was told."""
        self.tombstones = 0
        """Acknowledged ones."""
        self.written_bytes = 0
        """Of the keys and values of all acknowledged records, those of aborted transactions too."""
        self.written = 0
        self.problem: str | None = None
        self.filled = threading.Event()
        """Every key has been written once."""
        self._bootstrap = bootstrap
        self._name = name
        self._numbers = numbers
        self._rate = rate
        self._rng = random.Random(seed)
        self._made = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Begin nothing more; `wait` for the end."""
        self._stopping.set()

    def wait(self) -> bool:
        """Whether all of it is decided, some time after `stop`."""
        self._thread.join(_JOIN_SECONDS)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            for first in range(0, len(self._numbers), RECORDS):
                if self._stopping.is_set():
                    break
                self._write({key_of(one): self._value() for one in self._numbers[first : first + RECORDS]})
            self.filled.set()
            due = time.monotonic()
            while not self._stopping.is_set():
                chosen = self._rng.sample(self._numbers, min(RECORDS, len(self._numbers)))
                self._write(
                    {key_of(one): None if self._rng.random() < DELETED else self._value() for one in chosen}
                )
                due = max(due + len(chosen) / self._rate, time.monotonic() - 1.0)
                self._stopping.wait(max(0.0, due - time.monotonic()))
            self._finish()
        except Exception as error:  # told where the run is judged, not in a thread that is not looked at
            self.problem = self.problem or repr(error)

    def _value(self) -> bytes:
        self._made += 1
        return (b"%s %d " % (self._name.encode(), self._made)).ljust(VALUE_BYTES, b"v")

    def _take(self, records: Mapping[bytes, bytes | None]) -> None:
        self.written += len(records)
        for key, value in records.items():
            if value is None:
                self.table.pop(key, None)
            else:
                self.table[key] = value

    def _note(self, key: bytes, value: bytes | None, place: Place) -> None:
        """Note a record that stays, after the older ones of its key."""
        self.graves.pop(key, None)
        if value is None:
            self.tombstones += 1
            if place.offset >= 0:  # a record that was sent twice may be acknowledged without one
                self.graves[key] = place

    def _write(self, records: Mapping[bytes, bytes | None]) -> None:
        raise NotImplementedError

    def _finish(self) -> None:
        """What is left to do after the last record."""


class PlainWriter(TableWriter):
    """Idempotent, without transactions: what is written is written, however long that takes."""

    def __init__(self, bootstrap: str, name: str, numbers: Sequence[int], rate: float, seed: int) -> None:
        super().__init__(bootstrap, name, numbers, rate, seed)
        self._producer = Producer(
            client_config(bootstrap, client_id=name, enable_idempotence=True, acks="all", linger_ms=5)
        )

    def _write(self, records: Mapping[bytes, bytes | None]) -> None:
        _send(self._producer, records, self._delivered)
        self._take(records)

    def _finish(self) -> None:
        if left := self._producer.flush(_JOIN_SECONDS / 2):
            self.problem = f"{left} records have no answer"

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.problem = self.problem or f"a record failed: {error}"
            return
        key, value, place = _told(message)
        self.written_bytes += len(key) + len(value or b"")
        self._note(key, value, place)


class TransactionWriter(TableWriter):
    """Transactions, of which some are aborted. If the end of one is not known, its keys are written again."""

    def __init__(self, bootstrap: str, name: str, numbers: Sequence[int], rate: float, seed: int) -> None:
        super().__init__(bootstrap, name, numbers, rate, seed)
        self.committed = self.aborted = self.doubtful = 0
        self.aborted_places: set[Place] = set()
        """Of records that were acknowledged, so the log had them, and whose transaction was then aborted."""
        self._producer: Producer | None = None
        self._doubted: set[bytes] = set()

    def _write(self, records: Mapping[bytes, bytes | None]) -> None:
        if not self.filled.is_set():
            while not self._transact(records, commit=True) and not self._stopping.is_set():
                pass
            return
        self._transact(records, commit=self._rng.random() >= ABORTED)
        self._settle()

    def _settle(self) -> None:
        """Write keys again of which it is not known what they hold, until that is known."""
        deadline = time.monotonic() + _JOIN_SECONDS / 2
        while self._doubted and time.monotonic() < deadline:
            self._transact({key: self._value() for key in sorted(self._doubted)}, commit=True)

    def _finish(self) -> None:
        self._settle()
        if self._doubted:
            self.problem = f"it is not known what {len(self._doubted)} keys hold"

    def _transact(self, records: Mapping[bytes, bytes | None], *, commit: bool) -> bool:
        """One transaction; whether it was committed for certain."""
        there: list[tuple[bytes, bytes | None, Place]] = []

        def told(error: KafkaError | None, message: Message) -> None:
            if error is None:
                there.append(_told(message))

        try:
            producer = self._ready()
            producer.begin_transaction()
            _send(producer, records, told)
            # What the client has not sent yet an abort would drop: the log is to get what is aborted.
            producer.flush(_ANSWER_SECONDS)
            self.written_bytes += sum(len(key) + len(value or b"") for key, value, _ in there)
            if not commit:
                self._ended(producer.abort_transaction)
                self._aborted(there)
                return False
            self._ended(producer.commit_transaction)
        except KafkaException as error:
            self._failed(error, records, there)
            return False
        self.committed += 1
        self._take(records)
        for key in records:
            self.graves.pop(key, None)
        for one in there:
            self._note(*one)
        self._doubted -= records.keys()
        return True

    def _aborted(self, there: Iterable[tuple[bytes, bytes | None, Place]]) -> None:
        self.aborted += 1
        self.aborted_places.update(place for _, _, place in there if place.offset >= 0)

    def _failed(
        self,
        error: KafkaException,
        records: Iterable[bytes],
        there: Iterable[tuple[bytes, bytes | None, Place]],
    ) -> None:
        """Abort, which is certain, if the client asks for that; else begin anew, with the keys in doubt."""
        if error_of(error).txn_requires_abort() and self._producer is not None:
            try:
                self._ended(self._producer.abort_transaction)
            except KafkaException:
                pass
            else:
                self._aborted(there)
                return
        self._producer = None
        self._doubted |= set(records)
        self.doubtful += 1

    def _ready(self) -> Producer:
        """The producer; a new one of the same transactional id ends what the one before it has left open."""
        if self._producer is None:
            made = Producer(
                client_config(
                    self._bootstrap, client_id=self._name, transactional_id=self._name, linger_ms=5,
                    transaction_timeout_ms=60_000,
                )
            )  # fmt: skip
            self._ended(made.init_transactions)
            self._producer = made
        return self._producer

    def _ended(self, request: Callable[[float], None]) -> None:
        """Ask until there is an answer, as librdkafka allows for what can be asked again."""
        deadline = time.monotonic() + 4 * _ANSWER_SECONDS
        while True:
            try:
                request(_ANSWER_SECONDS)
                return
            except KafkaException as error:
                if not error_of(error).retriable() or time.monotonic() > deadline:
                    raise


def _told(message: Message) -> tuple[bytes, bytes | None, Place]:
    """Key, value and place of an acknowledged record.

    A record that was sent twice may be acknowledged without its offset: then that is -1.
    """
    key, value = message.key(), message.value()
    partition, offset = message.partition(), message.offset()
    assert isinstance(key, bytes)
    assert value is None or isinstance(value, bytes)
    assert partition is not None
    return key, value, Place(partition, -1 if offset is None else offset)


def _send(producer: Producer, records: Mapping[bytes, bytes | None], told: Delivered) -> None:
    for key, value in records.items():
        while True:
            try:
                producer.produce(TOPIC, value, key, partition=partition_of(key), on_delivery=told)
                break
            except BufferError:
                producer.poll(0.05)
    producer.poll(0)
