"""The level-zero epochs that reads in progress need: the objects of their plans are not collected meanwhile.

A read plans from one version of the state and then waits for the store. Meanwhile the reconciler may lift
those batches into level one, and then nothing in the state holds their objects any more. So a read holds the
oldest epoch it planned with, from before its first wait until it has its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from strandline.statemachine.partition.extent import Extent, ObjectExtent


class ReaderHolds:
    """Number of reads that hold each epoch; belongs to one partition on one node."""

    def __init__(self) -> None:
        self._reads: dict[int, int] = {}

    @property
    def oldest_epoch(self) -> int | None:
        """The lowest epoch a read in flight needs; None when none needs any."""
        return min(self._reads, default=None)

    @contextmanager
    def over(self, extents: Iterable[Extent]) -> Iterator[None]:
        """Hold the epochs of these extents until the block is left. The caller enters it in the turn of the
        loop in which the state named them: later, they may be gone already."""
        epoch = min((extent.epoch for extent in extents if isinstance(extent, ObjectExtent)), default=None)
        if epoch is None:
            yield
            return
        self._reads[epoch] = self._reads.get(epoch, 0) + 1
        try:
            yield
        finally:
            self._reads[epoch] -= 1
            if not self._reads[epoch]:
                del self._reads[epoch]
