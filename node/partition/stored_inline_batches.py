"""Lets a partition's inline batches name the objects that have their bytes by now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

from strandline.node.level_zero.batcher import Stored
from strandline.node.level_zero.cache import BatchCache
from strandline.node.partition.fence import Fence
from strandline.node.partition.refusals import result_of
from strandline.node.partition.writer import EpochSource
from strandline.node.raft.outcome import Outcome
from strandline.node.refusal import Reason, Refusal
from strandline.statemachine.partition.epoch_window import StaleClusterEpoch
from strandline.statemachine.partition.extent import InlineExtent, StoredInline
from strandline.statemachine.partition.partition_commands import InlineStored, StoreInline


class StoredInlineBatches:
    """One partition's. Belongs to one event loop; while the partition is not led here, all is refused."""

    def __init__(
        self,
        fence: Fence,
        epoch: EpochSource,
        written: BatchCache,
        replicate: Callable[[StoreInline, int], asyncio.Future[Outcome]],
    ) -> None:
        """`replicate` proposes a command in a term."""
        self._fence = fence
        self._epoch = epoch
        self._written = written
        self._replicate = replicate

    async def name(self, places: Sequence[tuple[InlineExtent, Stored]]) -> InlineStored | Refusal:
        """Let these batches, in offset order, name the objects in which they are durable now.

        They name epochs from then on, so the entry goes under the fence like one of new batches. What has an
        epoch below the window is left inline, and is to be stored again.
        """
        grant = await self._fence.acquire(max(stored.epoch for _, stored in places))
        if isinstance(grant, StaleClusterEpoch):
            self._epoch.learn(grant.newest)
            return Refusal(Reason.NOT_NOW, str(grant))
        if isinstance(grant, Refusal):
            return grant
        oldest = grant.window.oldest
        assert oldest is not None
        found = [(extent, stored) for extent, stored in places if stored.epoch >= oldest]
        rows = [
            StoredInline(extent.base_offset, extent.length, stored.epoch, stored.position, stored.object_id)
            for extent, stored in found
        ]
        try:
            future = self._replicate(StoreInline(grant.window, rows), grant.window.term)
        finally:
            grant.release()
        if not future.done():
            # A consumer that is a little behind would have to fetch them.
            for extent, stored in found:
                self._written.put(stored.object_id, stored.position, extent.data)
        return cast("InlineStored | Refusal", result_of(await future))
