"""Restore points: when a checkpoint is one, what it names, and what keeps it worth something."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strandline.node.checkpoints.changes import METHOD as CHANGED
from strandline.node.checkpoints.changes import Changes
from strandline.node.checkpoints.checkpoint_coordinator import CheckpointReport, CheckpointUnderWay
from strandline.node.checkpoints.context import CheckpointContext
from strandline.node.checkpoints.restore_points import KEPT_POINTS, Holding, NoRestorePoint, RestorePoints
from strandline.node.checkpoints.restore_publishing import RestorePublishing
from strandline.node.controller.leaders import Leader
from strandline.node.coordinator.decision_hold import HOLD, MAX_HOLD_SECONDS
from strandline.node.objectstore.store import StoreError
from strandline.node.rpc import CallFailed
from strandline.snapshot.names import group_prefix, parse_name, snapshot_name
from strandline.snapshot.restore_point import (
    GroupState,
    RestorePoint,
    decode_point,
    point_name,
    points_prefix,
)
from strandline.statemachine.controller.acl import Acl, Operation, PatternType, Permission, ResourceType
from strandline.statemachine.controller.controller_commands import AlterAcls, CreateInternalTopic, DeleteTopic
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP
from strandline.statemachine.internal_topics import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from tests.checkpoints.cluster import Cluster, take
from tests.checkpoints.harness import CLUSTER, at_once, world
from tests.level_zero.samples import run
from tests.simulation.world import World
from tests.statemachine.controller_harness import topic_id

__all__ = ["at_once"]

RULE = Acl(
    ResourceType.TOPIC, "orders", PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW
)


def stored(cluster: Cluster) -> dict[int, RestorePoint]:
    points = [
        decode_point(cluster.store.objects[name]) for name in cluster.store.keys(points_prefix(CLUSTER))
    ]
    return {point.number: point for point in points}


def test_a_checkpoint_of_all_topics_is_a_point_and_names_a_document_of_each_group() -> None:
    with world() as made:
        cluster = Cluster(made)
        report = take(made, cluster, node=2)
        (number,) = stored(cluster)
        assert (report.restore_point, report.no_restore_point) == (number, None)
        point = stored(cluster)[number]
        assert number == report.checkpoints[-1].index == point.groups[0].log_index
        assert (point.cluster, point.incarnation, point.attempts) == (CLUSTER, "first", 0)
        assert [group.group for group in point.groups] == [0, 1, 2, 3, 4, 5]
        there = set(cluster.store.keys(""))
        assert {snapshot_name(CLUSTER, *group) for group in point.groups} <= there
        assert not any(hold.held for hold in cluster.holds.values())
        assert take(made, cluster, ["orders"]).restore_point is None


def test_groups_are_asked_before_partitions_and_transactions_after_them() -> None:
    """Else an offset of a group might be above its partition's end, or a transaction open for ever."""
    with world() as made:
        cluster = Cluster(made)
        transactions = cluster.control(CreateInternalTopic(topic_id(8), TRANSACTIONS_TOPIC, 2, 3))
        groups = cluster.control(CreateInternalTopic(topic_id(9), GROUPS_TOPIC, 2, 3))
        take(made, cluster, timeout=8.0)
        asked = list(dict.fromkeys(group for _, group in cluster.calls))
        first = {place.group for place in groups.partitions}
        last = {place.group for place in transactions.partitions}
        assert set(asked[:2]) == first
        assert set(asked[-2:]) == last
        assert sorted(asked[2:-2]) == [1, 2, 3, 4, 5]


def test_the_newest_points_stay() -> None:
    with world() as made:
        cluster = Cluster(made)
        numbers = [take(made, cluster).restore_point or 0 for _ in range(KEPT_POINTS + 2)]
        assert list(stored(cluster)) == numbers[-KEPT_POINTS:] == sorted(numbers)[-KEPT_POINTS:]
        assert cluster.store.keys(points_prefix(CLUSTER))[-1] == point_name(CLUSTER, numbers[-1])


def test_a_point_that_is_put_late_does_not_become_the_newest() -> None:
    with world() as made:
        cluster = Cluster(made)
        points = _points(cluster)
        older = take(made, cluster, node=2).restore_point or 0
        groups = stored(cluster)[older].groups

        async def put() -> None:
            held = await points.begin()
            await points.end(held)
            with pytest.raises(NoRestorePoint, match="which was taken later, is there already"):
                await points.put(held, groups)

        run(made, cluster.nodes[0], put())
        assert list(stored(cluster)) == [older], "the same number twice"
        newest = take(made, cluster, node=3).restore_point
        before = dict(cluster.store.objects)
        del cluster.store.objects[point_name(CLUSTER, older)]
        run(made, cluster.nodes[0], put())
        assert list(stored(cluster)) == [newest]
        assert before.items() >= cluster.store.objects.items()


