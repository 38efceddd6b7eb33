"""What checkpoints tell about collecting, on made-up histories and on stored ones. No Spark is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strandline.snapshot.spark.audits.collecting import (
    ClusterHistory,
    ControllerThen,
    Grace,
    PartitionDue,
    PartitionThen,
    histories,
)
from strandline.snapshot.spark.audits.documents import LEASE_LEFT_MS, SCHEMA, document_row, listing
from strandline.snapshot.spark.audits.run import find_places, without_gone
from strandline.snapshot.spark.audits.work import ClusterStorage
from strandline.snapshot.storage import open_storage
from tests.spark.collected_cluster import build_collected, maximum
from tests.spark.damage import Copy
from tests.spark.stored_cluster import CLUSTER, StoredCluster, build_cluster

GRACE = Grace(ms=100)


def controller(index: int, time: int, epoch: int, paused: bool = False, **partitions: int) -> ControllerThen:
    """`g1=5`: group 1, created in epoch 5."""
    groups = {int(name[1:]): created for name, created in partitions.items()}
    return ControllerThen(index, time, epoch, 100, paused, groups, [])


def partition(
    group: int,
    index: int,
    time: int,
    collectable: int,
    oldest: int | None = None,
    term: int = 1,
    removed: tuple[str, ...] = (),
    removable: tuple[str, ...] = (),
) -> PartitionThen:
    return PartitionThen(group, index, time, term, collectable, oldest, removed, removable)


def history(*rows: ControllerThen | PartitionThen) -> ClusterHistory:
    found = ClusterHistory()
    for row in rows:
        if isinstance(row, ControllerThen):
            found.controllers.append(row)
        else:
            found.partitions.setdefault(row.group, []).append(row)
    return found


def maxima(found: ClusterHistory) -> list[int]:
    return [one.maximum for one in found.rounds()]


def test_a_round_takes_the_newest_checkpoint_that_is_not_younger() -> None:
    found = history(
        controller(1, 100, 50, g1=1),
        controller(2, 200, 60, g1=1),
        controller(3, 300, 70, g1=1),
        partition(1, 7, 90, 10),
        partition(1, 8, 200, 20),
        partition(1, 9, 301, 30),
    )
    # The last round is the newest of every group, though the controller's clock is behind.
    assert maxima(found) == [10, 20, 30]


def test_a_partition_without_a_checkpoint_counts_as_its_creation() -> None:
    found = history(
        controller(1, 100, 50, g1=1),
        controller(2, 200, 60, g1=1, g2=5),
        partition(1, 7, 90, 40),
        partition(2, 7, 150, 20),
    )
    assert maxima(found) == [40, 20]
    del found.partitions[2]
    assert maxima(found) == [40, 4]


def test_the_controllers_own_epoch_is_a_bound() -> None:
    assert maxima(history(controller(1, 100, 50))) == [49]
    assert maxima(history(controller(1, 100, 50, g1=1), partition(1, 2, 90, 80))) == [49]


def due_maximum(found: ClusterHistory, grace: Grace = GRACE) -> int | None:
    due = found.due(grace)
    return due.maximum if due else None


def test_due_is_the_maximum_of_a_grace_ago() -> None:
    controllers = [controller(index, 100 * index, 10 * index + 1) for index in (1, 2, 3)]
    found = history(*controllers)
    assert due_maximum(found) == 20
    assert due_maximum(found, Grace(ms=101)) == 10
    assert due_maximum(found, Grace(ms=0)) == 30
    assert due_maximum(found, Grace(ms=201)) is None
    assert due_maximum(found, Grace(ms=201, epochs=4)) == 26
    assert due_maximum(history()) is None


@pytest.mark.parametrize(("paused", "expected"), [(1, 20), (2, None), (3, None)])
def test_nothing_is_due_when_collecting_was_paused_since(paused: int, expected: int | None) -> None:
    found = history(*(controller(n, 100 * n, 10 * n + 1, paused=n == paused) for n in (1, 2, 3)))
    assert due_maximum(found) == expected
    assert found.paused(GRACE) is (expected is None)
    assert due_maximum(found, Grace(ms=100, epochs=0)) == (expected and 30)


def test_leases_hold_m_and_nothing_else_is_known_of_the_present() -> None:
    first = controller(1, 100, 50, g1=1, g2=1)
    assert history(first, partition(1, 5, 90, 10), partition(2, 5, 90, 9)).held() is None
    assert history(first, partition(1, 5, 90, 10, 15), partition(2, 5, 90, 9)).held() == 14
    assert history(first, partition(1, 5, 90, 10, 15), partition(2, 5, 90, 9, 12)).held() == 11
    # Only the newest checkpoint of a group is sure to be leased.
    newer = partition(2, 6, 95, 9)
    assert history(first, partition(1, 5, 90, 10, 15), partition(2, 5, 90, 9, 12), newer).held() == 14


def test_while_paused_m_is_held_where_it_was() -> None:
    times = [(1, False), (2, True), (3, True)]
    found = history(*(controller(n, 100 * n, 10 * n + 1, paused=paused) for n, paused in times))
    assert found.held() == 20
    found.controllers.append(controller(4, 400, 51))
    assert found.held() is None


def test_what_is_due_of_a_partitions_level_one() -> None:
    found = history(
        partition(1, 5, 100, 9, term=2, removed=("a", "b", "c"), removable=("a", "b")),
        partition(1, 6, 150, 9, term=4, removed=("b", "c"), removable=("b", "c")),
        partition(1, 7, 200, 9, term=5, removed=("b", "c", "d"), removable=("b", "c", "d")),
    )
    (due,) = found.partitions_due(GRACE)
    assert due == PartitionDue(1, ("b", "c", "d"), 2, ["b"])
    (due,) = found.partitions_due(Grace(ms=50))
    assert due == PartitionDue(1, ("b", "c", "d"), 4, ["b", "c"])
    (due,) = found.partitions_due(Grace(ms=0))
    assert due == PartitionDue(1, ("b", "c", "d"), 5, ["b", "c", "d"])
    (due,) = found.partitions_due(Grace(ms=101))
    assert due == PartitionDue(1, ("b", "c", "d"), None, [])


def stored_history(cluster: StoredCluster) -> ClusterHistory:
    storage = ClusterStorage(open_storage(cluster.url), CLUSTER)
    rows: list[Any] = []
    found = listing(storage)
    for name in without_gone(found, find_places(storage, found)).documents:
        row, gone = document_row(storage.storage, name)
        assert not gone
        rows.append(dict(zip(SCHEMA.names, (0, *row), strict=True)))
    (history,) = histories(rows, 1)
    return history


def test_a_stored_clusters_history(tmp_path: Path) -> None:
    cluster = build_cluster(tmp_path / "objects", batches_a_round=2)
    found = stored_history(cluster)
    assert maxima(found)[-1] == maximum(cluster) == 2
    assert maxima(found) == [0, 2, 2]
    assert found.held() == 2
    both = cluster.partitions["visits", 0]
    (due,) = [one for one in found.partitions_due(Grace()) if one.group == both.group]
    assert due.due_term == 1
    assert due.removed == [one.unique.hex() for one in both.machine.removed]
    assert not due.overdue
    # They could all go, but for the leases.
    assert len(due.removed) == 3
    assert [one.removable for one in found.partitions[both.group]] == [[], [], []]


def test_a_lease_that_is_about_to_end_holds_m_back_and_is_no_promise(tmp_path: Path) -> None:
    copy = Copy(build_cluster(tmp_path / "objects", batches_a_round=2), tmp_path / "copy")
    group = copy.group("visits", 0)
    before = stored_history(StoredCluster(copy.root)).partitions[group][-1]
    assert (before.max_collectable, before.oldest_named) == (2, 3)
    for left, oldest in ((LEASE_LEFT_MS + 1, 3), (LEASE_LEFT_MS, 4), (1, 4)):
        copy.change_newest(group, lambda state, left=left: set_lease(state, left))  # type: ignore[misc]
        now = stored_history(StoredCluster(copy.root)).partitions[group][-1]
        assert (now.max_collectable, now.oldest_named) == (2, oldest)
    # Its own lease counts, however short: whoever takes a checkpoint to audit it sees to that.
    copy.change_newest(group, lambda state: state.update(extents=b"", checkpoints=state["checkpoints"][-1:]))
    copy.change_newest(group, lambda state: set_lease(state, 1))
    assert stored_history(StoredCluster(copy.root)).partitions[group][-1].oldest_named == 8


def set_lease(state: dict[str, Any], left: int) -> None:
    """The oldest checkpoint of a state is leased for so many ms more."""
    state["checkpoints"][0][1] = state["time"] + left


def test_a_collected_clusters_history(tmp_path: Path) -> None:
    cluster = build_collected(tmp_path / "objects")
    found = stored_history(cluster)
    # A topic that was deleted since, and has no documents that count, may have held M back at the fourth.
    assert maxima(found) == [0, 2, 2, 7, 18]
    assert maximum(cluster) == 18
    assert found.held() == 21
    assert due_maximum(found, Grace()) == 7
    assert due_maximum(found, Grace(ms=0)) == 18
    assert {len(checkpoints) for checkpoints in found.partitions.values()} == {5}
