"""Level one beside level zero, and beside what partitions say of it. No Spark is needed."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from strandline.snapshot.decode import COLUMNS
from strandline.snapshot.level_one_format import parse
from strandline.snapshot.spark.audits import levels
from strandline.snapshot.spark.audits.documents import listing
from strandline.snapshot.spark.audits.level_one_objects import Said, found_batches
from strandline.snapshot.spark.audits.levels import Beside, compare_object, first_difference
from strandline.snapshot.spark.audits.replay import AGREES, NOT_COVERED, GroupReplay
from strandline.snapshot.spark.audits.transaction_events import Targets
from strandline.snapshot.spark.audits.work import ClusterStorage
from strandline.snapshot.storage import open_storage
from strandline.statemachine.partition.level_one import LevelOneExtent
from tests.spark.collected_cluster import build_collected
from tests.spark.damage import Copy
from tests.spark.stored_cluster import CLUSTER, StoredCluster, StoredPartition, build_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> StoredCluster:
    return build_cluster(tmp_path_factory.mktemp("levels") / "objects")


# Streams of records.


def stream(*offsets: int, size: int = 2, **changed: Any) -> Iterator[Any]:
    """Records in Arrow batches of `size`; a changed column has `value` at the offset 3."""
    for at in range(0, len(offsets), size):
        part = offsets[at : at + size]
        columns: dict[str, list[Any]] = {
            "offset": list(part),
            "value": [str(offset).encode() for offset in part],
            "headers": [[{"key": "a", "value": b"1"}] if offset % 2 else None for offset in part],
        }
        for name, value in changed.items():
            columns[name] = [value if o == 3 else old for o, old in zip(part, columns[name], strict=True)]
        kinds = {"offset": pa.int64(), "value": pa.binary(), "headers": COLUMNS["headers"]}
        yield pa.record_batch([pa.array(columns[name], kind) for name, kind in kinds.items()], list(kinds))


def test_equal_streams_are_equal_however_they_are_cut() -> None:
    for size in (1, 2, 3, 7):
        assert first_difference(stream(1, 2, 3, 4, 5), stream(1, 2, 3, 4, 5, size=size)) == (5, None)
    assert first_difference(stream(), stream()) == (0, None)


@pytest.mark.parametrize(
    ("changed", "columns"),
    [
        ({"value": b"4"}, "value"),
        ({"value": None}, "value"),
        ({"headers": [{"key": "a", "value": None}]}, "headers"),
        ({"headers": None, "value": b""}, "value, headers"),
        ({"offset": 9}, "offset"),
    ],
)
def test_the_first_record_that_differs_is_named(changed: dict[str, Any], columns: str) -> None:
    same, difference = first_difference(stream(1, 2, 3, 4, size=3), stream(1, 2, 3, 4, **changed))
    assert same == 2
    assert difference == (3, f"level one differs from level zero in {columns}")


def test_a_batch_of_which_compaction_left_nothing_is_no_difference() -> None:
    (empty,) = (batch.slice(0, 0) for batch in stream(1, size=1))
    assert first_difference(iter([empty]), stream()) == (0, None)
    assert first_difference(iter([*stream(1, 2), empty]), stream(1, 2)) == (2, None)
    assert first_difference(iter([empty, *stream(1, 2)]), iter([empty, *stream(1, 2), empty])) == (2, None)


def test_a_record_too_many_or_too_few() -> None:
    ends = first_difference(stream(1, 2, 3), stream(1, 2))
    assert ends == (2, (3, "level one ends before this record of level zero"))
    more = first_difference(stream(1, 2), stream(1, 2, 3))
    assert more == (2, (3, "level one has a record that level zero has not"))


# One object beside the batches it was lifted from.


def replay_of(cluster: StoredCluster, partition: StoredPartition) -> GroupReplay:
    found = listing(ClusterStorage(open_storage(cluster.url), CLUSTER))
    return GroupReplay(
        open_storage(cluster.url),
        [tuple(name) for name in found.documents if name.group == partition.group],
        [tuple(name) for name in found.logs if name.group == partition.group],
        Targets({}),
    )


def rows_of(cluster: StoredCluster, partition: StoredPartition) -> list[Beside]:
    """The batches of a partition as logs tell them, all of them still there."""
    replay = replay_of(cluster, partition)
    rows = []
    for index in sorted(replay.names):
        replay.outcome(index)
        for base, count, term, length, epoch, position, name, inline in replay.written.found():
            if base is not None:
                end = base + count
                row = Beside(
                    0, 6, 1, 1, base, end, name, term, length, epoch, position, inline, True, count, 0
                )
                rows.append(row)
    return rows


def compare(
    cluster: StoredCluster, partition: StoredPartition, one: LevelOneExtent, zero: list[Beside]
) -> tuple[Any, ...]:
    held = [row for row in zero if one.base_offset <= row.base_offset < one.end_offset]
    name = partition.level_one_name(one)
    count = one.end_offset - one.base_offset
    nothing = (None, None, None, None, None)
    whole = Beside(0, 6, 1, 0, one.base_offset, one.end_offset, name, *nothing, True, count, 0)
    return compare_object(open_storage(cluster.url), whole, held)[1:]


@pytest.mark.parametrize("window", [1, 1000, 1 << 20])
def test_what_was_lifted_is_what_was_there(
    cluster: StoredCluster, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levels, "WINDOW_BYTES", window)
    for number in range(2):
        partition = cluster.partitions["visits", number]
        zero = rows_of(cluster, partition)
        # Every batch that was ever written, whole and in order, though no state names most of them.
        assert [row.end_offset for row in zero[:-1]] == [row.base_offset for row in zero[1:]]
        assert (zero[0].base_offset, zero[-1].end_offset) == (0, partition.machine.next_offset)
        for one in partition.machine.level_one:
            count = one.end_offset - one.base_offset
            assert compare(cluster, partition, one, zero) == (count, 0, None, None)


def test_what_level_zero_has_no_more_is_counted(cluster: StoredCluster) -> None:
    partition = cluster.partitions["visits", 1]
    zero = rows_of(cluster, partition)
    one = next(iter(partition.machine.level_one))
    count = one.end_offset - one.base_offset
    gone = zero[2].end_offset - zero[2].base_offset
    there = [row._replace(there=number != 2) for number, row in enumerate(zero)]
    assert compare(cluster, partition, one, there) == (count - gone, gone, None, None)
    assert compare(cluster, partition, one, zero[1:])[:2] == (count - zero[0].end_offset, zero[0].end_offset)
    assert compare(cluster, partition, one, [*zero[:2], *zero[3:]]) == (count - gone, gone, None, None)
    assert compare(cluster, partition, one, []) == (0, count, None, None)


def test_batches_in_one_anothers_place_are_found(cluster: StoredCluster) -> None:
    partition = cluster.partitions["visits", 0]
    zero = rows_of(cluster, partition)
    one = list(partition.machine.level_one)[-1]
    first = next(number for number, row in enumerate(zero) if row.base_offset == one.base_offset)
    mine, other = zero[first + 1], zero[first + 2]
    swapped = other._replace(base_offset=mine.base_offset, end_offset=mine.end_offset)
    zero[first + 1] = swapped
    same, left, at, problem = compare(cluster, partition, one, zero)
    assert (same, at) == (3, mine.base_offset)
    assert same + left == one.end_offset - one.base_offset
    assert problem == "level one differs from level zero in timestamp"


def test_an_object_that_cannot_be_read_is_the_other_audits_finding(
    cluster: StoredCluster, tmp_path: Path
) -> None:
    copy = Copy(cluster, tmp_path / "copy")
    partition = cluster.partitions["visits", 1]
    one = next(iter(partition.machine.level_one))
    name = partition.level_one_name(one)
    copy.flip(name, 100)
    nothing = (None, None, None, None, None)
    whole = Beside(0, 6, 1, 0, 0, one.end_offset, name, *nothing, True, one.end_offset, 0)
    zero = rows_of(cluster, partition)[:3]
    assert compare_object(open_storage(str(copy.root)), whole, zero) == (name, 0, one.end_offset, None, None)
    copy.path(name).unlink()
    assert compare_object(open_storage(str(copy.root)), whole, zero)[1:] == (0, one.end_offset, None, None)


def test_every_object_that_a_log_names_is_told(cluster: StoredCluster) -> None:
    """Also those of retries, which no state ever names: each batch counts once, its objects all."""
    named = set()
    for partition in cluster.partitions.values():
        replay = replay_of(cluster, partition)
        ends = [0]
        for index in sorted(replay.names):
            replay.outcome(index)
            for base, count, _, _, _, _, name, _ in replay.written.found():
                named.add(name)
                if base is not None:
                    assert base == ends[-1]
                    ends.append(base + count)
        assert ends[-1] == partition.machine.next_offset
    assert named - {None} == set(open_storage(cluster.url).list("l0/"))


# What was written, where logs are missing.


def test_what_no_log_tells_older_checkpoints_do(cluster: StoredCluster, tmp_path: Path) -> None:
    copy = Copy(cluster, tmp_path / "copy").without_logs()
    partition = cluster.partitions["orders", 1]
    rows = rows_of(StoredCluster(copy.root), partition)
    assert [row.base_offset for row in rows] == [extent.base_offset for extent in partition.machine.extents]
    both = cluster.partitions["visits", 0]
    told = rows_of(StoredCluster(copy.root), both)
    # The first checkpoint has the first round; what was written and lifted between two has no witness.
    assert told[0].base_offset == 0
    assert 0 < len(told) < len(rows_of(cluster, both))


def test_the_outcome_of_a_replay_is_as_before(cluster: StoredCluster, tmp_path: Path) -> None:
    copy = Copy(cluster, tmp_path / "copy").without_logs()
    partition = cluster.partitions["visits", 0]
    for root, expected in ((cluster.root, AGREES), (copy.root, NOT_COVERED)):
        replay = replay_of(StoredCluster(root), partition)
        assert {replay.outcome(index)[2] for index in sorted(replay.names)} == {expected}


# An object beside what its partition says.


def said_of(one: LevelOneExtent) -> Said:
    return Said(one.base_offset, one.end_offset, one.max_timestamp, one.size, one.index_bytes)


def test_the_batches_of_an_object(cluster: StoredCluster) -> None:
    partition = cluster.partitions["visits", 0]
    storage = open_storage(cluster.url)
    for one in partition.machine.level_one:
        found = found_batches(storage, partition.level_one_name(one), said_of(one), 0)
        assert [batch.problem for batch in found] == [None] * len(found)
        assert [batch.end_offset for batch in found] == [
            *(batch.base_offset for batch in found[1:]),
            one.end_offset,
        ]
        assert found[0].base_offset == one.base_offset
        assert {batch.header.producer_id for batch in found if batch.header} == {11}


@pytest.mark.parametrize("field", Said._fields)
def test_what_the_partition_says_otherwise_is_named(cluster: StoredCluster, field: str) -> None:
    partition = cluster.partitions["visits", 0]
    one = next(iter(partition.machine.level_one))
    said = said_of(one)._replace(**{field: getattr(said_of(one), field) + 1})
    (found,) = found_batches(open_storage(cluster.url), partition.level_one_name(one), said, 0)
    assert found.problem is not None
    assert found.problem.startswith(f"the object has {field.replace('_', ' ')} ")
    assert (found.base_offset, found.end_offset) == (said.base_offset, said.end_offset)


def test_a_bad_block_is_one_row_and_the_others_are_read(cluster: StoredCluster, tmp_path: Path) -> None:
    copy = Copy(cluster, tmp_path / "copy")
    partition = cluster.partitions["visits", 1]
    one = next(iter(partition.machine.level_one))
    name = partition.level_one_name(one)
    blocks = parse(name, copy.path(name).read_bytes()).blocks
    copy.flip(name, blocks[1].position + 14)
    found = found_batches(open_storage(str(copy.root)), name, said_of(one), 0)
    bad = [batch for batch in found if batch.problem]
    assert [(batch.base_offset, batch.end_offset, batch.header) for batch in bad] == [
        (blocks[1].base_offset, blocks[1].end_offset, None)
    ]
    assert (
        sum(batch.header is not None for batch in found) == sum(b.batches for b in blocks) - blocks[1].batches
    )
    # A header that is damaged is nobody's batch: all of them are named.
    copy.flip(name, blocks[1].position + 14)
    copy.flip(name, 9)
    found = found_batches(open_storage(str(copy.root)), name, said_of(one), 0)
    assert {batch.problem for batch in found} == {"the header is damaged"}


def test_a_batch_that_says_another_count_is_found(cluster: StoredCluster, tmp_path: Path) -> None:
    copy = Copy(cluster, tmp_path / "copy")
    partition = cluster.partitions["visits", 1]
    one = next(iter(partition.machine.level_one))
    name = partition.level_one_name(one)

    def change(batch: bytearray, stamped: list[int]) -> None:
        struct.pack_into(">i", batch, 57, 77)

    copy.rewrite_level_one(name, change, 2)
    found = found_batches(open_storage(str(copy.root)), name, said_of(one), 0)
    assert [number for number, batch in enumerate(found) if batch.problem] == [2]


def test_a_collected_cluster_reads_as_before(tmp_path: Path) -> None:
    cluster = build_collected(tmp_path / "objects")
    partition = cluster.partitions["visits", 0]
    zero = rows_of(cluster, partition)
    assert zero[-1].end_offset == partition.machine.next_offset