def test_a_node_that_ends_while_it_holds_decisions_leaves_no_call_to_another_loop() -> None:
    """Its `finally` begins calls when its loop runs no more. As tasks of the thread's loop they would never
    begin, and the warning of that would hit any later test."""
    other = asyncio.new_event_loop()
    asyncio.set_event_loop(other)
    try:
        with world() as made:
            cluster = Cluster(made)
            cluster.nodes[0].spawn(cluster.coordinators[1].take(None, 1_000, 9.0))
            assert made.run_until(lambda: bool(cluster.calls), timeout=9.0, step=0.0001)
            assert all(hold.held for hold in cluster.holds.values())
        assert asyncio.all_tasks(other) == set()
    finally:
        asyncio.set_event_loop(None)
        other.close()


def test_a_node_takes_one_checkpoint_at_a_time() -> None:
    with world() as made:
        cluster = Cluster(made)
        coordinator = cluster.coordinators[1]

        async def both() -> tuple[CheckpointReport, CheckpointReport]:
            return await asyncio.gather(
                coordinator.take(None, 1_000, 9.0), coordinator.take(None, 1_000, 9.0)
            )

        reports = run(made, cluster.nodes[0], both())
        assert [report.restore_point for report in reports] == list(stored(cluster))
        assert len(stored(cluster)) == 2

        async def too_short() -> None:
            first = asyncio.ensure_future(coordinator.take(None, 1_000, 8.0))
            await asyncio.sleep(0)
            with pytest.raises(CheckpointUnderWay, match="wait for it"):
                await coordinator.take(["orders"], 1_000, 1.0)
            await first

        cluster.leaderless = {4}
        run(made, cluster.nodes[0], too_short())
        cluster.leaderless = set()
        assert take(made, cluster).restore_point is not None


def test_a_node_that_is_behind_takes_a_point_with_the_topics_it_had_yet_to_hear_of() -> None:
    with world() as made:
        cluster = Cluster(made)
        cluster.behind = {2}
        cluster.create(3, "new", 1)
        report = take(made, cluster, node=2)
        assert report.complete
        assert [group.group for group in stored(cluster)[report.restore_point or 0].groups] == [*range(7)]
        cluster.create(4, "newer", 1)
        assert take(made, cluster, ["newer"], node=2).complete


def test_there_is_no_point_without_the_controllers_word_on_topics() -> None:
    with world() as made:
        cluster = Cluster(made)
        cluster.leaderless = {0}
        made.call_later(2.0, cluster.leaderless.clear)
        report = take(made, cluster, timeout=8.0)
        assert report.complete
        assert "did not say in time which topics" in str(report.no_restore_point)
        assert not stored(cluster)


@pytest.mark.parametrize("change", ["create", "delete"])
def test_there_is_no_point_when_topics_change_meanwhile(change: str) -> None:
    with world() as made:
        cluster = Cluster(made)
        works = cluster.leader_of
        changed: list[int] = []

        def leader_of(group: int) -> Leader | None:
            if not changed:
                changed.append(group)
                if change == "create":
                    cluster.create(3, "new", 1)
                else:
                    cluster.control(DeleteTopic(topic_id(2)))
            return works(group)

        cluster.leader_of = leader_of  # type: ignore[method-assign]
        report = take(made, cluster)
        why = f"topics were made or deleted meanwhile, as that of group {6 if change == 'create' else 4}"
        assert why in str(report.no_restore_point)
        assert not stored(cluster)
        assert changed


def test_there_is_no_point_while_a_coordinator_of_transactions_is_unknown_here() -> None:
    with world() as made:
        cluster = Cluster(made)
        cluster.led = [(77, Led())]
        assert "the first transaction began just now" in str(take(made, cluster).no_restore_point)


def _named(cluster: Cluster) -> set[str]:
    """Names of the documents that the kept points name."""
    points = stored(cluster).values()
    return {snapshot_name(CLUSTER, *group) for point in points for group in point.groups}


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("refuse", [set(), {HOLD}], ids=["one topic", "no points"])
def test_checkpoints_that_are_no_point_leave_the_documents_of_the_points(refuse: set[str]) -> None:
    with world() as made:
        cluster = Cluster(made, keep=2)
        take(made, cluster)
        for _ in range(5):
            cluster.refuse = refuse
            take(made, cluster, None if refuse else ["orders"])
        assert len(stored(cluster)) == 1
        assert _named(cluster) <= set(cluster.store.keys(""))
        there = cluster.store.keys(group_prefix(CLUSTER, CONTROLLER_GROUP))
        assert len({parse_name(name).log_index for name in there}) == 1 + 2
        cluster.refuse = set()
        (first,) = [group for group in _named(cluster) if group in there]
        for _ in range(KEPT_POINTS):
            take(made, cluster)
        assert first not in cluster.store.keys("")
        assert _named(cluster) <= set(cluster.store.keys(""))


