"""The reading half of the demonstration: everything back, compared with the source record by record."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from strandline.cluster.demo.flights import Flight
from strandline.cluster.demo.produce import NO_PLACE, ROW_HEADER
from strandline.cluster.kafka_client import client_config

_BATCH = 10_000
_EXAMPLES = 5
_REQUEST_SECONDS = 20.0


@dataclass
class Comparison:
    """Records read back, compared with those sent and acknowledged."""

    read: int = 0
    lost: int = 0
    """Rows of the source that no reader returned."""
    doubled: int = 0
    altered: int = 0
    """Key or value differ from the source."""
    moved: int = 0
    """Not at the partition and offset that was acknowledged."""
    disordered: int = 0
    """Read after a later row of the same partition: a producer's order is the order of the log."""
    foreign: int = 0
    """Records that the source does not have."""
    partitions: dict[int, int] = field(default_factory=dict)
    """Records read of each partition."""
    examples: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        return not (
            self.lost or self.doubled or self.altered or self.moved or self.disordered or self.foreign
        )

    def note(self, text: str) -> None:
        if len(self.examples) < _EXAMPLES:
            self.examples.append(text)


def read_back(
    bootstrap: str,
    topic: str,
    flights: Sequence[Flight],
    acknowledged: dict[int, tuple[int, int]],
    *,
    timeout: float,
    progress: Callable[[int], None],
) -> Comparison:
    """Read every partition from its beginning to its high watermark, and compare.

    Raises TimeoutError when that is not reached within `timeout` seconds.
    """
    started = time.perf_counter()
    found = Comparison()
    consumer = Consumer(
        client_config(
            bootstrap, group_id="demonstration", enable_auto_commit=False, auto_offset_reset="error"
        )
    )
    try:
        ends = _ends(consumer, topic)
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in ends])
        seen: set[int] = set()
        newest: dict[int, int] = {}
        left = {number for number, end in ends.items() if end}
        while left:
            if time.perf_counter() - started > timeout:
                raise TimeoutError(f"partitions {sorted(left)} were not read to their ends in {timeout:g} s")
            for message in consumer.consume(_BATCH, 1.0):
                error = message.error()
                if error is not None:
                    raise KafkaException(error)
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                headers = dict(message.headers() or [])
                row = int(headers.get(ROW_HEADER) or b"-1")
                _compare(found, row, partition, offset, message.key(), message.value(), flights, acknowledged)
                if row in seen:
                    found.doubled += 1
                    found.note(f"row {row} again at {partition}/{offset}")
                if row < newest.get(partition, -1):
                    found.disordered += 1
                    found.note(f"row {row} after row {newest[partition]} in partition {partition}")
                seen.add(row)
                newest[partition] = max(row, newest.get(partition, -1))
                found.read += 1
                found.partitions[partition] = found.partitions.get(partition, 0) + 1
                if offset + 1 >= ends[partition]:
                    left.discard(partition)
            progress(found.read)
    finally:
        consumer.close()
    missing = [row for row in range(len(flights)) if row not in seen]
    found.lost = len(missing)
    for row in missing[:_EXAMPLES]:
        found.note(f"row {row} is lost; it was acknowledged at {acknowledged.get(row, 'no place')}")
    found.seconds = time.perf_counter() - started
    return found


def _ends(consumer: Consumer, topic: str) -> dict[int, int]:
    listed = consumer.list_topics(topic, timeout=_REQUEST_SECONDS).topics[topic]
    ends = {}
    for number in sorted(listed.partitions):
        watermarks = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_REQUEST_SECONDS)
        assert watermarks is not None
        ends[number] = watermarks[1]
    return ends


def _compare(
    found: Comparison,
    row: int,
    partition: int,
    offset: int,
    key: bytes | str | None,
    value: bytes | str | None,
    flights: Sequence[Flight],
    acknowledged: dict[int, tuple[int, int]],
) -> None:
    if not 0 <= row < len(flights):
        found.foreign += 1
        found.note(f"a record at {partition}/{offset} is not of this run")
        return
    if (key, value) != flights[row]:
        found.altered += 1
        found.note(f"row {row} at {partition}/{offset} differs from the source")
    if acknowledged.get(row, NO_PLACE) not in (NO_PLACE, (partition, offset)):
        found.moved += 1
        found.note(f"row {row} is at {partition}/{offset}, acknowledged at {acknowledged[row]}")
