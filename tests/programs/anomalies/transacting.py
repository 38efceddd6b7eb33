"""Transactional producers on librdkafka, in threads: writers, and workers that consume and produce.

Each commits most of its transactions, aborts some, and now and then is replaced in the middle of one by a new
incarnation of its transactional id, while the old one goes on and tries to commit: a zombie.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.histories.history import Ending, Place, Read, Sent, Transaction
from tests.programs.anomalies.recorder import Recorder
from tests.programs.exactly_once.membership import Membership, Moved

INPUT: Final = "in"
OUTPUT: Final = "out"
WRITTEN: Final = "written"
PARTITIONS: Final = 4
GROUP: Final = "workers"

CALL_SECONDS: Final = 10.0
GIVE_UP_SECONDS: Final = 60.0
"""How long one call is repeated while its error is retriable; then the incarnation is given up."""
CLOSE_SECONDS: Final = 30.0
"""librdkafka may wait for ever; whoever is not closed by then is left to its session's end."""
TRANSACTION_MS: Final = 10_000
_ABORTED: Final = 0.15
_REPLACED: Final = 0.06
_QUIET: Final = logging.getLogger("librdkafka")
"""Takes what librdkafka would print of every zombie that is fenced, whatever its log level."""
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False

_PASSING: Final = (
    KafkaError._PARTITION_EOF,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
)
"""What librdkafka tells its user of a coordinator that moves; it goes on by itself."""


class Replaced(Exception):
    """This incarnation is over: fenced, or in doubt."""


def error_of(error: KafkaException) -> KafkaError:
    """What librdkafka says; a KafkaException has it as its only argument."""
    said: KafkaError = error.args[0]
    return said


class Transactor(threading.Thread):
    """One transactional id, incarnation after incarnation, until `stop`."""

    def __init__(self, bootstrap: str, name: str, recorder: Recorder, rng: random.Random) -> None:
        super().__init__(name=name, daemon=True)
        self.bootstrap = bootstrap
        self.recorder = recorder
        self.rng = rng
        self.incarnation = 0
        self.fenced = 0
        self._over = threading.Event()

    def stop(self) -> None:
        """Begin nothing new."""
        self._over.set()

    @property
    def over(self) -> bool:
        return self._over.is_set()

    def run(self) -> None:
        while not self.over:
            try:
                self.live()
            except Replaced:
                continue
            except KafkaException as error:
                self._judge(error)
                time.sleep(0.2)

    def live(self) -> None:
        """One incarnation."""
        producer = self._producer()
        client = f"{self.name}/{self.incarnation}"
        while not self.over:
            transaction = self.recorder.began(client)
            producer.begin_transaction()
            try:
                if not self.fill(producer, transaction):
                    self._abort(producer, transaction)
                    continue
            except KafkaException as error:
                self._failed(producer, transaction, error)
                continue
            chance = self.rng.random()
            if chance < _REPLACED:
                self._with_zombie(producer, transaction)
            elif chance < _REPLACED + _ABORTED:
                self._abort(producer, transaction)
            else:
                self._commit(producer, transaction)

    def fill(self, producer: Producer, transaction: Transaction) -> bool:
        """Put records into the transaction; false when there are none."""
        raise NotImplementedError

    def send(self, producer: Producer, transaction: Transaction, place: Place, value: str) -> None:
        """One record; where it lands is known when its answer comes."""
        sent = transaction.sent
        number = len(sent)
        sent.append(Sent(place, value, None))

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is None:
                sent[number] = Sent(place, value, message.offset())

        while True:
            try:
                producer.produce(
                    place.topic, value.encode(), partition=place.partition, on_delivery=delivered
                )
                return
            except BufferError:
                producer.poll(0.1)

    # Ends.

    def _producer(self) -> Producer:
        self.incarnation += 1
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": self.name,
                "transaction.timeout.ms": TRANSACTION_MS,
                "message.timeout.ms": TRANSACTION_MS,
                "linger.ms": 2,
                "reconnect.backoff.max.ms": 500,
                "retry.backoff.ms": 50,
                "logger": _QUIET,
            }
        )
        self._insist(lambda: producer.init_transactions(CALL_SECONDS))
        return producer

    def _commit(self, producer: Producer, transaction: Transaction) -> None:
        transaction.commit_asked = time.monotonic()
        try:
            self._insist(lambda: producer.commit_transaction(CALL_SECONDS))
        except KafkaException as error:
            self._failed(producer, transaction, error)
        else:
            self.recorder.ended(transaction, Ending.COMMITTED)

    def _abort(self, producer: Producer, transaction: Transaction) -> None:
        try:
            self._insist(lambda: producer.abort_transaction(CALL_SECONDS))
        except KafkaException as error:
            self._given_up(transaction, error)
        self.recorder.ended(transaction, Ending.ABORTED)

    def _failed(self, producer: Producer, transaction: Transaction, error: KafkaException) -> None:
        said = error_of(error)
        if said.txn_requires_abort():
            self._abort(producer, transaction)
        else:
            self._given_up(transaction, error)

    def _given_up(self, transaction: Transaction, error: KafkaException) -> None:
        if transaction.commit_asked is not None:
            self.recorder.ended(transaction, Ending.UNKNOWN)
        self._judge(error)
        raise Replaced

    def _with_zombie(self, producer: Producer, transaction: Transaction) -> None:
        """A new incarnation begins; then the old one, which does not know, tries to commit."""
        producer.flush(CALL_SECONDS)
        heir = self._producer()
        transaction.commit_asked = time.monotonic()
        try:
            producer.commit_transaction(CALL_SECONDS)
        except KafkaException as error:
            self.fenced += 1
            if not error_of(error).fatal() and not error_of(error).txn_requires_abort():
                self._judge(error)
        else:
            self.recorder.troubled(f"{self.name}: a zombie's commit was accepted")
        # The heir aborted it before it was told its own epoch.
        transaction.commit_asked = None
        self.recorder.ended(transaction, Ending.ABORTED)
        del heir
        raise Replaced

    def _insist(self, call: Any) -> None:
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while True:
            try:
                call()
                return
            except KafkaException as error:
                if not error_of(error).retriable() or time.monotonic() > deadline:
                    raise

    def _judge(self, error: KafkaException) -> None:
        """A fence and what is retriable may end an incarnation; nothing else may."""
        said = error_of(error)
        code = said.code()
        expected = (
            KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError._TIMED_OUT,
            KafkaError._MSG_TIMED_OUT, KafkaError._PURGE_QUEUE, KafkaError._TIMED_OUT_QUEUE,
            KafkaError.PRODUCER_FENCED, KafkaError._STATE, KafkaError.INVALID_TXN_STATE,
        )  # fmt: skip
        if not said.retriable() and not said.txn_requires_abort() and code not in expected:
            self.recorder.troubled(f"{self.name}: {said}")


