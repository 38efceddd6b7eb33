"""Record batches and level-one objects that tests share: small, with right headers and checksums."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

from strandline.snapshot.level_one_writer import EncodedObject, LevelOneWriter
from tests.level_zero.samples import TOPIC

UNIQUE = bytes(range(100, 116))


class Sent(NamedTuple):
    """A batch as its producer sent it, and what the log says of it."""

    data: bytes
    records: int
    max_timestamp: int
    term: int


def sent(payload: bytes, records: int = 1, max_timestamp: int = 1000, term: int = 3) -> Sent:
    """A magic 2 batch of so many records that starts at offset 0; its records are just the payload."""
    checked = struct.pack(">hiqqqhii", 0, records - 1, 0, max_timestamp, -1, -1, -1, records) + payload
    head = struct.pack(">qiibI", 0, len(checked) + 9, -1, 2, crc32c(checked))
    return Sent(head + checked, records, max_timestamp, term)


def stamped(batch: Sent, base_offset: int) -> bytes:
    """The batch as clients get it."""
    return struct.pack(">q4si", base_offset, batch.data[8:12], batch.term) + batch.data[16:]


def encoded(
    batches: Sequence[Sent],
    base_offset: int = 0,
    *,
    topic_id: bytes = TOPIC,
    partition: int = 0,
    term: int = 3,
    unique: bytes = UNIQUE,
    block_bytes: int = 256,
) -> EncodedObject:
    """A level-one object with these batches one after the other."""
    writer = LevelOneWriter(topic_id, partition, term, unique, block_bytes)
    for batch in batches:
        end = base_offset + batch.records
        writer.add(batch.data, base_offset, end, batch.term, batch.max_timestamp)
        base_offset = end
    return writer.finish()
