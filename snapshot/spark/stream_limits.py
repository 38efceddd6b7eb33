"""The end of a micro-batch within the options `maxOffsetsPerTrigger` and `maxBytesPerTrigger`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np

from strandline.snapshot.spark.fetch import PARALLEL_GETS
from strandline.snapshot.spark.views import PartitionView, with_blocks
from strandline.snapshot.storage import Storage


def ends(
    storage: Storage, views: Sequence[PartitionView], max_offsets: int, max_bytes: int | None
) -> list[int]:
    """The end offset of each view within both limits; raises StorageError, BadObject.

    Each view that holds offsets goes on by one piece at least: one offset, and where bytes are limited a
    batch of level zero or a block of level one.
    """
    shared = shares([view.end - view.first for view in views], max_offsets)
    within = [view.within(view.first, view.first + share) for view, share in zip(views, shared, strict=True)]
    if max_bytes is None:
        return [view.end for view in within]
    sizes = [stored_bytes(view) for view in within]
    if sum(sizes) <= max_bytes:
        return [view.end for view in within]
    budgets = shares(sizes, max_bytes)
    with ThreadPoolExecutor(PARALLEL_GETS) as pool:
        return list(pool.map(lambda view, budget: end_within(storage, view, budget), within, budgets))


def shares(sizes: Sequence[int], limit: int) -> list[int]:
    """Share a limit in proportion to sizes, at least one each; all of them when they fit.

    Spark's Kafka source does so, lest small partitions starve. It rounds each share down, and what is left
    over becomes a micro-batch of a few records at the end; here shares add up to the limit.
    """
    total = sum(sizes)
    if total <= limit:
        return list(sizes)
    bounds = [limit * size // total for size in accumulate(sizes, initial=0)]
    return [max(1, end - begin) for begin, end in pairwise(bounds)]


def stored_bytes(view: PartitionView) -> int:
    """Bytes of the objects and pieces that hold a view's offsets, whole ones also at its ends."""
    return int(view.objects["size"].sum(dtype=np.int64) + view.rows["length"].sum(dtype=np.int64))


def end_within(storage: Storage, view: PartitionView, budget: int) -> int:
    """The end offset of the view's first pieces that fit the budget, one at least.

    Only the objects at the view's beginning and where the budget ends are looked up in their indexes. Raises
    StorageError, BadObject.
    """
    end: int | None = None
    for number in range(view.objects.size):
        size = int(view.objects["size"][number])
        if size <= budget and view.objects["base_offset"][number] >= view.first:
            budget -= size
            end = int(view.objects["end_offset"][number])
            continue
        alone = replace(view, objects=view.objects[number : number + 1], rows=view.rows[:0])
        (looked_up,) = with_blocks(storage, [alone])
        taken = _count_within(looked_up, budget, end is None)
        if taken:
            end = int(looked_up.rows["end_offset"][taken - 1])
        if taken < looked_up.rows.size:
            return min(_passed(end), view.end)
        budget -= stored_bytes(looked_up)
    taken = _count_within(view, budget, end is None)
    if taken == view.rows.size:
        return view.end
    return min(int(view.rows["end_offset"][taken - 1]) if taken else _passed(end), view.end)


def _count_within(view: PartitionView, budget: int, at_least_one: bool) -> int:
    """Count the first pieces of a view that fit the budget."""
    fit = int(np.searchsorted(np.cumsum(view.rows["length"], dtype=np.int64), budget, "right"))
    return max(fit, min(1, view.rows.size)) if at_least_one else fit


def _passed(end: int | None) -> int:
    assert end is not None, "the first piece is taken whatever its size"
    return end
