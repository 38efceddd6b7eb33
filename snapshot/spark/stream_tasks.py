"""A task's part of a stream's reader: where to read, and which columns.

Each Python worker of Spark imports what it unpickles. Planning needs the state machines, which take longer to
import than a micro-batch takes to read, so tasks are given this in place of the planner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import InputPartition

from strandline.snapshot.spark import python_worker
from strandline.snapshot.spark.fetch import read_windows
from strandline.snapshot.spark.moved import MovedRecords
from strandline.snapshot.spark.pieces import Window
from strandline.snapshot.storage import Storage


@dataclass(frozen=True)
class StreamSplit(InputPartition):
    """Input of one task."""

    windows: Sequence[Window]


@dataclass(frozen=True)
class StreamTasks:
    """Reads the tasks that the planner has made."""

    storage: Storage
    schema: Any

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one task's records, as Arrow batches. Raises StorageError, BadObject."""
        assert isinstance(partition, StreamSplit), "tasks are given what partitions() made"
        python_worker.begin()
        moved = MovedRecords(self.storage, compacted=True)
        return read_windows(self.storage, partition.windows, self.schema, moved)
