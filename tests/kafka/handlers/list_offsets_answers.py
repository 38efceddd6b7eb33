"""Short ways to ask for offsets, and to read what was answered."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from strandline.snapshot.compression import Compression
from tests.kafka.handlers.fake_partition import NOW
from tests.kafka.wire.batches import Record, build

LATEST, EARLIEST, NEWEST, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5


def found(parts: list[Any]) -> list[tuple[int, int, int]]:
    assert [part.error_code for part in parts] == [ErrorCode.none] * len(parts)
    return [(part.offset, part.timestamp, part.leader_epoch) for part in parts]


def at(*times: int, compression: Compression = Compression.NONE) -> bytes:
    return build([Record(b"v", NOW + time) for time in times], compression=compression)
