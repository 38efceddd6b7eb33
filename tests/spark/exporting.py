"""Exports of a stored cluster, and targets at which a process ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb

from strandline.snapshot.spark.export.documents import File
from strandline.snapshot.spark.export.given_columns import given_columns
from strandline.snapshot.spark.export.parquet import Job
from strandline.snapshot.spark.export.planning import Limits
from strandline.snapshot.spark.export.run import Export
from strandline.snapshot.spark.export.running import Exported, Runner, in_threads
from strandline.snapshot.spark.export.target import Target
from strandline.snapshot.spark.options import parse
from strandline.snapshot.storage import open_storage
from tests.spark.planned import Place
from tests.spark.stored_cluster import StoredCluster, StoredRecord

SMALL = Limits(file_bytes=1500, round_files=2)
"""Many rounds of several files each."""


def exporting(
    cluster: StoredCluster,
    target: Target,
    topics: str = "orders,clicks,visits",
    *,
    run: Runner | None = None,
    by: str | None = None,
    limits: Limits = SMALL,
    accept_loss: bool = False,
    format: str | None = None,
    value: str | None = None,
    columns: Sequence[str] = (),
    catalog: Mapping[str, str] | None = None,
    **options: str,
) -> Export:
    """An export that has not run yet."""
    read = parse({"url": cluster.url, "topic": topics, **options})
    settings = {} if by is None else {"partition_by": by}
    if format is not None:
        settings["format"] = format
    if value is not None:
        settings["value"] = value
    return Export(
        open_storage(cluster.url),
        read,
        target,
        run or in_threads(1),
        settings=settings,
        limits=limits,
        accept_loss=accept_loss,
        catalog=catalog,
        columns=given_columns(columns),
    )


def export(cluster: StoredCluster, target: Target, *topics: str, **how: Any) -> Exported:
    return exporting(cluster, target, *topics, **how).run()


def exported(folder: Path) -> dict[Place, list[StoredRecord]]:
    """All rows of all files below a folder, as a reader finds them that knows nothing of manifests."""
    pattern = f"{folder}/**/*.parquet"
    rows = duckdb.execute(
        'SELECT topic, "partition", "offset", epoch_ms("timestamp"), key, value, leader_epoch '
        f"FROM read_parquet('{pattern}', hive_partitioning = true, hive_types_autocast = false) ORDER BY ALL"
    ).fetchall()
    found: dict[Place, list[StoredRecord]] = {}
    for topic, partition, offset, timestamp, key, value, leader_epoch in rows:
        record = StoredRecord(offset, timestamp, key, value, leader_epoch)
        found.setdefault((topic, int(partition)), []).append(record)
    return found


class Killed(BaseException):
    """The end of a process: nothing but what is outside of it remains."""


class Mortal(Target):
    """A target that kills its process before or after one of its operations that change something."""

    def __init__(self, inner: Target, at: int, after: bool) -> None:
        self.inner, self.left, self.after = inner, at, after
        self.url = inner.url

    def _change(self, operation: Callable[[], Any]) -> Any:
        self.left -= 1
        if self.left > 0:
            return operation()
        if self.left == 0 and self.after:
            operation()
        raise Killed

    def create(self, key: str, data: bytes | memoryview) -> bool:
        return bool(self._change(lambda: self.inner.create(key, data)))

    def delete(self, key: str) -> None:
        self._change(lambda: self.inner.delete(key))

    def get(self, key: str) -> bytes:
        return self.inner.get(key)

    def list(self, prefix: str) -> list[str]:
        return self.inner.list(prefix)

    def sweep(self) -> int:
        return self.inner.sweep()


def here(jobs: Sequence[Job]) -> Iterator[tuple[File, ...]]:
    """Runs jobs in this thread, so that a kill is the end of all of them."""
    for job in jobs:
        yield job.run()