def test_documents_of_a_point_that_is_on_its_way_stay_whatever_else_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with world() as made:
        cluster = Cluster(made, keep=1)
        put, waits, goes_on = RestorePoints.put, asyncio.Event(), asyncio.Event()

        async def late(points: RestorePoints, held: Holding, groups: Sequence[GroupState]) -> int:
            waits.set()
            await goes_on.wait()
            return await put(points, held, groups)

        monkeypatch.setattr(RestorePoints, "put", late)
        slow = cluster.nodes[1].loop.create_task(cluster.coordinators[2].take(None, 60_000, 100.0))
        made.run(made.now + 5)
        assert waits.is_set(), "its documents are stored, and the point is not"
        for _ in range(4):
            assert take(made, cluster, ["orders"]).complete
        cluster.nodes[1].loop.call_soon(goes_on.set)
        assert made.run_until(slow.done, timeout=60.0, step=0.1)
        assert slow.result().restore_point is not None
        assert _named(cluster) <= set(cluster.store.keys(""))


@pytest.mark.usefixtures("at_once")
def test_nothing_of_the_controller_goes_while_a_point_cannot_be_read() -> None:
    with world() as made:
        cluster = Cluster(made, keep=1)
        take(made, cluster)
        (name,) = cluster.store.keys(points_prefix(CLUSTER))
        whole = cluster.store.objects[name]
        cluster.store.put(name, whole[:-9])
        for _ in range(3):
            assert take(made, cluster, ["orders"]).complete
        there = cluster.store.keys(group_prefix(CLUSTER, CONTROLLER_GROUP))
        assert len({parse_name(name).log_index for name in there}) == 4
        cluster.store.put(name, whole)
        take(made, cluster, ["orders"])
        there = cluster.store.keys(group_prefix(CLUSTER, CONTROLLER_GROUP))
        assert len({parse_name(name).log_index for name in there}) == 2


def test_a_point_is_one_though_the_points_before_it_cannot_be_deleted() -> None:
    with world() as made:
        cluster = Cluster(made)
        for _ in range(KEPT_POINTS):
            take(made, cluster)
        works = cluster.store.delete

        def fail(*_: Any) -> Any:
            raise StoreError("delete", "key", "simulated", retriable=True)

        cluster.store.delete = fail  # type: ignore[method-assign,assignment]
        assert take(made, cluster).restore_point is not None
        assert len(stored(cluster)) == KEPT_POINTS + 1
        cluster.store.delete = works  # type: ignore[method-assign]
        take(made, cluster)
        assert len(stored(cluster)) == KEPT_POINTS


def test_a_checkpoint_that_lacks_a_group_is_no_point() -> None:
    with world() as made:
        cluster = Cluster(made)
        cluster.leaderless = {4}
        report = take(made, cluster, timeout=4.0)
        assert (report.restore_point, report.no_restore_point) == (
            None,
            "1 of 6 groups have no document of it",
        )
        assert not stored(cluster)


def test_there_is_no_point_unless_every_live_node_holds_still() -> None:
    with world() as made:
        cluster = Cluster(made)
        cluster.refuse = {HOLD}
        report = take(made, cluster)
        assert report.complete
        assert "node 1 does not hold its transactions still" in str(report.no_restore_point)


def test_there_is_no_point_after_a_hold_that_ended_by_itself() -> None:
    with world() as made:
        cluster = Cluster(made)
        cluster.leaderless = {4}
        report = take(made, cluster, timeout=4 * MAX_HOLD_SECONDS)
        assert "the hold is over" in str(report.no_restore_point)


class Led:
    """A coordinator of transactions that node 1 leads."""

    def __init__(self) -> None:
        self.term = 7
        self.confirmed = True

    async def settle(self) -> None:
        pass

    async def confirm(self) -> bool:
        return self.confirmed


def _points(cluster: Cluster) -> RestorePoints:
    return RestorePoints(cast(CheckpointContext, cluster.context(1)))


