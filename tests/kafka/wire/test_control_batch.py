"""The marker's bytes, against Kafka's format and against a client's own reader."""

from __future__ import annotations

import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatch  # type: ignore[import-untyped]

from strandline.node.kafka.wire.control_batch import control_batch
from strandline.node.kafka.wire.record_batch import boundaries, read_header
from strandline.node.kafka.wire.record_lookup import first_at_or_after
from tests.kafka.wire.batches import build

NOW = 1_700_000_000_000


@pytest.mark.parametrize("commit", [True, False])
def test_it_is_what_the_general_writer_of_batches_makes(commit: bool) -> None:
    key = struct.pack(">hh", 0, int(commit))
    value = struct.pack(">hi", 0, 12)
    record = bytes([32, 0, 0, 0, 8]) + key + bytes([12]) + value + b"\0"
    plain = build(payload=record, count=1, attributes=0x30, producer=(77, 5, -1), base_timestamp=NOW)
    made = bytearray(control_batch(77, 5, commit, 12, NOW))
    assert len(made) == len(plain)
    made[12:16] = plain[12:16]  # The leader epoch is stamped on the way out, like the offset.
    assert bytes(made) == plain


@pytest.mark.parametrize("commit", [True, False])
def test_a_client_reads_which_transaction_it_ends_and_how(commit: bool) -> None:
    data = control_batch(1 << 40, 32_767, commit, 2**40, NOW)
    assert [*boundaries(data)] == [(0, len(data))]
    head = read_header(data)
    assert (head.producer_id, head.producer_epoch, head.base_sequence) == (1 << 40, 32_767, -1)
    assert (head.record_count, head.last_offset_delta, head.base_timestamp) == (1, 0, NOW)
    batch = DefaultRecordBatch(data)
    assert batch.validate_crc()
    assert batch.is_control_batch
    assert batch.is_transactional
    (record,) = batch
    assert struct.unpack(">hh", record.key) == (0, int(commit))
    assert struct.unpack(">hi", record.value) == (0, 2**31 - 1), "a coordinator's epoch has 31 bits"
    assert record.timestamp == NOW


def test_it_is_found_by_its_time_as_any_batch() -> None:
    found = first_at_or_after(
        control_batch(1, 0, True, 0, NOW), NOW - 5, base_offset=9, max_decompressed_bytes=9
    )
    assert found is not None
    assert (found.offset, found.timestamp) == (9, NOW)
