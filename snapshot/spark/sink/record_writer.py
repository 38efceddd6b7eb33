"""Records of one task in one transaction that is left open (`batch_sender.py`)."""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from crc32c import crc32c

from strandline.snapshot.compression import Compression
from strandline.snapshot.producing.batch_sender import BatchSender, Place
from strandline.snapshot.producing.brokers import Brokers
from strandline.snapshot.producing.record_batch import record_batch
from strandline.snapshot.producing.transactions import Producer
from strandline.snapshot.spark.sink.columns import Rows, by_name

BATCH_BYTES: Final = 512 * 1024
"""A batch is closed when it has as many; the cluster's bound is 1 MiB unless a topic has another."""
_RECORD_BYTES: Final = 12
"""Of a record besides key, value and headers, at most in a batch of this size."""
_WAITING_BYTES: Final = 32 * 1024 * 1024
"""Closed batches that wait or are under way; a task that has more makes no new ones."""
_OPEN_BYTES: Final = 32 * 1024 * 1024
"""Records in batches that are not full, over all partitions; beyond it all are closed."""


@dataclass
class _Lane:
    """A partition's records in the batch that is not full."""

    tails: list[bytes] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    open_bytes: int = 0


class RecordWriter:
    """Writes the rows that it is given, until `finish`. Raises SinkError, Unanswered, Fenced.

    `records` and `digest` say what was given: the digest does not depend on the order of the rows.
    """

    def __init__(self, brokers: Brokers, producer: Producer, compression: Compression) -> None:
        self._sender = BatchSender(brokers, producer)
        self._producer = producer
        self._compression = compression
        self._lanes: dict[Place, _Lane] = {}
        self._open_bytes = 0
        self.records = self.digest = 0

    def write(self, rows: Rows) -> None:
        """Take rows, and send what is full."""
        now = time.time_ns() // 1_000_000
        times = (
            [now] * len(rows.tails) if rows.times is None else [now if t is None else t for t in rows.times]
        )
        sizes = np.fromiter(map(len, rows.tails), np.int64, len(rows.tails)) + _RECORD_BYTES
        for topic, chosen in by_name(rows.topics):
            assert topic is not None, "refused before"
            self.digest += crc32c(topic.encode()) * len(chosen)
            places = rows.partitions[chosen]
            for partition in np.unique(places).tolist():
                self._take(topic, partition, chosen[places == partition], sizes, times, rows.tails)
        self.records += len(rows.tails)
        self.digest += sum(map(crc32c, rows.tails)) << 32
        self.digest += sum(map(zlib.crc32, rows.tails))
        if rows.times is not None:
            self.digest += sum(one for one in rows.times if one is not None)
        if self._open_bytes > _OPEN_BYTES:
            self._close_all()
        self._sender.send(most=_WAITING_BYTES)

    def _take(
        self, topic: str, partition: int, chosen: Any, sizes: Any, times: list[int], found: list[bytes]
    ) -> None:
        """Take the chosen rows for one partition; what is full is closed."""
        place = topic, partition
        lane = self._lanes.setdefault(place, _Lane())
        ends = np.cumsum(sizes[chosen])
        start = taken = 0
        while start < len(chosen):
            room = BATCH_BYTES - lane.open_bytes
            end = start + 1 + int(np.searchsorted(ends[start:], taken + room))
            some = chosen[start:end].tolist()
            lane.tails += [found[number] for number in some]
            lane.timestamps += [times[number] for number in some]
            grown = int(ends[start + len(some) - 1]) - taken
            lane.open_bytes += grown
            self._open_bytes += grown
            taken += grown
            start = end
            if lane.open_bytes >= BATCH_BYTES:
                self._close(place, lane)
                self._sender.send(most=_WAITING_BYTES)

    def finish(self) -> None:
        """Return when every record is acknowledged."""
        self._close_all()
        self._sender.send(most=0)
        self.digest &= (1 << 63) - 1

    def _close_all(self) -> None:
        for place, lane in self._lanes.items():
            if lane.tails:
                self._close(place, lane)

    def _close(self, place: Place, lane: _Lane) -> None:
        sequence = self._sender.sequence(place)
        batch = record_batch(lane.tails, lane.timestamps, self._producer, sequence, self._compression)
        self._sender.put(place, batch, len(lane.tails))
        self._open_bytes -= lane.open_bytes
        lane.tails, lane.timestamps, lane.open_bytes = [], [], 0
