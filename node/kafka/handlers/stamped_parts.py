"""Makes the bytes that a consumer is given of the batches that were read, with offsets and leader epochs."""

from __future__ import annotations

import struct
from typing import Final

from strandline.node.kafka.wire.record_batch import LENGTH_END
from strandline.node.kafka.wire.response_encoder import Part
from strandline.node.level_one.stored_run import StoredRun
from strandline.node.partition.batch import StoredBatch

JOINED_BYTES: Final = 8 * 1024
"""Batches below this size are copied together: cheaper than one more buffer to send for each."""
_STAMP = struct.Struct(">qii")


def stamped_parts(batches: list[StoredBatch | StoredRun]) -> list[Part]:
    """The batches with their offsets and leader epochs, as buffers to be sent in this order.

    What comes from level one is sent as it is. A large batch is sixteen new bytes and a view of the rest.
    Runs of small ones are one buffer: a thousand buffers of a kilobyte cost more to send than to copy.
    """
    parts: list[Part] = []
    run: list[StoredBatch] = []
    for batch in batches:
        if isinstance(batch, StoredBatch) and len(batch.data) < JOINED_BYTES:
            run.append(batch)
            continue
        if run:
            parts.append(_joined(run))
            run = []
        if isinstance(batch, StoredRun):
            parts.append(batch.data)
            continue
        data = batch.data
        parts.append(_STAMP.pack(batch.base_offset, len(data) - LENGTH_END, batch.leader_epoch))
        parts.append(memoryview(data)[_STAMP.size :])
    if run:
        parts.append(_joined(run))
    return parts


def _joined(run: list[StoredBatch]) -> bytearray:
    out = bytearray().join([batch.data for batch in run])
    position, stamp = 0, _STAMP.pack_into
    for base_offset, _, leader_epoch, data in run:
        size = len(data)
        stamp(out, position, base_offset, size - LENGTH_END, leader_epoch)
        position += size
    return out