class Writer(Transactor):
    """Writes a few records to a few partitions in each transaction."""

    def fill(self, producer: Producer, transaction: Transaction) -> bool:
        for _ in range(self.rng.randint(1, 6)):
            place = Place(WRITTEN, self.rng.randrange(PARTITIONS))
            self.send(producer, transaction, place, self.recorder.value())
        producer.poll(0)
        time.sleep(self.rng.choice((0.0, 0.0, 0.02, 0.2)))
        return True


class Worker(Transactor):
    """Consumes from INPUT as a member of GROUP, and produces each record's like to OUTPUT."""

    _consumer: Consumer | None = None
    _membership: Membership

    def run(self) -> None:
        super().run()
        self._close()

    def _close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            closing = threading.Thread(target=consumer.close, daemon=True)
            closing.start()
            closing.join(CLOSE_SECONDS)

    def live(self) -> None:
        self._close()
        consumer = self._consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": GROUP,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
                "max.poll.interval.ms": 60_000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._membership = Membership(consumer, [INPUT])
        super().live()

    def fill(self, producer: Producer, transaction: Transaction) -> bool:
        try:
            messages, member = self._membership.batch(self.rng.randint(1, 40), 0.3)
        except Moved:
            self._abort(producer, transaction)
            raise Replaced from None
        positions: dict[tuple[str, int], int] = {}
        for message in messages:
            error = message.error()
            if error is not None:
                if not error.retriable() and error.code() not in _PASSING:
                    self.recorder.troubled(f"{self.name}: {error}")
                continue
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            raw = message.value()
            assert topic is not None
            assert partition is not None
            assert offset is not None
            assert isinstance(raw, bytes)
            value = raw.decode()
            transaction.consumed.append(Read(Place(topic, partition), offset, value))
            positions[topic, partition] = offset + 1
            self.send(producer, transaction, Place(OUTPUT, partition), self.recorder.value())
        if not positions:
            return False
        offsets = [TopicPartition(*place, offset) for place, offset in positions.items()]
        self._insist(lambda: producer.send_offsets_to_transaction(offsets, member, CALL_SECONDS))
        return True

    def _abort(self, producer: Producer, transaction: Transaction) -> None:
        super()._abort(producer, transaction)
        if transaction.consumed:
            # What was consumed is to be consumed again: from the committed offsets, as a new member.
            raise Replaced
