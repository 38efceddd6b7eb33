"""Pieces of a partition that tasks read: a batch of level zero, an inline batch, or a block of level one.

All three are rows of one dtype, so that planning cuts a million of them into tasks without looking at any.
Tasks get them as bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from strandline.snapshot.level_one_format import Block
from strandline.statemachine.object_names import OBJECT_ID_BYTES
from strandline.statemachine.partition.extent import INLINE_ROW, OBJECT_ROW

Rows = NDArray[Any]


class PieceKind(IntEnum):
    """The first two are those of strandline.statemachine.partition.extent."""

    BATCH = OBJECT_ROW
    INLINE = INLINE_ROW
    BLOCK = 2
    BLOCK_WITH_HOLES = 3
    """Of an object of which compaction has removed records."""


PIECES: Final = np.dtype(
    [
        ("kind", "u1"),
        ("base_offset", "<i8"),
        ("end_offset", "<i8"),
        ("term", "<i8"),
        ("max_timestamp", "<i8"),
        ("position", "<i8"),
        ("length", "<i8"),
        ("epoch", "<i8"),
        ("crc", "<u4"),
        ("batches", "<u4"),
        ("identity", f"V{OBJECT_ID_BYTES}"),
    ]
)
"""`term` is a batch's leader epoch, or of the leader that wrote the block's object; `epoch` is that of
level zero, `crc` and `batches` are those of a block; `identity` is the rest of the object's name."""
PIECE: Final = struct.Struct(f"<BqqqqqqqII{OBJECT_ID_BYTES}s")
assert PIECES.itemsize == PIECE.size


@dataclass(frozen=True)
class Slice:
    """Pieces of one partition in offset order, as bytes of PIECES; wanted are offsets in `[first, end)`."""

    topic: str
    topic_id: bytes
    partition: int
    document: str
    """Name of the checkpoint's document that refers to them, for messages."""
    first: int
    end: int
    pieces: bytes
    inline: dict[int, bytes]
    aborted: bytes
    """The aborted transactions that are to be left out, as bytes of ABORTED_ROWS."""


Window = tuple[Slice, ...]
"""Slices that a task fetches and decodes at a time."""


def of_level_zero(extents: Rows) -> Rows:
    """Rows of EXTENT_ROWS as pieces."""
    pieces = np.zeros(extents.size, PIECES)
    for name in ("kind", "base_offset", "term", "max_timestamp", "position", "length", "epoch"):
        pieces[name] = extents[name]
    pieces["end_offset"] = extents["base_offset"] + extents["record_count"]
    pieces["identity"] = extents["object_id"]
    return pieces


def of_blocks(term: int, unique: bytes, blocks: Sequence[Block], holes: bool) -> Rows:
    """The blocks of a level-one object as pieces."""
    kind = PieceKind.BLOCK_WITH_HOLES if holes else PieceKind.BLOCK
    identity = unique.ljust(OBJECT_ID_BYTES, b"\0")
    return np.array(
        [
            (
                kind,
                block.base_offset,
                block.end_offset,
                term,
                block.max_timestamp,
                block.position,
                block.length,
                0,
                block.crc,
                block.batches,
                identity,
            )
            for block in blocks
        ],
        PIECES,
    )
