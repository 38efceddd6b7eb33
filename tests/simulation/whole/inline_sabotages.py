"""Rules of batches in the log itself taken out again: what sabotages.py opens, by name.

Nothing here is ever imported by the product.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final
from unittest.mock import patch

from strandline.node.level_zero.batcher import Stored
from strandline.node.partition.lanes import PendingBatch
from strandline.node.partition.stored_inline_batches import StoredInlineBatches
from strandline.node.partition.writer import Writer
from strandline.statemachine.partition.extent import InlineExtent, StoredInline
from strandline.statemachine.partition.extents import Extents, _Chunk
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import InlineStored
from tests.simulation.sabotage import Sabotage


def _passes_its_turn(self: Writer, pending: PendingBatch) -> None:
    """As Writer._stage, but a batch that goes inline goes ahead of those that are uploaded."""
    _stage(self, pending)
    queue = pending.lane.queue
    if pending.staged is None and queue[0] is not pending and pending.lane.waiting is None:
        queue.remove(pending)
        queue.appendleft(pending)
        self._now_ready(pending.lane)


_stage = Writer._stage


async def _names_late(self: StoredInlineBatches, places: Sequence[tuple[InlineExtent, Stored]]) -> Any:
    """As StoredInlineBatches.name, but the hold is back before the log has the entry."""
    replicate, late = self._replicate, asyncio.get_running_loop().create_future()

    def later(command: Any, term: int) -> Any:
        asyncio.get_running_loop().call_later(0.02, lambda: _hand_on(replicate(command, term), late))
        return late

    self._replicate = later
    try:
        return await _name(self, places)
    finally:
        self._replicate = replicate


def _hand_on(outcome: asyncio.Future[Any], late: asyncio.Future[Any]) -> None:
    def hand_on(done: asyncio.Future[Any]) -> None:
        if not late.done():
            late.set_result(done.result())

    outcome.add_done_callback(hand_on)


_name = StoredInlineBatches.name


def _epochs_uncounted(self: _Chunk, stored: Sequence[StoredInline]) -> None:
    """As _Chunk.name_objects, but the epochs of the objects do not count for what is collectable."""
    before = self.oldest_epoch
    _name_objects(self, stored)
    self.oldest_epoch = before


_name_objects = _Chunk.name_objects


def _appends_again(
    self: PartitionStateMachine, index: int, oldest: int, newest: int, rows: Sequence[Sequence[Any]]
) -> Any:
    """As PartitionStateMachine._store_inline, but what has a place now is appended, and stays."""
    self._raise_epochs(index, oldest, newest)
    inline = {one.base_offset: one for one in self.extents if isinstance(one, InlineExtent)}
    for base, length, epoch, position, identity in rows:
        if base in inline:
            count, timestamp = inline[base].record_count, inline[base].max_timestamp
            self.extents.append_object(count, self.term, timestamp, length, epoch, position, identity)
    return InlineStored(0)


def _forgets_bytes(self: Extents) -> list[tuple[int, bytes]]:
    """As Extents.inline, but a snapshot has as many other bytes."""
    return [(base, bytes(len(data))) for base, data in _inline(self)]


_inline = Extents.inline


INLINE: Final = (
    Sabotage(
        "inline-passes-its-turn",
        "a small batch overtakes those of its producer that are uploaded",
        lambda: (patch.object(Writer, "_stage", _passes_its_turn),),
    ),
    Sabotage(
        "inline-stored-unfenced",
        "inline batches name their objects after the fence was given back",
        lambda: (patch.object(StoredInlineBatches, "name", _names_late),),
    ),
    Sabotage(
        "stored-epochs-uncounted",
        "the epochs that stored inline batches name do not hold the collector back",
        lambda: (patch.object(_Chunk, "name_objects", _epochs_uncounted),),
    ),
    Sabotage(
        "stored-inline-appended",
        "what an inline batch is in an object is appended, and lifted with it",
        lambda: (patch.dict("strandline.statemachine.partition.partition._HANDLERS", {16: _appends_again}),),
    ),
    Sabotage(
        "inline-bytes-forgotten",
        "a snapshot has not the bytes of inline batches",
        lambda: (patch.object(Extents, "inline", _forgets_bytes),),
    ),
)
