"""One worker: reads flights as a member of a group, writes what it makes of them, and commits.

    python -m tests.programs.exactly_once.worker '{"bootstrap": ..., "number": 1, "transactions": true}'

With transactions, records and offsets are committed together, under the worker's own transactional id and the
group's generation. Without, records are written by a producer that is not idempotent, and offsets are
committed once the records are acknowledged: the usual program, whose promise is at least once. SIGTERM ends
it between two rounds. One line for each thing that did not go as planned goes to standard error.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.programs.exactly_once.membership import Membership, Moved
from tests.programs.exactly_once.task import FROM_HEADER, GROUP, ROW_HEADER, SOURCE, TARGET, transform

SESSION_MS: Final = 6000
TRANSACTION_MS: Final = 30_000
"""Longer than a pause: a zombie's transaction is not aborted for its age, so the group has to refuse it."""
_BATCH: Final = 200
_WORK_SECONDS: Final = 0.2
"""What else a real worker does in a round: so faults find it between its records and their commit."""
_POLL_SECONDS: Final = 0.2
_REQUEST_SECONDS: Final = 15.0
_RETRIES: Final = 20
FENCED: Final = 3
"""Exit status of one whose producer cannot go on: another process has its id, or its epoch is old."""


class Fenced(Exception):
    """The producer is of no use any more; a new process begins anew."""


class Aborted(Exception):
    """The round is to be done again from the committed offsets."""


class Worker:
    """Rounds of read, make, write, commit."""

    def __init__(self, bootstrap: str, number: int, transactions: bool) -> None:
        common: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 0}
        self._ending = False
        self._transactions = transactions
        self._failed: list[KafkaError] = []
        writing = (
            {"transactional.id": f"{GROUP}-{number}", "transaction.timeout.ms": TRANSACTION_MS}
            if transactions
            else {"enable.idempotence": False, "acks": "all"}
        )
        self._producer = Producer({**common, **writing, "linger.ms": 5})
        if transactions:
            _again(lambda: self._producer.init_transactions(_REQUEST_SECONDS))
        self._consumer = Consumer(
            {
                **common,
                "group.id": GROUP,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 500,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        self._membership = Membership(self._consumer, [SOURCE])

    def end(self, _number: int, _frame: FrameType | None) -> None:
        """SIGTERM's handler."""
        self._ending = True

    def run(self) -> None:
        """Until told to end. Raises Fenced."""
        while not self._ending:
            try:
                batch, member = self._membership.batch(_BATCH, _POLL_SECONDS)
                messages = [one for one in batch if one.error() is None]
                if not messages:
                    continue
                if self._transactions:
                    self._round(messages, member)
                else:
                    self._plain_round(messages)
            except Moved:
                say("moved: the group rebalanced while a batch was read")
                self._rewind()
            except Aborted as error:
                say(f"aborted: {error}")
                self._rewind()
        self._consumer.close()

    def _round(self, messages: list[Message], member: Any) -> None:
        self._producer.begin_transaction()
        try:
            self._write(messages)
            offsets = _behind(messages)
            _again(lambda: self._producer.send_offsets_to_transaction(offsets, member, _REQUEST_SECONDS))
            _again(lambda: self._producer.commit_transaction(_REQUEST_SECONDS))
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            if reason.fatal():
                raise Fenced(reason.name()) from error
            try:
                _again(lambda: self._producer.abort_transaction(_REQUEST_SECONDS))
            except KafkaException as worse:
                raise Fenced(worse.args[0].name()) from worse
            raise Aborted(reason.name()) from error

    def _plain_round(self, messages: list[Message]) -> None:
        try:
            self._write(messages)
            if self._failed:
                raise Aborted(self._failed[0].name())
            self._consumer.commit(offsets=_behind(messages), asynchronous=False)
        except KafkaException as error:
            raise Aborted(error.args[0].name()) from error

    def _write(self, messages: list[Message]) -> None:
        self._failed.clear()
        for message in messages:
            value, partition = message.value(), message.partition()
            assert isinstance(value, bytes)
            assert partition is not None
            row = dict(message.headers() or []).get(ROW_HEADER)
            headers: list[tuple[str, Any]] = [
                (ROW_HEADER, row),
                (FROM_HEADER, str(message.offset()).encode()),
            ]
            self._producer.produce(
                TARGET, transform(value), message.key(), partition, self._delivered, headers=headers
            )
        self._producer.flush(_REQUEST_SECONDS)
        time.sleep(_WORK_SECONDS)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failed.append(error)

    def _rewind(self) -> None:
        """What was read and not committed is to come again."""
        try:
            held = self._consumer.assignment()
            for place in self._consumer.committed(held, _REQUEST_SECONDS):
                offset = place.offset if place.offset >= 0 else 0
                self._consumer.seek(TopicPartition(place.topic, place.partition, offset))
        except KafkaException as error:
            # The group has moved on: whoever gets the partition begins at what is committed.
            say(f"not rewound: {error.args[0].name()}")
            self._membership.join()


def _behind(messages: list[Message]) -> list[TopicPartition]:
    """The position behind these messages."""
    ends: dict[tuple[str, int], int] = {}
    for message in messages:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        ends[topic, partition] = offset + 1
    return [TopicPartition(topic, partition, offset) for (topic, partition), offset in ends.items()]


def _again(call: Callable[[], Any]) -> None:
    """Transactional calls say themselves when the same call may be made again."""
    for _ in range(_RETRIES):
        try:
            call()
            return
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            if not reason.retriable():
                raise
            say(f"again: {reason.name()}")
            time.sleep(0.1)
    call()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    settings = json.loads(sys.argv[1])
    try:
        worker = Worker(settings["bootstrap"], settings["number"], settings["transactions"])
        signal.signal(signal.SIGTERM, worker.end)
        worker.run()
    except Fenced as error:
        say(f"fenced: {error}")
        return FENCED
    except KafkaException as error:
        say(f"fenced: {error.args[0].name()}")
        return FENCED
    return 0


if __name__ == "__main__":
    sys.exit(main())