@pytest.mark.parametrize("change", ["term", "deposed"])
def test_there_is_no_point_when_a_coordinator_of_transactions_changed_its_leader(change: str) -> None:
    with world() as made:
        cluster, led = Cluster(made), Led()
        topic = cluster.control(CreateInternalTopic(topic_id(9), TRANSACTIONS_TOPIC, 1, 3))
        group = topic.partitions[0].group
        points = _points(cluster)

        async def missing() -> None:
            with pytest.raises(NoRestorePoint, match=f"no leader that is ready, as that of group {group}"):
                await points.begin()

        async def changed() -> None:
            await points.end(await points.begin())
            held = await points.begin()
            led.term, led.confirmed = (8, True) if change == "term" else (7, False)
            with pytest.raises(NoRestorePoint, match="changed its leader meanwhile"):
                await points.end(held)

        run(made, cluster.nodes[0], missing())
        cluster.led = [(group, led)]
        made.run(made.now + MAX_HOLD_SECONDS)
        run(made, cluster.nodes[0], changed())


def test_there_is_no_point_when_the_first_transaction_began_meanwhile() -> None:
    with world() as made:
        cluster = Cluster(made)
        points = _points(cluster)

        async def begun() -> None:
            held = await points.begin()
            cluster.control(CreateInternalTopic(topic_id(9), TRANSACTIONS_TOPIC, 1, 3))
            with pytest.raises(NoRestorePoint, match="the first transaction began meanwhile"):
                await points.end(held)

        run(made, cluster.nodes[0], begun())


def publishing(made: World, cluster: Cluster, seconds: float) -> RestorePublishing:
    context: Any = cluster.context(1)
    context.config.checkpoints.interval = seconds
    context.config.node = SimpleNamespace(id=1)
    return RestorePublishing(
        cast(CheckpointContext, context), cluster.coordinators[1], loop=cluster.nodes[0].loop
    )


def test_points_are_taken_now_and_then_and_a_point_that_is_not_followed_keeps_its_leases() -> None:
    with world() as made:
        cluster = Cluster(made)
        part = publishing(made, cluster, 100.0)
        cluster.nodes[0].call(part.start)
        made.run(made.now + 50.0)
        assert not stored(cluster)
        made.run(made.now + 15.0)
        assert len(stored(cluster)) == 1, "the first comes within a minute"
        write(cluster, 2)
        made.run(made.now + 90.0)
        assert len(stored(cluster)) == 1
        made.run(made.now + 15.0)
        _, newest = points = list(stored(cluster))
        cluster.leaderless = {4}
        cluster.now_ms += 100_000
        made.run(made.now + 130.0)
        assert list(stored(cluster)) == points
        assert lease_of(cluster, stored(cluster)[newest], 1) == cluster.now_ms + 3 * 100_000 + 60_000
        cluster.nodes[0].call(part.close)


def write(cluster: Cluster, group: int) -> None:
    """A record, on all replicas."""
    for replica in cluster.replicas[group].values():
        replica.write()


def write_and_take(made: World, cluster: Cluster) -> None:
    write(cluster, 5)
    take(made, cluster, ["clicks"], node=2)


def lease_of(cluster: Cluster, point: RestorePoint, group: int) -> int:
    (named,) = [one for one in point.groups if one.group == group]
    kept = {one.log_index: one for one in cluster.replicas[group][1].machine.checkpoints.retained}
    return kept[named.log_index].lease_until


def points_by_time(cluster: Cluster, made: World, change: Callable[[], object]) -> list[int]:
    """The number of points before a change, an interval after it, and long after that."""
    part = publishing(made, cluster, 100.0)
    cluster.nodes[0].call(part.start)
    made.run(made.now + 1_000.0)
    counts = [len(stored(cluster))]
    change()
    for seconds in (115.0, 1_000.0):
        made.run(made.now + seconds)
        counts.append(len(stored(cluster)))
    cluster.nodes[0].call(part.close)
    return counts


@pytest.mark.parametrize("change", ["record", "topic", "rules", "other checkpoint", "nothing"])
def test_a_point_is_taken_only_when_there_is_something_new(change: str) -> None:
    with world() as made:
        cluster = Cluster(made)
        changes: dict[str, Callable[[], object]] = {
            "record": lambda: write(cluster, 5),
            "topic": lambda: cluster.create(3, "new", 1),
            "rules": lambda: cluster.control(AlterAcls((RULE,), ())),
            # What is written before a checkpoint of one topic is in no point.
            "other checkpoint": partial(write_and_take, made, cluster),
            "nothing": lambda: None,
        }
        counts = points_by_time(cluster, made, changes[change])
        assert counts == ([1, 1, 1] if change == "nothing" else [1, 2, 2])


