"""Read-committed and uncommitted reads of a stored cluster with transactions; no Spark is needed."""

from __future__ import annotations

import struct
from collections import defaultdict

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.node.kafka.wire.control_batch import control_batch
from strandline.snapshot.aborted import Aborted
from strandline.snapshot.extent_rows import ABORTED_ROWS
from strandline.snapshot.spark import plan as planning
from strandline.snapshot.storage import open_storage
from tests.kafka.wire.batches import build
from tests.spark.decoded import rows, stored
from tests.spark.planned import Place, read
from tests.spark.stored_cluster import StoredRecord
from tests.spark.transactional_cluster import TRANSACTIONAL, TransactionalCluster, build_transactional

TOPICS = "payments,receipts"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> TransactionalCluster:
    return build_transactional(tmp_path_factory.mktemp("isolated") / "objects")


def found(cluster: TransactionalCluster, **options: str) -> dict[Place, list[StoredRecord]]:
    return read(open_storage(cluster.cluster.url), {"topic": TOPICS, **options})


def test_the_default_is_what_was_committed(cluster: TransactionalCluster) -> None:
    expected = cluster.committed()
    assert found(cluster) == expected
    assert found(cluster, isolation_level="read_committed") == expected
    whole = {place: partition.readable for place, partition in cluster.cluster.partitions.items()}
    assert all(len(expected[place]) < len(whole[place]) for place in whole)


def test_uncommitted_is_all_records_and_no_marker(cluster: TransactionalCluster) -> None:
    assert found(cluster, isolationLevel="read_uncommitted") == {
        place: partition.readable for place, partition in cluster.cluster.partitions.items()
    }


@pytest.mark.parametrize("window", [200, 1 << 24])
def test_however_it_is_cut_into_tasks(
    cluster: TransactionalCluster, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "WINDOW_BYTES", window)
    assert found(cluster, min_partitions="9") == cluster.committed()


def test_an_ending_offset_beyond_what_is_stable_is_cut_to_it(cluster: TransactionalCluster) -> None:
    receipts = cluster.partition("receipts", 0)
    beyond = str(receipts.machine.next_offset)
    assert receipts.machine.last_stable_offset < receipts.machine.next_offset
    got = found(cluster, topic="receipts", ending_offset=beyond)
    assert got == {("receipts", 0): cluster.committed()["receipts", 0]}


@settings(max_examples=40, deadline=None)
@given(first=st.integers(0, 60), end=st.integers(0, 60))
def test_any_bounds(cluster: TransactionalCluster, first: int, end: int) -> None:
    expected: dict[Place, list[StoredRecord]] = defaultdict(list)
    for place, records in cluster.committed().items():
        for record in records:
            if first <= record.offset < end:
                expected[place].append(record)
    bounds = {"starting_offset": str(first), "ending_offset": str(end)}
    assert found(cluster, failOnDataLoss="false", **bounds) == expected


def test_a_time_stands_for_the_first_record_that_is_read(cluster: TransactionalCluster) -> None:
    for place, records in cluster.committed().items():
        topic, number = place
        moment = records[len(records) // 2].timestamp
        since = next(record.offset for record in records if record.timestamp >= moment)
        got = found(cluster, topic=topic, partitions=str(number), starting_timestamp=str(moment))
        assert got == {place: [record for record in records if record.offset >= since]}


def test_a_batch_is_aborted_by_its_producer_and_offset() -> None:
    aborted = Aborted(np.array([(7, 2, 5), (8, 3, 6), (7, 9, 12)], ABORTED_ROWS).tobytes())
    assert [offset for offset in range(15) if aborted.has(7, offset)] == [2, 3, 4, 9, 10, 11]
    assert [offset for offset in range(15) if aborted.has(8, offset)] == [3, 4, 5]
    assert not aborted.has(9, 3)


def test_only_transactional_batches_are_left_out_and_damage_in_them_is_still_an_error() -> None:
    aborted = Aborted(np.array([(7, 0, 9)], ABORTED_ROWS).tobytes())
    mine = build(producer=(7, 0, 0), attributes=TRANSACTIONAL)
    other, plain = build(producer=(8, 0, 0), attributes=TRANSACTIONAL), build(producer=(7, 0, 0))
    got = rows(*(stored(data, base, aborted=aborted) for base, data in ((0, mine), (3, other), (6, plain))))
    assert [row["offset"] for row in got] == [3, 4, 5, 6, 7, 8]
    assert [row["offset"] for row in rows(stored(mine, 9, aborted=aborted))] == [9, 10, 11]
    damaged = mine[:-1] + b"\xff"
    with pytest.raises(ValueError, match="checksum"):
        rows(stored(damaged, 0, aborted=aborted))


def test_a_marker_has_no_row_whatever_is_aborted() -> None:
    marker = control_batch(7, 0, True, 3, 1_700_000_000_000)
    assert crc32c(marker[21:]) == struct.unpack_from(">I", marker, 17)[0]
    assert rows(stored(marker)) == []


def test_states_of_both_levels_were_read(cluster: TransactionalCluster) -> None:
    """Else the tests above would have shown less than they say."""
    machine = cluster.partition("receipts", 0).machine
    assert machine.start_offset < machine.last_reconciled_offset < machine.last_stable_offset
    assert next(one.last_offset for one in machine.aborted) < machine.last_reconciled_offset


def test_the_object_of_the_start_offset_has_what_the_state_forgot(cluster: TransactionalCluster) -> None:
    """A transaction that was aborted, with its marker: audits of the batches see both."""
    receipts = cluster.partition("receipts", 0)
    first = next(iter(receipts.machine.level_one))
    forgotten = min(cluster.hidden[receipts])
    assert first.base_offset <= forgotten < receipts.machine.start_offset < first.end_offset
    assert all(one.first_offset > forgotten for one in receipts.machine.aborted)
