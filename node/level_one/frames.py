"""Jobs of the level-one worker as messages; `strandline.node.worker.worker_frames` has their frames.

A job may have hundreds of thousands of extents. They go in slices, so that neither side holds a large frame
and the node's loop is never busy with one for long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from strandline.node.level_one.builder import BuildFailed, Merge, Output
from strandline.statemachine.partition.extent import (
    INLINE_ROW,
    NO_OBJECT,
    OBJECT_ROW,
    ROW,
    Extent,
    InlineExtent,
    ObjectExtent,
)
from strandline.statemachine.partition.level_one import LEVEL_ONE_ROW, LevelOneExtent

EXTENTS_AT_A_TIME: Final = 1000
INLINE_BYTES_AT_A_TIME: Final = 1024 * 1024
"""A frame of extents ends with the inline batch that reaches this."""


# Jobs, from the node.


def build_messages(outputs: Sequence[Output]) -> Iterator[list[Any]]:
    """The messages that ask for some outputs: each output, its extents in slices, and that these are all."""
    for output in outputs:
        yield ["output", output.topic_id, output.partition, output.term, output.unique]
        yield from _slices(output.extents)
    yield ["build"]


def merge_message(merge: Merge) -> list[Any]:
    rows = b"".join(LEVEL_ONE_ROW.pack(*source) for source in merge.sources)
    return ["merge", merge.topic_id, merge.partition, merge.term, merge.unique, rows]


def merge_of(message: list[Any]) -> Merge:
    _, topic_id, partition, term, unique, rows = message
    sources = [LevelOneExtent._make(row) for row in LEVEL_ONE_ROW.iter_unpack(rows)]
    return Merge(topic_id, partition, term, unique, sources)


def _slices(extents: Sequence[Extent]) -> Iterator[list[Any]]:
    rows: list[bytes] = []
    inline: list[bytes] = []
    inline_bytes = 0
    for extent in extents:
        if isinstance(extent, InlineExtent):
            rows.append(ROW.pack(INLINE_ROW, *extent[:5], 0, 0, NO_OBJECT))
            inline.append(extent.data)
            inline_bytes += len(extent.data)
        else:
            rows.append(ROW.pack(OBJECT_ROW, *extent))
        if len(rows) == EXTENTS_AT_A_TIME or inline_bytes >= INLINE_BYTES_AT_A_TIME:
            yield ["extents", b"".join(rows), inline]
            rows, inline, inline_bytes = [], [], 0
    if rows:
        yield ["extents", b"".join(rows), inline]


class OutputsGathering:
    """The worker's side of `build_messages`: what was asked for so far."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self._extents: list[Extent] = []

    def output(self, message: list[Any]) -> None:
        self._extents = []
        _, topic_id, partition, term, unique = message
        self.outputs.append(Output(topic_id, partition, term, unique, self._extents))

    def extents(self, message: list[Any]) -> None:
        _, rows, inline = message
        datas = iter(inline)
        for kind, base, count, term, timestamp, length, epoch, position, identity in ROW.iter_unpack(rows):
            if kind == INLINE_ROW:
                self._extents.append(InlineExtent(base, count, term, timestamp, length, next(datas)))
            else:
                self._extents.append(
                    ObjectExtent(base, count, term, timestamp, length, epoch, position, identity)
                )


# Results, from the worker.


def plain(result: LevelOneExtent | BuildFailed) -> list[Any]:
    return list(result)


def result_of(values: list[Any]) -> LevelOneExtent | BuildFailed:
    return BuildFailed(*values) if len(values) == len(BuildFailed._fields) else LevelOneExtent(*values)
