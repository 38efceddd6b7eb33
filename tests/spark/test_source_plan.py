"""From checkpoints to tasks: every wanted record once, and nothing else is fetched. No Spark is needed."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot.document import SnapshotDocument, decode
from snapshot.extent_rows import EXTENT_ROWS
from snapshot.names import SnapshotName, parse_name
from snapshot.spark import plan as planning
from snapshot.spark.decode import COLUMNS
from snapshot.spark.fetch import read_windows
from snapshot.spark.options import SourceError, parse
from snapshot.spark.plan import LISTINGS, newest_document, plan
from snapshot.spark.source import SCHEMA, arrow_schema
from snapshot.storage import ObjectMissing, Storage, StorageError, open_storage
from statemachine.extents import ROW, ObjectExtent
from tests.spark.stored_cluster import CLUSTER, StoredCluster, StoredRecord, build_cluster

Place = tuple[str, int]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> StoredCluster:
    return build_cluster(tmp_path_factory.mktemp("planned") / "objects")


class Watched(Storage):
    """A storage that counts the ranges it is asked for."""

    def __init__(self, inner: Storage) -> None:
        self._inner = inner
        self.url = inner.url
        self.ranges: list[tuple[str, int, int]] = []

    def folders(self, prefix: str) -> Any:
        return self._inner.folders(prefix)

    def get(self, key: str) -> bytes:
        return self._inner.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self.ranges.append((key, start, length))
        return self._inner.get_range(key, start, length)

    def list(self, prefix: str) -> Any:
        return self._inner.list(prefix)


class Passing(Watched):
    """A storage whose newest checkpoint is gone, and another there, once it is about to be read."""

    def __init__(self, inner: Storage, times: int) -> None:
        super().__init__(inner)
        self.times = times

    def list(self, prefix: str) -> Any:
        found = self._inner.list(prefix)
        return [*found, f"{prefix}{10**15:020d}/1"] if self.times else found

    def get(self, key: str) -> bytes:
        if f"/{10**15:020d}/" in key:
            self.times -= 1
            raise ObjectMissing(f"there is no {key}")
        return super().get(key)


def test_a_newest_checkpoint_that_goes_before_it_is_read_is_looked_for_again(cluster: StoredCluster) -> None:
    storage = open_storage(str(cluster.root))
    for times in range(LISTINGS):
        assert newest_document(Passing(storage, times), CLUSTER, 0) == newest_document(storage, CLUSTER, 0)
    with pytest.raises(ObjectMissing):
        newest_document(Passing(storage, LISTINGS), CLUSTER, 0)


def read(storage: Storage, options: dict[str, str], cores: int = 2) -> dict[Place, list[StoredRecord]]:
    found: dict[Place, list[StoredRecord]] = {}
    for windows in plan(storage, parse({"url": storage.url, **options}), cores):
        for batch in read_windows(storage, windows, arrow_schema(SCHEMA)):
            for row in batch.to_pylist():
                found.setdefault((row["topic"], row["partition"]), []).append(
                    StoredRecord(
                        row["offset"],
                        round(row["timestamp"].astimezone(UTC).timestamp() * 1000),
                        row["key"],
                        row["value"],
                        row["leader_epoch"],
                    )
                )
    return {place: sorted(records) for place, records in found.items()}


def readable(cluster: StoredCluster, *topics: str) -> dict[Place, list[StoredRecord]]:
    return {
        place: partition.readable
        for place, partition in cluster.partitions.items()
        if place[0] in topics and partition.readable
    }


@pytest.mark.parametrize("window", [200, 5000, 1 << 24])
@pytest.mark.parametrize("least", ["1", "5", "1000"])
def test_every_record_comes_once(
    cluster: StoredCluster, window: int, least: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "WINDOW_BYTES", window)
    options = {"topic": "orders,clicks", "min_partitions": least}
    found = read(open_storage(cluster.url), options)
    assert found == readable(cluster, "orders", "clicks")
    assert cluster.partitions["orders", 0].machine.start_offset > 0


def test_an_object_is_fetched_once_for_all_its_partitions(cluster: StoredCluster) -> None:
    storage = Watched(open_storage(cluster.url))
    read(storage, {"topic": "orders,clicks"})
    names = [key for key, _, _ in storage.ranges]
    assert len(names) == len(set(names)) > 10


def test_tasks_are_cut_along_objects(cluster: StoredCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "WINDOW_BYTES", 2500)
    storage = Watched(open_storage(cluster.url))
    windows = sum(map(len, plan(storage, parse({"url": cluster.url, "topic": "orders,clicks"}), 2)))
    read(storage, {"topic": "orders,clicks"})
    objects = len({key for key, _, _ in storage.ranges})
    assert windows > 4
    assert len(storage.ranges) <= objects + windows


@pytest.mark.parametrize(
    ("total", "cores", "least", "tasks"),
    [(1, 2, None, 1), (100, 2, None, 2), (500, 2, None, 6), (10_000, 4, None, 12), (100, 2, 9, 9)],
)
def test_tasks_are_few_and_even(
    total: int, cores: int, least: int | None, tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "WINDOW_BYTES", 64)
    rows = np.zeros(total, EXTENT_ROWS)
    rows["length"] = 1
    rows["base_offset"] = range(total)
    rows["record_count"] = 1
    rows["object_id"] = [bytes(16) + number.to_bytes(4, "big") for number in range(total)]
    view = planning.PartitionView("t", 0, "d", 0, total, rows, {})
    packed = planning.pack([view], cores, least)
    sizes = [sum(len(piece.rows) for window in task for piece in window) // 69 for task in packed]
    assert len(sizes) == tasks
    assert sum(sizes) == total
    assert max(sizes) - min(sizes) <= 2
    assert packed == planning.pack([view], cores, least)


def test_partitions_are_pruned_before_anything_is_fetched(cluster: StoredCluster) -> None:
    storage = Watched(open_storage(cluster.url))
    found = read(storage, {"topic": "orders", "partitions": "1"})
    assert found == {("orders", 1): cluster.partitions["orders", 1].readable}
    extents = cluster.partitions["orders", 1].machine.extents
    names = {extent.object_name for extent in extents if isinstance(extent, ObjectExtent)}
    assert {key for key, _, _ in storage.ranges} == names


def test_offsets_outside_are_not_even_fetched(cluster: StoredCluster) -> None:
    storage = Watched(open_storage(cluster.url))
    records = cluster.partitions["orders", 1].readable
    middle = records[len(records) // 2].offset
    options = {"assign": '{"orders": [1]}', "starting_offset": str(middle), "ending_offset": str(middle + 1)}
    assert read(storage, options) == {("orders", 1): [records[len(records) // 2]]}
    assert len(storage.ranges) == 1


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_offset_and_time_bounds_are_those_of_a_plain_model(cluster: StoredCluster, data: Any) -> None:
    first = data.draw(st.none() | st.integers(0, 90), "first")
    end = data.draw(st.none() | st.integers(0, 90), "end")
    times = sorted({r.timestamp for p in cluster.partitions.values() for r in p.records})
    time = st.none() | st.integers(times[0] - 5, times[-1] + 5)
    since, until = data.draw(time, "since"), data.draw(time, "until")
    given_ = {
        "starting_offset": first,
        "ending_offset": end,
        "starting_timestamp": since,
        "ending_timestamp": until,
    }
    options = {name: str(value) for name, value in given_.items() if value is not None}
    expected = {}
    for place, records in readable(cluster, "orders", "clicks").items():
        wanted = [
            r for r in records if (first is None or r.offset >= first) and (end is None or r.offset < end)
        ]

        def offset_of(moment: int | None, other: int, wanted: list[StoredRecord] = wanted) -> int:
            if moment is None:
                return other
            return next((r.offset for r in wanted if r.timestamp >= moment), 1 << 60)

        low, high = offset_of(since, 0), offset_of(until, 1 << 60)
        if kept := [r for r in wanted if low <= r.offset < high]:
            expected[place] = kept
    assert read(open_storage(cluster.url), {"topic": "orders,clicks", **options}) == expected


def test_nothing_to_read_is_one_empty_task(cluster: StoredCluster) -> None:
    assert plan(
        open_storage(cluster.url), parse({"url": cluster.url, "topic": "clicks", "partitions": "1"}), 2
    ) == [()]


@pytest.fixture
def own(tmp_path: Path) -> StoredCluster:
    """A cluster that a test may damage."""
    return build_cluster(tmp_path / "objects", batches_a_round=2)


def refused(cluster: StoredCluster, message: str, topic: str = "orders") -> None:
    with pytest.raises(SourceError, match=message) as caught:
        read(open_storage(cluster.url), {"topic": topic})
    assert "\n" not in str(caught.value)


def documents(cluster: StoredCluster, group: int, newest: bool = True) -> list[Path]:
    index = cluster.controller.checkpoint_indexes[-1] if group == 0 else None
    found = []
    for path in sorted((cluster.root / "snapshots").rglob("*")):
        if path.is_file():
            name = parse_name(path.relative_to(cluster.root).as_posix())
            if isinstance(name, SnapshotName) and name.group == group:
                found.append((name.log_index, path))
    newest_index = index or max(number for number, _ in found)
    return [path for number, path in found if not newest or number == newest_index]


def rewrite(path: Path, old: bytes, new: bytes) -> None:
    document = decode(path.read_bytes())
    state = document.state.replace(old, new, 1)
    assert state != document.state
    fields = {name: getattr(document, name) for name in document.__slots__}
    path.write_bytes(SnapshotDocument(**{**fields, "state": state}).encode())


def test_storage_without_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no checkpoint is published there: run `strandline checkpoint`"):
        read(open_storage(str(tmp_path)), {"topic": "orders"})


def test_a_cluster_without_a_checkpoint(cluster: StoredCluster) -> None:
    with pytest.raises(SourceError, match="no checkpoint of cluster other is published: run"):
        read(open_storage(cluster.url), {"topic": "orders", "cluster": "other"})


def test_several_clusters_in_one_folder(own: StoredCluster) -> None:
    other = own.root / "snapshots" / "second" / "0000000000"
    other.mkdir(parents=True)
    refused(own, f"holds several clusters \\({CLUSTER}, second\\)")
    found = read(open_storage(own.url), {"topic": "orders", "cluster": CLUSTER})
    assert found == readable(own, "orders")


def test_unknown_topics_and_partitions(cluster: StoredCluster) -> None:
    refused(cluster, "there is no topic 'order' in the newest checkpoint, but clicks, orders", "order")
    with pytest.raises(SourceError, match="topic 'orders' has no partition 3, only 0 to 2"):
        read(open_storage(cluster.url), {"topic": "orders", "partitions": "1-4"})


def test_a_partition_without_a_checkpoint(own: StoredCluster) -> None:
    for path in documents(own, own.partitions["orders", 2].group, newest=False):
        path.unlink()
    refused(own, "no checkpoint of partition orders-2 is published")


def test_damaged_documents_are_passed_over_while_one_is_whole(own: StoredCluster) -> None:
    *some, last = documents(own, own.partitions["orders", 0].group)
    for path in some:
        path.write_bytes(path.read_bytes()[:-1])
    assert read(open_storage(own.url), {"topic": "orders"}) == readable(own, "orders")
    last.write_bytes(b"")
    refused(own, "snapshots/.*: snapshot is cut short|digest does not match")


def test_a_newer_state_is_refused_by_name(own: StoredCluster) -> None:
    for path in documents(own, own.partitions["orders", 0].group):
        rewrite(path, b"\xa6format\x01", b"\xa6format\x02")
    refused(own, "snapshots/.*: it has format 2, this release reads up to 1: upgrade")
    for path in documents(own, 0):
        rewrite(path, b"\xa6format\x01", b"\xa6format\x02")
    refused(own, "it has format 2, this release reads up to 1: upgrade")


def test_a_missing_object_is_named_with_what_refers_to_it(own: StoredCluster) -> None:
    gone = next(path for path in sorted((own.root / "l0").rglob("*")) if path.is_file())
    gone.unlink()
    with pytest.raises(StorageError, match=f"there is no object l0/.*{gone.name}; snapshots/.* refers to it"):
        read(open_storage(own.url), {"topic": "orders,clicks"})


def test_rows_are_the_state_machines() -> None:
    row = (0, 5, 3, 7, 9, 11, 13, 17, bytes(range(20)))
    assert tuple(np.frombuffer(ROW.pack(*row), EXTENT_ROWS)[0].item()) == row


def test_the_schemas_agree() -> None:
    assert arrow_schema(SCHEMA) == pa.schema(list(COLUMNS.items()))
