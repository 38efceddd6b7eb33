"""Reads a partition's batches: a plan from one version of its state, and the bytes that the plan names.

Between the plan and the bytes the partition may let go of what it names, and the collector may delete it. So
an object that is not there means: plan again. Only if a confirmed leader's present state still names it, the
bytes are lost, and that is never answered by leaving them out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from node.level_zero.cache import BatchCache
from node.level_zero.reader import Reader
from node.level_zero.store import ObjectNotFound
from node.partition.batch import StoredBatch
from snapshot.level_zero_format import BadObject
from statemachine.extents import Extent, ObjectExtent
from statemachine.partition import PartitionStateMachine

AHEAD_BYTES = 1024 * 1024
"""What is fetched for the next read while a client is busy with this one."""

PLANS = 4
"""Plans for one read. State that moves on faster than it can be read leaves the reader behind it."""


async def read(
    machine: PartitionStateMachine,
    reader: Reader,
    written: BatchCache,
    confirm: Callable[[], Awaitable[bool]],
    offset: int,
    end: int,
    max_bytes: int,
) -> list[StoredBatch]:
    """The batches that hold offsets in `[offset, end)`, up to `max_bytes`, the first whatever its length.

    Empty when there is nothing to read there. Raises BadObject for bytes that are damaged or lost, naming
    object and range, and StoreError when the store does not give them now.
    """
    plans = 0
    while extents := machine.extents_between(offset, end, max_bytes):
        try:
            batches = await reader.read(extents, _ahead(machine, written, extents[-1]))
        except ObjectNotFound as error:
            plans += 1
            if _naming(machine, error.key, offset, end, max_bytes) is not None:
                if not await confirm():
                    raise
                lost = _naming(machine, error.key, offset, end, max_bytes)
                if lost is not None:
                    until = lost.position + lost.length
                    reason = "there is no such object, and the partition refers to it"
                    raise BadObject(error.key, lost.position, until, reason) from None
            if plans >= PLANS:
                raise
        else:
            return [
                StoredBatch(extent.base_offset, extent.end_offset, extent.term, data)
                for extent, data in zip(extents, batches, strict=True)
            ]
    return []


def _ahead(machine: PartitionStateMachine, written: BatchCache, last: Extent) -> list[Extent]:
    """What the same client will want next; nothing where it is served from what this node wrote."""
    if not isinstance(last, ObjectExtent) or (last.object_id, last.position) in written:
        return []
    return machine.extents_between(last.end_offset, machine.high_watermark, AHEAD_BYTES)


def _naming(
    machine: PartitionStateMachine, name: str, offset: int, end: int, max_bytes: int
) -> ObjectExtent | None:
    """The first extent of the present plan that lies in an object of this name."""
    for extent in machine.extents_between(offset, end, max_bytes):
        if isinstance(extent, ObjectExtent) and extent.object_name == name:
            return extent
    return None
