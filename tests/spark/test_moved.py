"""Records that lie elsewhere by the time at which a task reads them, or were compacted away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strandline.snapshot.spark.fetch import ObjectGone, read_windows
from strandline.snapshot.spark.moved import MovedRecords, _is_whole
from strandline.snapshot.spark.options import parse
from strandline.snapshot.spark.plan import plan
from strandline.snapshot.spark.source import SCHEMA, Split, StrandlineReader, arrow_schema
from strandline.snapshot.spark.stream import StrandlineStreamReader
from strandline.snapshot.spark.stream_tasks import StreamSplit
from strandline.snapshot.spark.views import partition_views
from strandline.snapshot.storage import open_storage
from tests.spark.collected_cluster import reconcile_all, write
from tests.spark.compacted_cluster import TOPIC, CompactedCluster
from tests.spark.planned import TOPICS
from tests.spark.stored_cluster import Producer, build_cluster
from tests.spark.transactional_cluster import build_transactional


@pytest.mark.parametrize("again", ["", "a", "ab", "abl"])
def test_a_key_that_was_written_again_is_not_missing_from_a_read_that_ends_before(
    tmp_path: Path, again: str
) -> None:
    made, plain = CompactedCluster(tmp_path / "objects"), Producer(7)
    made.put(0, [("a", "1"), ("b", "1"), ("l", "1")], plain)
    made.checkpoint()
    storage = open_storage(made.cluster.url)
    options, schema = parse({"url": storage.url, "topic": TOPIC}), arrow_schema(SCHEMA)
    (windows,) = plan(storage, options, 1)
    made.put(0, [(key, "2") for key in again or "x"], plain)
    made.put(0, [("end", "1")], plain)
    made.reconcile(0)
    if again:  # otherwise it is lifted as it is
        made.compact(0)
    made.checkpoint()
    for path in (made.cluster.root / "l0").rglob("*"):
        if path.is_file():
            path.unlink()

    def keys(batches: Iterator[Any]) -> str:
        return "".join(key.decode() for batch in batches for key in batch.column("key").to_pylist())

    stream = StrandlineStreamReader(storage, options, schema, 1)
    read = StrandlineReader(storage, options, schema, 1)
    assert keys(stream.read(StreamSplit(windows))) == "abl".removeprefix(again)
    if not again:
        assert keys(read.read(Split(windows))) == "abl"
        return
    with pytest.raises(ObjectGone, match=f"{TOPIC}-0: records from offset 0 on were compacted .* checkpoint"):
        keys(read.read(Split(windows)))


@pytest.mark.parametrize("count", ["3", "23"])
@pytest.mark.parametrize("lost", [1, 2])
def test_each_task_reads_the_same_records_when_all_have_moved_to_larger_blocks(
    tmp_path: Path, count: str, lost: int
) -> None:
    cluster = build_cluster(tmp_path / "objects", batches_a_round=4)
    storage, schema = open_storage(cluster.url), arrow_schema(SCHEMA)
    tasks = plan(storage, parse({"url": storage.url, "topic": TOPICS, "min_partitions": count}), 2)

    def read(moved: MovedRecords | None) -> list[list[tuple[str, int, int, bytes]]]:
        return [
            sorted(
                (row["topic"], row["partition"], row["offset"], row["value"])
                for batch in read_windows(storage, windows, schema, moved)
                for row in batch.to_pylist()
            )
            for windows in tasks
        ]

    expected = read(None)
    for partition in cluster.partitions.values():
        write(cluster, partition)
    reconcile_all(cluster)
    for partition in cluster.partitions.values():
        partition.merge(0, len(partition.machine.level_one))
    cluster.checkpoint()
    objects = sorted(path for path in (cluster.root / "l0").rglob("*") if path.is_file())
    for path in objects[::lost]:
        path.unlink()
    assert read(MovedRecords(storage, compacted=False)) == expected


def test_aborted_records_are_left_out_wherever_they_lie_by_then(tmp_path: Path) -> None:
    """A state that is read without regard to transactions says where; the plan says what was aborted."""
    stored = build_transactional(tmp_path / "objects")
    cluster, expected = stored.cluster, stored.committed()
    storage, schema = open_storage(cluster.url), arrow_schema(SCHEMA)
    (windows,) = plan(storage, parse({"url": storage.url, "topic": "payments,receipts"}), 1)
    for partition in cluster.partitions.values():
        ends = [one.end_offset for one in partition.machine.extents]
        partition.reconcile(sum(end <= partition.machine.last_stable_offset for end in ends))
    stored.checkpoint()
    for path in (cluster.root / "l0").rglob("*"):
        if path.is_file():
            path.unlink()
    found: dict[tuple[str, int], list[int]] = {}
    for batch in read_windows(storage, windows, schema, MovedRecords(storage, compacted=False)):
        for row in batch.to_pylist():
            found.setdefault((row["topic"], row["partition"]), []).append(row["offset"])
    wanted = {place: [one.offset for one in records] for place, records in expected.items()}
    assert {place: sorted(offsets) for place, offsets in found.items()} == wanted
    assert any(stored.hidden.values())


def test_where_compaction_left_no_block_at_all_something_is_missing(tmp_path: Path) -> None:
    made = CompactedCluster(tmp_path / "objects")
    for key in "abc":
        made.put(0, [(key, "1")])
    made.checkpoint()
    storage = open_storage(made.cluster.url)
    view, _ = partition_views(storage, parse({"url": storage.url, "topic": TOPIC}))
    assert _is_whole(view, 0, 3)
    for rows in (view.rows[1:], view.rows[:-1], view.rows[[0, 2]], view.rows[:0]):
        assert not _is_whole(replace(view, rows=rows), 0, 3)