def test_a_point_of_a_quiet_cluster_is_kept_and_nothing_is_put() -> None:
    with world() as made:
        cluster = Cluster(made)
        part = publishing(made, cluster, 100.0)
        cluster.nodes[0].call(part.start)
        made.run(made.now + 100.0)
        ((_, point),) = stored(cluster).items()
        names = cluster.store.keys("")
        for _ in range(5):
            cluster.now_ms += 100_000
            made.run(made.now + 100.0)
        assert cluster.store.keys("") == names
        assert lease_of(cluster, point, 1) >= cluster.now_ms + 2 * 100_000
        # The nodes were away for longer than the lease: what the point names may be gone.
        cluster.now_ms += 1_000_000
        made.run(made.now + 120.0)
        assert len(stored(cluster)) == 2
        cluster.nodes[0].call(part.close)


def test_a_new_leader_takes_its_first_point_when_the_last_one_is_an_interval_old() -> None:
    with world() as made:
        cluster = Cluster(made)
        take(made, cluster)
        write(cluster, 1)
        cluster.now_ms += 70_000
        part = publishing(made, cluster, 100.0)
        cluster.nodes[0].call(part.start)
        made.run(made.now + 25.0)
        assert len(stored(cluster)) == 1
        made.run(made.now + 15.0)
        assert len(stored(cluster)) == 2
        cluster.nodes[0].call(part.close)


@pytest.mark.parametrize("fault", ["refuse", "leaderless", "restart"])
def test_what_a_leader_does_not_know_of_counts_as_new(fault: str) -> None:
    with world() as made:
        cluster = Cluster(made)
        number = take(made, cluster).restore_point or 0
        changes = cluster.coordinators[1].changes

        async def look() -> bool:
            return await changes.since(stored(cluster)[number])

        assert not run(made, cluster.nodes[0], look())
        if fault == "refuse":
            cluster.refuse = {CHANGED}
        elif fault == "leaderless":
            cluster.leaderless = {3}
        else:
            changes.forget_controller()
        assert run(made, cluster.nodes[0], look())


def test_a_cluster_without_topics_takes_no_point() -> None:
    with world() as made:
        cluster = Cluster(made)
        for number in (1, 2):
            cluster.control(DeleteTopic(topic_id(number)))
        part = publishing(made, cluster, 100.0)
        cluster.nodes[0].call(part.start)
        made.run(made.now + 500.0)
        assert not stored(cluster)
        cluster.create(3, "first", 1)
        made.run(made.now + 65.0)
        assert len(stored(cluster)) == 1
        cluster.nodes[0].call(part.close)


def test_points_come_less_often_with_many_groups_and_never_where_that_is_off() -> None:
    with world() as made:
        cluster = Cluster(made)
        assert publishing(made, cluster, 0.5).interval > 0.5
        part = publishing(made, cluster, 0.0)
        cluster.nodes[0].call(part.start)
        made.run(made.now + 100.0)
        assert not stored(cluster)


@pytest.mark.parametrize(
    ("leads", "applied", "changed"), [(True, 9, False), (True, 10, True), (False, 9, True), (None, 9, True)]
)
def test_any_later_entry_of_a_coordinator_is_new(leads: bool | None, applied: int, changed: bool) -> None:
    raft = SimpleNamespace(is_leader=leads, applied=applied)
    served: list[Any] = []
    context: Any = SimpleNamespace(
        calls=SimpleNamespace(serve=lambda method, handler: served.append(handler)),
        host=SimpleNamespace(groups={} if leads is None else {7: raft}),
        partitions=SimpleNamespace(by_group=lambda group: None),
    )
    Changes(context)
    (answer,) = served
    assert asyncio.run(answer(1, [[7, 9]])) is changed
    with pytest.raises(CallFailed):
        asyncio.run(answer(1, [[7]]))


def test_what_comes_beside_a_checkpoint_is_new() -> None:
    """It may have come behind the checkpoint's entry, before its leader heard of that."""
    with world() as made:
        cluster = Cluster(made)
        cluster.beside = lambda group: write(cluster, group) if group == 5 else None
        number = take(made, cluster).restore_point or 0
        changes = cluster.coordinators[1].changes

        async def look() -> bool:
            return await changes.since(stored(cluster)[number])

        assert run(made, cluster.nodes[0], look())


def test_points_of_a_life_before_are_not_gone_on_with() -> None:
    with world() as made:
        cluster = Cluster(made)
        number = take(made, cluster).restore_point or 0
        before = replace(stored(cluster)[number], incarnation="an earlier one")
        cluster.store.objects[point_name(CLUSTER, number)] = before.encode()

        async def newest() -> RestorePoint | None:
            return await _points(cluster).newest()

        assert run(made, cluster.nodes[0], newest()) is None
