"""Logs of a compacted partition, as tests draw them and as another library reads them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from aiokafka.record.default_records import DefaultRecordBatch  # type: ignore[import-untyped]
from crc32c import crc32c
from hypothesis import strategies as st

from strandline.node.kafka.wire.control_batch import control_batch
from strandline.snapshot.compression import Compression
from tests.kafka.wire.batches import Record, build

TIME = 1_700_000_000_000


class Written(NamedTuple):
    """A record, or a marker, where it lies."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    marker: bool


class Transaction(NamedTuple):
    producer: int
    committed: bool


class Plan(NamedTuple):
    """A batch to be: its records by (key, value, milliseconds), or a marker of no records."""

    records: tuple[tuple[bytes | None, bytes | None, int], ...]
    codec: Compression = Compression.NONE
    log_append_time: bool = False
    transactional: bool = False


keys = st.sampled_from([b"a", b"b", b"cc", b"a key of more than four words", b"", b"k" * 300])
values = st.one_of(st.none(), st.binary(max_size=40))
records = st.lists(
    st.tuples(st.one_of(st.none(), keys, keys, keys), values, st.integers(0, 50)), min_size=1, max_size=6
).map(tuple)
plans = st.builds(
    Plan,
    st.one_of(st.just(()), records, records, records, records),
    st.sampled_from(Compression),
    st.booleans(),
)


def stamped(batch: bytes, base: int, epoch: int = 4) -> bytes:
    return struct.pack(">q", base) + batch[8:12] + struct.pack(">i", epoch) + batch[16:]


def bytes_of(plan: Plan, base: int, producer: int = 7, *, commit: bool = True) -> bytes:
    """The batch at an offset; a marker of the producer where the plan has no records."""
    if not plan.records:
        return stamped(control_batch(producer, 0, commit, 3, TIME), base)
    return stamped(
        build(
            [Record(value, TIME + time, key) for key, value, time in plan.records],  # type: ignore[arg-type]
            compression=plan.codec,
            attributes=0x08 * plan.log_append_time | 0x10 * plan.transactional,
            max_timestamp=TIME + 99 if plan.log_append_time else None,
            producer=(producer, 0, 0) if plan.transactional else (-1, -1, -1),
        ),
        base,
    )


def log_of(plans: Sequence[Plan], base: int = 0) -> list[bytes]:
    """The batches one after the other."""
    found = []
    for plan in plans:
        found.append(bytes_of(plan, base))
        base += max(len(plan.records), 1)
    return found


def read(batches: Sequence[bytes]) -> list[Written]:
    """What is in them by aiokafka's reader; every header is held against its records."""
    found = []
    for data in batches:
        base, length = struct.unpack_from(">qi", data)
        assert length == len(data) - 12
        assert crc32c(data[21:]) == struct.unpack_from(">I", data, 17)[0]
        attributes, last, newest = struct.unpack_from(">hi8xq", data, 21)
        batch = DefaultRecordBatch(bytearray(data))
        assert batch.validate_crc()
        control = bool(attributes & 0x20)
        here = [
            Written(base + one.offset - batch.base_offset, one.timestamp, one.key, one.value, control)
            for one in batch
        ]
        assert here, "no batch is empty"
        assert here[-1].offset == base + last, "there is a record at the last offset"
        assert len(here) == struct.unpack_from(">i", data, 57)[0]
        if not attributes & 0x08:
            assert newest == max(one.timestamp for one in here)
        found += here
    return found
