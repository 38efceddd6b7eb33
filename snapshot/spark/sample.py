"""The records at both ends of a partition: a sample from which the shape of a topic's values is inferred."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]

from strandline.snapshot.decode import COLUMNS
from strandline.snapshot.spark.fetch import read_windows
from strandline.snapshot.spark.plan import in_order
from strandline.snapshot.spark.views import PartitionView, with_blocks
from strandline.snapshot.storage import Storage

SAMPLED_PARTITIONS: Final = 4
SAMPLED_RECORDS: Final = 500
"""Offsets of one end of a partition."""


def sampled(storage: Storage, views: Iterable[PartitionView], columns: Sequence[str]) -> Iterator[Any]:
    """Arrow batches of the first and the last records of the first partitions that have some.

    Raises StorageError, BadObject.
    """
    schema = pa.schema([(name, COLUMNS[name]) for name in columns])
    full = [view for view in views if view.first < view.end]
    for view in full[:SAMPLED_PARTITIONS]:
        first = view.within(view.first, view.first + SAMPLED_RECORDS)
        last = view.within(max(first.end, view.end - SAMPLED_RECORDS), view.end)
        for part in with_blocks(storage, [first, last]):
            yield from read_windows(storage, in_order([part]), schema)
