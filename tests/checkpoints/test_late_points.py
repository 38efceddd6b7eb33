"""A node that takes a restore point and the one that prunes, each standing still where it hurts most.

The taker is a process of its own, beside three nodes that go on: they take checkpoints, and the leader of the
controller deletes what they made dispensable. No point may be left that names a document that is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from strandline.node.checkpoints.checkpoint_coordinator import CheckpointCoordinator, CheckpointReport
from strandline.node.checkpoints.checkpoint_pruning import SETTLING_SECONDS
from strandline.node.checkpoints.context import CheckpointContext
from strandline.node.checkpoints.restore_points import POINT_SECONDS
from strandline.node.objectstore.store import ObjectNotFound, StoreError
from strandline.snapshot.names import group_prefix, snapshot_name
from strandline.snapshot.restore_point import decode_point, point_name, points_prefix
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP
from tests.checkpoints.cluster import CONTROLLER_LEADER, Cluster, take
from tests.checkpoints.harness import CLUSTER, world
from tests.level_zero.samples import run, started
from tests.simulation.node import SimNode
from tests.simulation.world import World

Step = tuple[str, str, str]
"""Operation of the store, a part of the key, and "before" its effect or "after"."""
CONTROLLER = group_prefix(CLUSTER, CONTROLLER_GROUP)
POINTS = points_prefix(CLUSTER)


class StandingStore:
    """A node's way to the store, on which something happens before or after the first request of a kind."""

    def __init__(self, store: Any, step: Step, then: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._step: Step | None = step
        self._then = then

    def __getattr__(self, operation: str) -> Any:
        works = getattr(self._store, operation)

        async def request(*args: Any) -> Any:
            key = args[0] if isinstance(args[0], str) else str(args[0])
            await self._at((operation, key, "before"))
            result = await works(*args)
            await self._at((operation, key, "after"))
            return result

        return request

    async def _at(self, now: Step) -> None:
        if self._step is not None and now[::2] == self._step[::2] and self._step[1] in now[1]:
            self._step = None
            await self._then()


class Taker:
    """A process that takes a point of all topics with the state of node 2, and stands still at one step."""

    def __init__(self, made: World, cluster: Cluster, step: Step) -> None:
        self.stands = False
        self.node: SimNode = started(made, 9)
        context = cluster.context(2)
        context.loop = self.node.loop
        context.store = StandingStore(cluster.store.client(self.node), step, self._stand)
        context.calls.serve = lambda method, handler: None
        self.coordinator = CheckpointCoordinator(cast(CheckpointContext, context))
        self.task = self.node.loop.create_task(self.coordinator.take(None, 10_000_000, 60.0))

    async def _stand(self) -> None:
        self.stands = True
        self.node.pause()
        await asyncio.sleep(0)

    def until_it_stands(self, made: World) -> None:
        assert made.run_until(lambda: self.stands, timeout=60.0, step=0.001)
        made.run(made.now + 1)

    def go_on(self, made: World) -> CheckpointReport:
        self.node.resume()
        assert made.run_until(self.task.done, timeout=120.0, step=0.01)
        report: CheckpointReport = self.task.result()
        return report


def whole(cluster: Cluster) -> None:
    """No point names what is gone."""
    for name in cluster.store.keys(POINTS):
        point = decode_point(cluster.store.objects[name])
        gone = [one for one in point.groups if snapshot_name(CLUSTER, *one) not in cluster.store.objects]
        assert gone == [], name


def prune(made: World, cluster: Cluster, times: int = 3) -> None:
    """Checkpoints of one topic, which are no points; each makes the controller's before it dispensable."""
    for _ in range(times):
        assert take(made, cluster, ["orders"]).complete


TAKER_STEPS: list[Step] = [
    ("list", CONTROLLER, "after"),  # the controller's document was found
    ("get", CONTROLLER, "before"),  # and is read
    ("get", CONTROLLER, "after"),
    ("list", POINTS, "before"),
    ("list", POINTS, "after"),
    ("list", "/attempts/", "after"),
    ("put", POINTS, "before"),
    ("put", POINTS, "after"),
    ("size", CONTROLLER, "before"),
]


@pytest.mark.parametrize("step", TAKER_STEPS, ids=" ".join)
def test_a_taker_that_stands_still_leaves_no_point_without_its_documents(step: Step) -> None:
    with world() as made:
        cluster = Cluster(made, keep=1)
        taker = Taker(made, cluster, step)
        taker.until_it_stands(made)
        prune(made, cluster)
        made.run(made.now + SETTLING_SECONDS)
        prune(made, cluster)
        report = taker.go_on(made)
        assert report.restore_point is None
        assert report.no_restore_point is not None
        assert cluster.store.keys(POINTS) == []
        whole(cluster)
        assert take(made, cluster).restore_point is not None


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_taker_that_stands_still_beside_documents_that_are_there_still_takes_its_point_back(
    moment: str,
) -> None:
    """They may be about to go: the leader may have listed the points before this one was put."""
    with world() as made:
        cluster = Cluster(made, keep=1)
        taker = Taker(made, cluster, ("put", POINTS, moment))
        taker.until_it_stands(made)
        made.run(made.now + POINT_SECONDS)
        assert "stood still meanwhile; take another" in str(taker.go_on(made).no_restore_point)
        assert cluster.store.keys(POINTS) == []


def test_a_taker_that_stands_still_for_less_has_its_point() -> None:
    with world() as made:
        cluster = Cluster(made, keep=1)
        taker = Taker(made, cluster, ("put", POINTS, "before"))
        taker.until_it_stands(made)
        prune(made, cluster)
        made.run(made.now + POINT_SECONDS - 30)
        prune(made, cluster)
        assert taker.go_on(made).restore_point is not None
        made.run(made.now + SETTLING_SECONDS)
        prune(made, cluster)
        whole(cluster)


def test_a_listing_of_the_leader_that_hangs_counts_as_of_its_beginning() -> None:
    """A point that it lacks is put while it hangs. By the time of its answer the documents would seem to have
    waited long enough."""
    with world() as made:
        cluster = Cluster(made, keep=1)
        context = cast(Any, cluster.coordinators[CONTROLLER_LEADER])._context
        taker = Taker(made, cluster, ("put", POINTS, "before"))
        taker.until_it_stands(made)
        prune(made, cluster)
        made.run(made.now + POINT_SECONDS - 100)
        hung: list[float] = []

        async def hang() -> None:
            hung.append(made.now)
            await asyncio.sleep(SETTLING_SECONDS)

        context.store = StandingStore(context.store, ("list", POINTS, "after"), hang)
        handler = cluster.handlers[CONTROLLER_LEADER, "checkpoint.remove"]
        asked = cluster.nodes[CONTROLLER_LEADER - 1].loop.create_task(
            cast(Any, handler(1, [CONTROLLER_GROUP, cluster.index]))
        )
        assert made.run_until(lambda: bool(hung), timeout=60.0, step=0.001)
        assert taker.go_on(made).restore_point is not None
        assert made.run_until(asked.done, timeout=SETTLING_SECONDS + 60, step=0.1)
        whole(cluster)
        prune(made, cluster)
        assert len(cluster.store.keys(POINTS)) == 1


def test_a_point_whose_node_ended_before_it_looked_is_deleted_by_the_leader(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with world() as made:
        cluster = Cluster(made, keep=1)
        good = take(made, cluster).restore_point or 0
        taker = Taker(made, cluster, ("put", POINTS, "before"))
        taker.until_it_stands(made)
        prune(made, cluster)
        made.run(made.now + SETTLING_SECONDS)
        prune(made, cluster)
        late = taker.coordinator.points
        cast(Any, late)._check_age = lambda held: None
        cast(Any, late)._confirm = lambda groups: asyncio.sleep(1_000_000)
        taker.node.resume()
        assert made.run_until(lambda: len(cluster.store.keys(POINTS)) == 2, timeout=60.0, step=0.01)
        taker.node.crash("kill")
        prune(made, cluster, 1)
        assert cluster.store.keys(POINTS) == [point_name(CLUSTER, good)]
        assert "which is gone: the point restores nothing and is deleted" in caplog.text
        caplog.clear()
        whole(cluster)


def test_a_point_that_cannot_be_looked_at_or_taken_back_is_no_point_and_is_named() -> None:
    with world() as made:
        cluster = Cluster(made, keep=1)
        points = cluster.coordinators[2].points
        context = cast(Any, points)._context
        works = context.store

        async def fail(*_: Any) -> Any:
            raise StoreError("size", "key", "simulated", retriable=True)

        class Failing:
            def __getattr__(self, operation: str) -> Any:
                return fail if operation in failing else getattr(works, operation)

        context.store, failing = Failing(), {"size"}
        assert "the storage: " in str(take(made, cluster, node=2).no_restore_point)
        assert cluster.store.keys(POINTS) == []
        failing = {"size", "delete_many"}
        report = take(made, cluster, node=2)
        (name,) = cluster.store.keys(POINTS)
        assert f"{name} is left, and restores nothing: delete it" in str(report.no_restore_point)
        with pytest.raises(ObjectNotFound):
            run(made, cluster.nodes[0], cluster.store.client(cluster.nodes[0]).size("nothing"))
