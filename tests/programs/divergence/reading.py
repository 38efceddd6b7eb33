"""What a partition holds, as its leader gives it: raw batches, and records as librdkafka reads them."""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.apis import ApiKey
from strandline.node.kafka.wire.record_batch import BatchHeader, read_header
from tests.clients.wire import FETCH_VERSION, Closed, Wire, fetch, leader

READ_SECONDS: Final = 20.0
_READ_COMMITTED: Final = 1


class Look(NamedTuple):
    """One pass over a partition's batches, as a consumer of committed records gets them."""

    batches: list[BatchHeader]
    aborted: set[tuple[int, int]]
    """Producer id and first offset of the transactions that the answers call aborted."""
    high_watermark: int
    last_stable_offset: int

    @property
    def offsets(self) -> set[int]:
        """Base offsets of the batches that still hold a record; each record here is a batch of its own."""
        return {batch.base_offset for batch in self.batches if batch.record_count > 0}

    @property
    def markers(self) -> list[int]:
        """Offsets of the control batches that still hold their record."""
        return [batch.base_offset for batch in self.batches if batch.is_control and batch.record_count > 0]


class Record(NamedTuple):
    """A record as a client sees it; `value` is None for a tombstone."""

    offset: int
    key: str
    value: str | None


def look(bootstrap: str, topic: str, isolation: int = 0) -> Look:
    """Read partition 0 from its leader to the end. Raises TimeoutError when no leader answers in time."""
    deadline = time.monotonic() + READ_SECONDS
    while True:
        try:
            found = _pass(bootstrap, topic, isolation)
        except (Closed, OSError, AssertionError):
            found = None
        if found is not None:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"no leader of {topic} answered for {READ_SECONDS:.0f} s")
        time.sleep(0.1)


def _pass(bootstrap: str, topic: str, isolation: int) -> Look | None:
    found = Look([], set(), 0, 0)
    with Wire(_leader(bootstrap, topic)) as wire:
        while True:
            offset = found.batches[-1].next_offset if found.batches else 0
            asked = {**fetch(topic, offset=offset), "isolation_level": isolation}
            (told,) = wire.ask(ApiKey.FETCH, FETCH_VERSION, asked).responses[0].partitions
            if told.error_code is not ErrorCode.none:
                return None
            found = found._replace(
                high_watermark=told.high_watermark, last_stable_offset=told.last_stable_offset
            )
            found.aborted.update(
                (one.producer_id, one.first_offset) for one in told.aborted_transactions or ()
            )
            if not told.records:
                return found
            position = 0
            while position < len(told.records):
                found.batches.append(read_header(told.records, position))
                position = found.batches[-1].end


def _leader(bootstrap: str, topic: str) -> str:
    """The leader's address, asked of the first node that answers."""
    for one in bootstrap.split(","):
        try:
            return leader(one, topic)
        except (Closed, OSError):
            continue
    raise Closed


def committed_look(bootstrap: str, topic: str) -> Look:
    """The same as a read-committed consumer is answered: up to the last stable offset, with aborted rows."""
    return look(bootstrap, topic, _READ_COMMITTED)


def read(bootstrap: str, topic: str, isolation: str) -> list[Record]:
    """All records of partition 0 that a consumer of this isolation level gets before it is told the end.

    Raises TimeoutError when it is told no end.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False,
            "isolation.level": isolation, "enable.partition.eof": True, "check.crcs": True, "log_level": 0,
        }
    )  # fmt: skip
    records: list[Record] = []
    deadline = time.monotonic() + READ_SECONDS
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None:
                key, value, offset = message.key(), message.value(), message.offset()
                assert key is not None
                assert offset is not None
                records.append(Record(offset, _text(key), None if value is None else _text(value)))
            elif error.code() == KafkaError._PARTITION_EOF:
                return records
            elif not error.retriable() and error.fatal():
                raise KafkaException(error)
    finally:
        consumer.close()
    raise TimeoutError(f"a consumer of {topic} ({isolation}) reached no end within {READ_SECONDS:.0f} s")


def _text(data: bytes | str) -> str:
    return data if isinstance(data, str) else data.decode()


def table(records: list[Record]) -> dict[str, str]:
    """The newest value of each key that is not deleted."""
    newest: dict[str, str] = {}
    for record in records:
        if record.value is None:
            newest.pop(record.key, None)
        else:
            newest[record.key] = record.value
    return newest
