"""What of old checkpoints is removed, what stays, and what becomes of it when it breaks off in the middle."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from strandline.node.checkpoints import checkpoint_pruning, renewal
from strandline.node.objectstore.store import StoreError
from strandline.node.rpc import CallFailed
from strandline.snapshot.document import decode
from strandline.snapshot.names import (
    checkpoint_prefix,
    group_prefix,
    local_name,
    log_name,
    parse_name,
    snapshot_name,
)
from strandline.statemachine.controller.controller_commands import AdvanceClusterEpoch
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP
from strandline.statemachine.partition.partition_commands import ReleaseCheckpoints
from tests.checkpoints.cluster import CONTROLLER_LEADER, NODES, Cluster, take
from tests.checkpoints.harness import CLUSTER, at_once, world
from tests.level_zero.samples import run
from tests.simulation.world import World

__all__ = ["at_once"]

GROUP = 4
"""clicks-0; node 2 leads it."""
LEADER = 2


def stored(cluster: Cluster, group: int = GROUP) -> list[int]:
    """Indexes of a group's checkpoints of which the store has anything."""
    return sorted({parse_name(name).log_index for name in cluster.store.keys(group_prefix(CLUSTER, group))})


def retained(cluster: Cluster, group: int = GROUP) -> list[int]:
    return [each.log_index for each in cluster.replicas[group][LEADER].machine.checkpoints.retained]


def taken(made: World, cluster: Cluster, times: int, lease_ms: int = 1_000) -> list[int]:
    """Take so many, each after the leases of those before have ended, and return the group's indexes."""
    indexes = []
    for _ in range(times):
        cluster.now_ms += 2_000
        for replica in cluster.replicas[GROUP].values():
            replica.write()
        report = take(made, cluster, ["clicks"], lease_ms=lease_ms)
        assert report.complete
        indexes += [part.index or 0 for part in report.checkpoints if part.group == GROUP]
    return indexes


def ask(
    made: World, cluster: Cluster, node: int, payload: Any, method: str = checkpoint_pruning.METHOD
) -> Any:
    return run(made, cluster.nodes[node - 1], cluster.handle(node, method, payload))


@pytest.mark.usefixtures("at_once")
def test_the_newest_stay_by_count_with_every_object_and_the_others_go_with_every_object() -> None:
    with world() as made:
        cluster = Cluster(made, keep=3)
        indexes = taken(made, cluster, 3)
        for node in NODES:
            cluster.store.put(local_name(CLUSTER, GROUP, indexes[0], node), b"a local document")
        indexes += taken(made, cluster, 7)
        # Three without a lease, and the one that was leased when the last command was given: its own.
        assert retained(cluster) == stored(cluster) == indexes[-4:]
        for after, index in zip(indexes[-5:], indexes[-4:], strict=False):
            names = [snapshot_name(CLUSTER, GROUP, index, node) for node in NODES]
            assert cluster.store.keys(checkpoint_prefix(CLUSTER, GROUP, index)) == [
                *names,
                log_name(CLUSTER, GROUP, after, index),
            ]
        assert len(stored(cluster, CONTROLLER_GROUP)) == 3
        assert stored(cluster, 1) == []
        states = {replica.machine.snapshot() for replica in cluster.replicas[GROUP].values()}
        assert len(states) == 1


def test_what_the_newest_document_calls_retained_is_there() -> None:
    with world() as made:
        cluster = Cluster(made, keep=2)
        indexes = taken(made, cluster, 6)
        document = decode(cluster.store.objects[snapshot_name(CLUSTER, GROUP, indexes[-1], 1)])
        machine = cluster.replicas[GROUP][1].machine
        machine.restore(document.state)
        assert [each.log_index for each in machine.checkpoints.retained] == stored(cluster)


def test_a_leased_one_stays_and_goes_after_its_lease_with_the_next_checkpoint() -> None:
    with world() as made:
        cluster = Cluster(made, keep=1)
        (leased,) = taken(made, cluster, 1, lease_ms=1_000_000)
        indexes = taken(made, cluster, 5)
        assert retained(cluster) == stored(cluster) == [leased, *indexes[-2:]]
        cluster.now_ms += 1_000_000
        (newest,) = taken(made, cluster, 1)
        assert retained(cluster) == stored(cluster) == [indexes[-1], newest]


