"""Computes what a publication of a local log would bring, from one version of the state and one view."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from strandline.node.compaction.local_log import View
from strandline.node.compaction.manifest import Manifest
from strandline.node.compaction.segment_files import OpenSegment
from strandline.snapshot.level_one_format import body_bytes
from strandline.statemachine.partition.level_one import LevelOneExtent
from strandline.statemachine.partition.partition_state import PartitionState


class PublishedState(NamedTuple):
    """A log, and level one as far as new objects change it."""

    manifest: Manifest
    objects: int
    end_offset: int
    """Of level one."""

    @classmethod
    def of(cls, machine: PartitionState, view: View) -> PublishedState:
        return cls(view.manifest, len(machine.level_one), machine.level_one.end_offset)

    def holds(self, machine: PartitionState, view: View) -> bool:
        """Whether it is the present one."""
        now = PublishedState.of(machine, view)
        return self.manifest is now.manifest and self[1:] == now[1:]


class Prospect(NamedTuple):
    """The gain of a publication in a state."""

    state: PublishedState
    base_offset: int
    end_offset: int
    """Of the objects that may be replaced; equal if there are none."""
    stored: int
    """Bytes of their batches."""
    less: int
    """Bytes of batches that the log has fewer; negative where its blocks do not end with the objects."""


def prospect_of(machine: PartitionState, view: View) -> Prospect:
    """The gain of a publication now."""
    manifest = view.manifest
    state = PublishedState.of(machine, view)
    run = list(publishable(machine, view, machine.start_offset, manifest.clean_end))
    known = min(machine.last_stable_offset, machine.last_reconciled_offset + 1)
    # Neither can be while this replica leads and its log is in step.
    if not run or manifest.start_offset > machine.start_offset or manifest.log_end > known:
        return Prospect(state, 0, 0, 0, 0)
    base, end = run[0].base_offset, run[-1].end_offset
    stored = sum(map(body_bytes, run))
    return Prospect(state, base, end, stored, stored - bytes_between(view, base, end))


def publishable(
    machine: PartitionState, view: View, first_offset: int, clean_end: int
) -> Iterator[LevelOneExtent]:
    """The objects from an offset on that begin where the log is clean, and of which it has everything.

    The last of them may end where the log is only settled: level one has then more than the log will have.
    """
    while first_offset < clean_end and (one := machine.level_one.extent_at(first_offset)) is not None:
        if one.base_offset >= clean_end or one.end_offset > view.manifest.log_end:
            return
        yield one
        first_offset = one.end_offset


def segments_between(view: View, base: int, end: int) -> Iterator[OpenSegment]:
    """The segments with offsets in `[base, end)`."""
    segments = view.segments
    number = max(bisect_right(segments, base, key=lambda one: one.segment.base_offset) - 1, 0)
    while number < len(segments) and segments[number].segment.base_offset < end:
        if segments[number].segment.end_offset > base:
            yield segments[number]
        number += 1


def bytes_between(view: View, base: int, end: int) -> int:
    """Bytes of the log's blocks with offsets in `[base, end)`."""
    size = 0
    for one in segments_between(view, base, end):
        blocks = one.footer.blocks
        first = max(bisect_right(blocks, base, key=lambda block: block.base_offset) - 1, 0)
        last = bisect_right(blocks, end - 1, key=lambda block: block.base_offset)
        if first < last:
            size += blocks[last - 1].end - blocks[first].position
    return size


def numbers_between(view: View, base: int, end: int) -> tuple[int, ...]:
    """Numbers of the segments with offsets in `[base, end)`."""
    return tuple(one.segment.number for one in segments_between(view, base, end))
