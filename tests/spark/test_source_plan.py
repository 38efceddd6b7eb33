"""From checkpoints to tasks: every wanted record once, and nothing else is fetched. No Spark is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.snapshot.decode import COLUMNS
from strandline.snapshot.document import SnapshotDocument, decode
from strandline.snapshot.extent_rows import ABORTED_ROWS, EXTENT_ROWS, LEVEL_ONE_ROWS, aborted_rows
from strandline.snapshot.level_one_format import batches_of
from strandline.snapshot.level_one_format import parse as parse_level_one
from strandline.snapshot.level_one_writer import LevelOneWriter
from strandline.snapshot.names import SnapshotName, checkpoint_prefix, parse_name
from strandline.snapshot.object_frame import BadObject
from strandline.snapshot.restore_point import GroupState, RestorePoint, point_name
from strandline.snapshot.spark import plan as planning
from strandline.snapshot.spark.newest import LISTINGS, newest_document
from strandline.snapshot.spark.options import SourceError, parse
from strandline.snapshot.spark.pieces import PIECE, PIECES
from strandline.snapshot.spark.plan import plan
from strandline.snapshot.spark.source import SCHEMA, arrow_schema
from strandline.snapshot.spark.views import PartitionView
from strandline.snapshot.storage import ObjectMissing, Storage, StorageError, open_storage
from strandline.statemachine.controller.controller_formats import SNAPSHOT_FORMAT
from strandline.statemachine.partition.aborted_transactions import AbortedTransactions
from strandline.statemachine.partition.extent import ROW, ObjectExtent
from strandline.statemachine.partition.level_one import LEVEL_ONE_ROW
from strandline.statemachine.partition.partition_commands import SetStartOffset
from tests.spark.collected_cluster import advance, build_collected, collect, reconcile_all, write
from tests.spark.planned import TOPICS, read, readable, records_of
from tests.spark.stored_cluster import (
    BLOCK_BYTES,
    CLUSTER,
    LEASE_MS,
    ROUND_MS,
    StoredCluster,
    StoredRecord,
    build_cluster,
)


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

    def sizes(self, prefix: str) -> Any:
        return self._inner.sizes(prefix)

    def versions(self, prefix: str) -> Any:
        return self._inner.versions(prefix)


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


@pytest.mark.parametrize("window", [200, 5000, 1 << 24])
@pytest.mark.parametrize("least", ["1", "5", "1000"])
def test_every_record_comes_once(
    cluster: StoredCluster, window: int, least: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "WINDOW_BYTES", window)
    options = {"topic": TOPICS, "min_partitions": least}
    found = read(open_storage(cluster.url), options)
    assert found == readable(cluster)
    assert cluster.partitions["orders", 0].machine.start_offset > 0


def test_an_object_is_fetched_once_for_all_its_partitions(cluster: StoredCluster) -> None:
    storage = Watched(open_storage(cluster.url))
    read(storage, {"topic": TOPICS})
    names = [key for key, _, _ in storage.ranges]
    level_one = [name for name in names if name.startswith("l1/")]
    assert len(names) - len(level_one) == len(set(names) - set(level_one)) > 10
    # One of level one is asked for its index as well.
    assert len(level_one) == 2 * len(set(level_one)) == 2 * 5


def test_tasks_are_cut_along_objects(cluster: StoredCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "WINDOW_BYTES", 2500)
    storage = Watched(open_storage(cluster.url))
    windows = sum(map(len, plan(storage, parse({"url": cluster.url, "topic": TOPICS}), 2)))
    read(storage, {"topic": TOPICS})
    names = {key for key, _, _ in storage.ranges}
    indexes = sum(name.startswith("l1/") for name in names)
    assert windows > 4
    assert len(storage.ranges) - indexes <= len(names) + windows


@pytest.mark.parametrize(
    ("total", "cores", "least", "tasks"),
    [
        (1, 2, None, 1),
        (100, 2, None, 2),
        (500, 2, None, 2),
        (1100, 2, None, 4),
        (1600, 2, None, 6),
        (10_000, 4, None, 12),
        (10_000, 2, None, 10),  # more than the known cores would have: none is too large
        (100, 2, 9, 9),
    ],
)
def test_tasks_are_few_and_even(
    total: int, cores: int, least: int | None, tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "WINDOW_BYTES", 64)
    monkeypatch.setattr(planning, "TASK_BYTES", 1000)
    rows = np.zeros(total, PIECES)
    rows["length"] = 1
    rows["base_offset"] = range(total)
    rows["end_offset"] = range(1, total + 1)
    rows["identity"] = [bytes(16) + number.to_bytes(4, "big") for number in range(total)]
    view = PartitionView(
        "t", b"", 0, "d", 0, total, np.zeros(0, LEVEL_ONE_ROWS), rows, {}, np.zeros(0, ABORTED_ROWS), 1, ()
    )
    packed = planning.pack([view], cores, least, 1 << 20)
    sizes = [sum(len(piece.pieces) for window in task for piece in window) // PIECE.size for task in packed]
    assert len(sizes) == tasks
    assert sum(sizes) == total
    assert max(sizes) - min(sizes) <= 2
    assert packed == planning.pack([view], cores, least, 1 << 20)


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


def test_of_level_one_only_wanted_blocks_are_fetched(cluster: StoredCluster) -> None:
    partition = cluster.partitions["visits", 1]
    second = list(partition.machine.level_one)[1]
    name = partition.level_one_name(second)
    footer = parse_level_one(name, (cluster.root / name).read_bytes())
    block = footer.blocks[2]
    storage = Watched(open_storage(cluster.url))
    for options in (
        {"starting_offset": str(block.base_offset), "ending_offset": str(block.end_offset)},
        {"starting_timestamp": str(block.max_timestamp), "ending_offset": str(block.end_offset)},
    ):
        storage.ranges.clear()
        found = read(storage, {"topic": "visits", "partitions": "1", **options})
        expected = [
            record
            for record in partition.readable
            if block.base_offset <= record.offset < block.end_offset
            and record.timestamp >= int(options.get("starting_timestamp", 0))
        ]
        assert found == {("visits", 1): expected}
        assert {key for key, _, _ in storage.ranges} == {name}
        index = (name, second.size - second.index_bytes, second.index_bytes)
        assert set(storage.ranges) == {index, (name, block.position, block.length)}


def test_a_partition_of_thousands_of_objects_asks_for_the_indexes_it_needs(cluster: StoredCluster) -> None:
    partition = cluster.partitions["visits", 1]
    storage = Watched(open_storage(cluster.url))
    end = next(iter(partition.machine.level_one)).end_offset
    read(storage, {"topic": "visits", "partitions": "1", "ending_offset": str(end)})
    assert len({key for key, _, _ in storage.ranges}) == 1


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
    starts = [cluster.partitions[place].machine.start_offset for place in readable(cluster)]
    asked = {"topic": TOPICS, **options}
    if first is not None and any(first < min(start, start if end is None else end) for start in starts):
        with pytest.raises(SourceError, match=rf"-0: offsets {first} to \d+ were deleted.*=false goes on"):
            read(open_storage(cluster.url), asked)
    else:
        assert read(open_storage(cluster.url), asked) == read(
            open_storage(cluster.url), {**asked, "failOnDataLoss": "false"}
        )
    expected = {}
    for place, records in readable(cluster).items():
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
    assert read(open_storage(cluster.url), {**asked, "failOnDataLoss": "false"}) == expected


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


def put_point(cluster: StoredCluster, number: int) -> None:
    """A restore point of the newest documents, as `strandline checkpoint` puts one."""
    groups = []
    for folder in sorted((cluster.root / "snapshots" / CLUSTER).iterdir()):
        newest = max(int(path.name) for path in folder.iterdir())
        groups.append(GroupState(int(folder.name), newest, 1))
    point = RestorePoint(CLUSTER, "first", number, 1, 1, 0, tuple(groups))
    path = cluster.root / point_name(CLUSTER, number)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(point.encode())


def test_an_earlier_checkpoint_is_read_by_its_number(own: StoredCluster) -> None:
    storage = open_storage(own.url)
    put_point(own, 40)
    then = {place: list(records) for place, records in readable(own).items()}
    own.create_topic("newer", 1)
    write(own, *own.partitions.values())
    own.checkpoint()
    put_point(own, 50)
    every = {"subscribePattern": ".*"}
    assert read(storage, {**every, "checkpoint": "40"}) == then
    assert read(storage, {**every, "checkpoint": "50"}) == read(storage, every) == readable(own) != then
    with pytest.raises(SourceError, match="there is no topic 'newer' in checkpoint 40, but clicks, "):
        read(storage, {"topic": "newer", "checkpoint": "40"})
    with pytest.raises(
        SourceError, match=r"no checkpoint 41 of all topics of cluster .*, but 40, 50: `strandline"
    ):
        read(storage, {**every, "checkpoint": "41"})

    group = own.partitions["clicks", 0].group
    for path in (own.root / checkpoint_prefix(CLUSTER, group, 0)).parent.glob("*/[0-9]*"):
        path.unlink()
    with pytest.raises(SourceError, match=f"checkpoint 40 names a document of group {group} that is gone"):
        read(storage, {"topic": "clicks", "checkpoint": "40"})
    (own.root / point_name(CLUSTER, 40)).write_bytes(b"{}")
    with pytest.raises(SourceError, match="checkpoint 40: it is damaged"):
        read(storage, {"topic": "clicks", "checkpoint": "40"})


def test_storage_without_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no cluster has published anything there: check the url"):
        read(open_storage(str(tmp_path)), {"topic": "orders"})


def test_a_cluster_without_a_checkpoint(cluster: StoredCluster) -> None:
    with pytest.raises(
        SourceError, match="nothing of cluster other is published there: check the url and the id"
    ):
        read(open_storage(cluster.url), {"topic": "orders", "cluster": "other"})


def test_several_clusters_in_one_folder(own: StoredCluster) -> None:
    other = own.root / "snapshots" / "second" / "0000000000"
    other.mkdir(parents=True)
    refused(own, f"holds several clusters \\({CLUSTER}, second\\)")
    found = read(open_storage(own.url), {"topic": "orders", "cluster": CLUSTER})
    assert found == readable(own, "orders")


def test_unknown_topics_and_partitions(cluster: StoredCluster) -> None:
    refused(cluster, "there is no topic 'order' in what is published, but clicks, orders, visits", "order")
    with pytest.raises(SourceError, match="topic 'orders' has no partition 3, only 0 to 2"):
        read(open_storage(cluster.url), {"topic": "orders", "partitions": "1-4"})


def test_a_partition_without_a_checkpoint(own: StoredCluster) -> None:
    for path in documents(own, own.partitions["orders", 2].group, newest=False):
        path.unlink()
    refused(own, "there is nothing of partition orders-2 in what is published: wait: nodes publish")


def test_damaged_documents_are_passed_over_while_one_is_whole(own: StoredCluster) -> None:
    *some, last = documents(own, own.partitions["orders", 0].group)
    for path in some:
        path.write_bytes(path.read_bytes()[:-1])
    assert read(open_storage(own.url), {"topic": "orders"}) == readable(own, "orders")
    last.write_bytes(b"")
    refused(own, "snapshots/.*: snapshot is cut short|digest does not match")


def test_a_newer_state_is_refused_by_name(own: StoredCluster) -> None:
    for group in (own.partitions["orders", 0].group, 0):
        for path in documents(own, group):
            _, _, after = decode(path.read_bytes()).state.partition(b"\xa6format")
            # The controller writes an earlier format below the highest feature level.
            newest = after[0] if group else SNAPSHOT_FORMAT
            rewrite(path, b"\xa6format%c" % after[0], b"\xa6format%c" % (newest + 1))
        told = f"it has format {newest + 1}, this release reads up to {newest}: upgrade"
        refused(own, f"/{group:010d}/.*: {told}")


def test_a_missing_object_is_named_with_what_refers_to_it(own: StoredCluster) -> None:
    extent = next(iter(own.partitions["orders", 1].machine.extents))
    assert isinstance(extent, ObjectExtent)
    gone = own.root / extent.object_name
    gone.unlink()
    with pytest.raises(StorageError, match=f"there is no object l0/.*{gone.name}; snapshots/.* refers to it"):
        read(open_storage(own.url), {"topic": TOPICS})


def go_on(cluster: StoredCluster) -> list[str]:
    """Reconciling, merging, retention and collecting, as far as they may; returns what was deleted."""
    for epoch in (cluster.epoch + 5, cluster.epoch + 10):
        for partition in cluster.partitions.values():
            write(cluster, partition)
        reconcile_all(cluster)
        advance(cluster, epoch)
    for partition in cluster.partitions.values():
        partition.merge(0, len(partition.machine.level_one))
    for number in range(3):
        partition = cluster.partitions["orders", number]
        partition.execute(SetStartOffset(partition.machine.next_offset))
    return collect(cluster)


def test_a_read_goes_on_while_all_that_may_be_is_deleted(tmp_path: Path) -> None:
    cluster = build_collected(tmp_path / "objects")
    storage, expected = open_storage(cluster.url), readable(cluster)
    tasks = plan(storage, parse({"url": cluster.url, "topic": TOPICS, "min_partitions": "5"}), 2)
    found = records_of(storage, tasks[:1])
    # The lease of the checkpoint before ends, that of the one that is read does not.
    cluster.now += LEASE_MS - 2 * ROUND_MS
    gone = go_on(cluster)
    assert {name.partition("/")[0] for name in gone} == {"l1"}
    for place, records in records_of(storage, tasks[1:]).items():
        found.setdefault(place, []).extend(records)
    assert {place: sorted(records) for place, records in found.items()} == expected
    # Planned after all that, the newest checkpoint is still the same.
    assert read(storage, {"topic": TOPICS}) == expected

    cluster.now += LEASE_MS
    gone = go_on(cluster)
    assert {name.partition("/")[0] for name in gone} == {"l0", "l1"}
    with pytest.raises(StorageError, match="refers to it: deleted since its lease has ended, or lost"):
        records_of(storage, tasks)


def level_one_file(cluster: StoredCluster, nth: int = 0) -> tuple[str, Path]:
    partition = cluster.partitions["visits", 1]
    name = partition.level_one_name(list(partition.machine.level_one)[nth])
    return name, cluster.root / name


def test_a_missing_level_one_object_is_named_with_what_refers_to_it(own: StoredCluster) -> None:
    name, path = level_one_file(own)
    path.unlink()
    refused(own, f"there is no object {name}; snapshots/.* refers to it", "visits")


def test_damage_in_level_one_is_named(own: StoredCluster) -> None:
    name, path = level_one_file(own)
    whole = path.read_bytes()
    block = parse_level_one(name, whole).blocks[0]
    # The base offset of a batch, which Kafka's own checksum does not cover.
    path.write_bytes(whole[: block.position] + b"\1" + whole[block.position + 1 :])
    with pytest.raises(BadObject, match=f"{name}, bytes {block.position} to .* the block's checksum"):
        read(open_storage(own.url), {"topic": "visits"})
    path.write_bytes(whole[:-30] + b"\1" + whole[-29:])
    refused(own, f"object {name}, bytes .* the footer's checksum does not match", "visits")


def test_a_level_one_object_of_other_offsets_is_refused(own: StoredCluster) -> None:
    name, path = level_one_file(own)
    data = path.read_bytes()
    footer = parse_level_one(name, data)
    writer = LevelOneWriter(footer.topic_id, footer.partition, footer.term, footer.unique, BLOCK_BYTES)
    for block in footer.blocks:
        for at, length, base, end, *rest in batches_of(name, block, data[block.position : block.end]):
            writer.add(data[at : at + length], base + 1, end + 1, *rest)
    path.write_bytes(b"".join(writer.finish().parts))
    said = f"it holds offsets 1 to {footer.end_offset + 1}, in place of those that snapshots/"
    refused(own, f"object {name}, .* {said}", "visits")


def test_rows_are_the_state_machines() -> None:
    row = (0, 5, 3, 7, 9, 11, 13, 17, bytes(range(20)))
    assert tuple(np.frombuffer(ROW.pack(*row), EXTENT_ROWS)[0].item()) == row
    one = (5, 8, 11, 13, 17, 19, bytes(range(16)))
    assert tuple(np.frombuffer(LEVEL_ONE_ROW.pack(*one), LEVEL_ONE_ROWS)[0].item()) == one
    aborted = AbortedTransactions()
    for number in range(300):
        aborted.append(5, 8 * number, 8 * number + 7)
    assert aborted_rows(aborted.packed()).tolist() == [tuple(row) for row in aborted]
    piece = (2, 5, 8, 7, 9, 11, 13, 17, 19, 23, bytes(range(20)))
    assert tuple(np.frombuffer(PIECE.pack(*piece), PIECES)[0].item()) == piece


def test_the_schemas_agree() -> None:
    assert arrow_schema(SCHEMA) == pa.schema(list(COLUMNS.items()))


def test_what_compaction_left_is_read_and_nothing_else(tmp_path: Path) -> None:
    """Objects with holes among others, one of them with nothing left."""
    own = build_cluster(tmp_path / "objects")
    partition = next(one for one in own.partitions.values() if len(one.machine.level_one) >= 2)
    before = len(partition.records)
    partition.compact(0, lambda base: False)
    partition.compact(1, lambda base: base % 2 == 0)
    own.checkpoint()
    assert len(partition.records) < before
    left = partition.readable
    found = read(open_storage(own.url), {"topic": partition.topic})
    assert found.get((partition.topic, partition.number), []) == left
    middle = left[len(left) // 2].offset
    options = {
        "assign": json.dumps({partition.topic: [partition.number]}),
        "starting_offset": str(middle),
    }
    found = read(open_storage(own.url), options)
    assert found[partition.topic, partition.number] == [one for one in left if one.offset >= middle]
