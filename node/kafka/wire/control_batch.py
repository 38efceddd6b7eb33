"""The batch that ends a transaction in a partition's log: in Kafka's terms a marker, or control batch.

A marker is a batch like any other in the log, so consumers meet it at the place where the transaction ended,
and only there may stop dropping (or keeping back) its records. Only leaders write such batches; clients may
not (`record_batch`). So this module has the only form there is.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from strandline.node.kafka.wire.record_batch import CRC_START, LENGTH_END, MAGIC

_FRONT: Final = struct.Struct(">qiibI")
_REST: Final = struct.Struct(">hiqqqhii")
_RECORD: Final = struct.Struct(">bbbbbhhbhib")
_TRANSACTIONAL_CONTROL: Final = 0x30
_NO_SEQUENCE: Final = -1
_KEY_BYTES, _VALUE_BYTES = 4, 6
_VERSION: Final = 0
_ABORT, _COMMIT = 0, 1
_MAX_COORDINATOR_EPOCH: Final = 2**31 - 1


def control_batch(
    producer_id: int, producer_epoch: int, commit: bool, coordinator_term: int, timestamp_ms: int
) -> bytes:
    """A control batch of one record, with the time in Unix milliseconds; its offset is to be stamped.

    The record's key is ControlRecordType (version, abort or commit) and its value EndTransactionMarker
    (version, coordinator epoch), as in KIP-98. A coordinator's term is its epoch to clients.
    """
    record = _RECORD.pack(
        _zigzag(_RECORD.size - 1),
        0,
        0,
        0,
        _zigzag(_KEY_BYTES),
        _VERSION,
        _COMMIT if commit else _ABORT,
        _zigzag(_VALUE_BYTES),
        _VERSION,
        min(coordinator_term, _MAX_COORDINATOR_EPOCH),
        0,
    )
    rest = (
        _REST.pack(
            _TRANSACTIONAL_CONTROL,
            0,
            timestamp_ms,
            timestamp_ms,
            producer_id,
            producer_epoch,
            _NO_SEQUENCE,
            1,
        )
        + record
    )
    length = CRC_START - LENGTH_END + len(rest)
    return _FRONT.pack(0, length, 0, MAGIC, crc32c(rest)) + rest


def _zigzag(length: int) -> int:
    """A length below 64 as Kafka's varint: one byte."""
    return length << 1