def test_a_renewed_lease_keeps_it_and_one_that_has_ended_says_so() -> None:
    with world() as made:
        cluster = Cluster(made, keep=1)
        first, second = taken(made, cluster, 2)
        coordinator = cluster.coordinators[3]

        def renew(*leases: tuple[int, int], timeout: float = 5.0) -> Any:
            return run(made, cluster.nodes[2], coordinator.renew(leases, 500_000, timeout))

        began = made.now
        report = renew((GROUP, second), (GROUP, first), (GROUP, 99_999), (77, 5))
        assert made.now - began < 2
        good, ended, unknown, nowhere = report.checkpoints
        assert not report.complete
        assert (good.lease_until_ms, good.ended, good.error) == (cluster.now_ms + 500_000, False, None)
        for each in (ended, unknown):
            assert (each.lease_until_ms, each.ended) == (None, True)
            assert "lease has ended" in str(each.error)
        assert nowhere.ended
        assert "deleted" in str(nowhere.error)
        indexes = taken(made, cluster, 4)
        assert retained(cluster) == stored(cluster) == [second, *indexes[-2:]]

        cluster.leaderless = {GROUP}
        made.call_later(2.0, cluster.leaderless.clear)
        assert renew((GROUP, second)).complete
        cluster.leaderless = {GROUP}
        (waiting,) = renew((GROUP, second), timeout=2.0).checkpoints
        assert (waiting.ended, "no leader is known" in str(waiting.error)) == (False, True)
        cluster.leaderless.clear()
        cluster.refuse = {renewal.METHOD}
        (refused,) = renew((GROUP, second), timeout=2.0).checkpoints
        assert (refused.ended, "not to be" in str(refused.error)) == (False, True)
        for payload in ([GROUP, second], [GROUP, second, -1], None):
            with pytest.raises(CallFailed):
                ask(made, cluster, LEADER, payload, renewal.METHOD)


@pytest.mark.usefixtures("at_once")
def test_a_crash_between_the_command_and_the_deletion_is_made_good_by_the_next() -> None:
    with world() as made:
        cluster = Cluster(made, keep=1)
        cluster.refuse = {checkpoint_pruning.METHOD}
        indexes = taken(made, cluster, 5)
        assert retained(cluster) == indexes[-2:]
        assert stored(cluster) == indexes
        assert len(stored(cluster, CONTROLLER_GROUP)) == 5
        cluster.refuse = set()
        indexes += taken(made, cluster, 1)
        assert retained(cluster) == stored(cluster) == indexes[-2:]
        assert len(stored(cluster, CONTROLLER_GROUP)) == 1


def test_a_deletion_that_broke_off_and_one_published_again_are_made_good_by_the_next() -> None:
    with world() as made:
        cluster = Cluster(made, keep=1)
        first, *_ = indexes = taken(made, cluster, 3)
        name = snapshot_name(CLUSTER, GROUP, first, 3)
        # As a node does that starts again and applies the old entries: the log has not changed.
        cluster.store.put(name, b"the same bytes")
        indexes += taken(made, cluster, 1)
        assert name not in cluster.store.objects
        assert stored(cluster) == indexes[-2:]


@pytest.mark.parametrize("operation", ["list", "delete"])
def test_a_store_that_fails_takes_nothing_from_the_checkpoint(
    operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    with world() as made:
        cluster = Cluster(made, keep=1)
        store = cluster.store
        works = store.delete, store.list

        def fail(*_: Any) -> Any:
            raise StoreError(operation, "key", "simulated", retriable=True)

        def list_(prefix: str, after: str, limit: int) -> list[str]:
            return fail() if prefix.count("/") == 3 else works[1](prefix, after, limit)

        if operation == "delete":
            store.delete = fail  # type: ignore[method-assign,assignment]
        else:
            store.list = list_  # type: ignore[method-assign]
        indexes = taken(made, cluster, 4)
        assert stored(cluster) == indexes
        store.delete, store.list = works  # type: ignore[method-assign]
        indexes += taken(made, cluster, 1)
        assert stored(cluster) == indexes[-2:]


def test_nothing_goes_before_the_new_one_can_be_read() -> None:
    with world() as made:
        cluster = Cluster(made, keep=1)
        indexes = taken(made, cluster, 2)
        cluster.down = {3}
        cluster.now_ms += 2_000
        assert not take(made, cluster, ["clicks"], lease_ms=1_000, timeout=3.0).complete
        cluster.now_ms += 2_000
        assert not take(made, cluster, ["clicks"], lease_ms=1_000, timeout=3.0).complete
        assert stored(cluster)[:2] == indexes
        assert not set(indexes) & set(retained(cluster))


def test_one_group_without_its_documents_keeps_no_others_old_ones() -> None:
    with world() as made:
        cluster = Cluster(made, keep=1)
        taken(made, cluster, 3)
        works, missing = cluster.store.put, f"/{5:010d}/"
        cluster.store.put = lambda key, data: None if missing in key else works(key, data)  # type: ignore[method-assign]
        cluster.now_ms += 2_000
        report = take(made, cluster, ["clicks"], lease_ms=1_000, timeout=4.0)
        assert [part.group for part in report.checkpoints if part.missing] == [5]
        assert stored(cluster) == retained(cluster)
        assert not set(stored(cluster, 5)) <= set(retained(cluster, 5))


def test_a_leader_that_is_none_any_more_deletes_nothing() -> None:
    with world() as made:
        cluster = Cluster(made, keep=1)
        cluster.deposed = {GROUP, CONTROLLER_GROUP}
        indexes = taken(made, cluster, 4)
        assert stored(cluster) == indexes
        assert len(stored(cluster, CONTROLLER_GROUP)) == 4
        for node in NODES:
            if node != LEADER:
                with pytest.raises(CallFailed, match="does not lead"):
                    ask(made, cluster, node, [GROUP, indexes[-1]])
            if node != CONTROLLER_LEADER:
                with pytest.raises(CallFailed, match="does not lead"):
                    ask(made, cluster, node, [CONTROLLER_GROUP, cluster.index])


def test_what_a_deposed_leader_still_deletes_no_newer_state_retains() -> None:
    with world() as made:
        cluster = Cluster(made, keep=2)
        cluster.refuse = {checkpoint_pruning.METHOD}
        indexes = taken(made, cluster, 6)
        # Its deletion is on its way when it loses the leadership, and the others go on without it.
        cluster.store.stall()
        task = cluster.nodes[LEADER - 1].loop.create_task(
            cluster.handle(LEADER, checkpoint_pruning.METHOD, [GROUP, indexes[-1]])
        )
        made.run(made.now + 1)
        for node in (1, 3):
            replica = cluster.replicas[GROUP][node]
            replica.now_ms = cluster.now_ms + 5_000
            replica.apply(ReleaseCheckpoints(1))
            replica.checkpoint()
        cluster.store.unstall()
        made.run_until(task.done, timeout=60, step=0.01)
        made.run(made.now + 5)
        newer = {each.log_index for each in cluster.replicas[GROUP][1].machine.checkpoints.retained}
        assert task.result() == 3 * 4
        assert newer <= set(stored(cluster))
        assert stored(cluster)[:-1] == indexes[-3:]


def test_only_below_a_checkpoint_that_is_retained_and_applied() -> None:
    with world() as made:
        cluster = Cluster(made, keep=2)
        cluster.refuse = {checkpoint_pruning.METHOD}
        indexes = taken(made, cluster, 6)
        everything = dict(cluster.store.objects)
        assert ask(made, cluster, LEADER, [GROUP, indexes[-1] + 1]) == 0
        assert ask(made, cluster, LEADER, [GROUP, indexes[0]]) == 0
        assert ask(made, cluster, CONTROLLER_LEADER, [CONTROLLER_GROUP, cluster.index + 1]) == 0
        for payload in ([GROUP], [GROUP, 0], ["4", 5], None):
            with pytest.raises(CallFailed, match="not a group and index"):
                ask(made, cluster, LEADER, payload)
        with pytest.raises(CallFailed, match="does not lead"):
            ask(made, cluster, LEADER, [99, 5])
        assert cluster.store.objects == everything
        # Asked of an older one that is retained still, it leaves alone what is newer.
        assert ask(made, cluster, LEADER, [GROUP, indexes[-2]]) == 3 * 4
        assert stored(cluster) == indexes[-3:]


def test_names_that_are_no_checkpoint_and_other_groups_are_left_alone() -> None:
    with world() as made:
        cluster = Cluster(made, keep=1)
        strange = [
            group_prefix(CLUSTER, GROUP) + "0-notes",
            group_prefix(CLUSTER, GROUP * 11) + f"{1:020d}/1",
        ]
        for name in strange:
            cluster.store.put(name, b"x")
        taken(made, cluster, 4)
        assert set(strange) <= set(cluster.store.objects)


def test_what_is_kept_by_count_goes_with_the_first_checkpoint_after_a_while() -> None:
    with world() as made:
        cluster = Cluster(made, keep=2)
        taken(made, cluster, 5)
        assert len(stored(cluster, CONTROLLER_GROUP)) == 5, "a point may be on its way that names one"
        made.run(made.now + checkpoint_pruning.SETTLING_SECONDS)
        last = stored(cluster, CONTROLLER_GROUP)[-2:]
        taken(made, cluster, 1)
        # The one that this checkpoint made dispensable waits in its turn.
        assert stored(cluster, CONTROLLER_GROUP)[:2] == last


@pytest.mark.usefixtures("at_once")
def test_a_log_without_a_document_does_not_count_for_the_controller() -> None:
    with world() as made:
        cluster = Cluster(made, keep=2)
        taken(made, cluster, 2)
        first, second = stored(cluster, CONTROLLER_GROUP)
        cluster.control(AdvanceClusterEpoch(9))
        cluster.store.put(log_name(CLUSTER, CONTROLLER_GROUP, second, second + 1), b"x")
        taken(made, cluster, 1)
        assert second in stored(cluster, CONTROLLER_GROUP)
        assert first not in stored(cluster, CONTROLLER_GROUP)


def test_the_work_after_one_checkpoint_is_bounded_and_goes_on_after_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with world() as made:
        cluster = Cluster(made, keep=1)
        cluster.refuse = {checkpoint_pruning.METHOD}
        indexes = taken(made, cluster, 9)
        cluster.refuse = set()
        monkeypatch.setattr(checkpoint_pruning, "MAX_NAMES", 12)
        monkeypatch.setattr(checkpoint_pruning, "MAX_DELETE", 5)
        indexes += taken(made, cluster, 1)
        assert stored(cluster) == indexes[3:]
        indexes += taken(made, cluster, 1)
        assert stored(cluster) == indexes[6:]
        indexes += taken(made, cluster, 4)
        assert stored(cluster) == indexes[-2:]
