"""A checkpoint of whole topics: who is asked, what is waited for, and what the report says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from node.checkpoints.coordinator import (
    METHOD,
    CheckpointContext,
    CheckpointCoordinator,
    CheckpointReport,
    UnknownTopic,
)
from node.checkpoints.recorder import CheckpointRecorder, Place, TailBudget
from node.controller.client import Unavailable
from node.controller.leaders import Leader
from node.mesh_calls import CallFailed
from snapshot.names import checkpoint_prefix, snapshot_name
from statemachine.controller import Controller
from statemachine.controller_commands import Bootstrap, Command, CreateTopic, FenceNode, encode
from statemachine.partition_commands import Checkpoint, CheckpointTaken
from tests.checkpoints.harness import CLUSTER, Replica, publisher, world
from tests.level_zero.samples import run, started
from tests.simulation.store import SimStore
from tests.simulation.world import World
from tests.statemachine.controller_harness import registration, topic_id

NODES = (1, 2, 3)
LEASE_MS = 60_000


class Cluster:
    """Three nodes that live in one process: groups apply on every node that is up, at once.

    `down` are nodes that apply nothing and answer nothing; `leaderless` are groups nobody leads.
    """

    def __init__(self, made: World) -> None:
        self.nodes = [started(made, node) for node in NODES]
        self.store = SimStore(made)
        self.down: set[int] = set()
        self.leaderless: set[int] = set()
        self.lose_answers = 0
        self.calls: list[tuple[int, int]] = []
        self.handlers: dict[int, Callable[[int, Any], Awaitable[Any]]] = {}
        self.publishers = {node.id: publisher(node, self.store) for node in self.nodes}
        self.recorders: dict[int, CheckpointRecorder] = {}
        self.controllers: dict[int, Controller] = {}
        for node in NODES:
            recorder = CheckpointRecorder(
                cluster=CLUSTER,
                kind="controller",
                group=0,
                place=lambda index: Place(1, NODES, ()),
                publisher=self.publishers[node],
                budget=TailBudget(),
            )
            self.recorders[node] = recorder
            self.controllers[node] = Controller(recorder.checkpoint)
        self.index = 1
        for node in NODES:
            self.recorders[node].begin_term(1, 1, 1)
            self.controllers[node].begin_term(1, 1, 1)
        self.control(Bootstrap(CLUSTER))
        for node in NODES:
            self.control(registration(node))
        self.replicas: dict[int, dict[int, Replica]] = {}
        for number, (name, count) in enumerate((("orders", 3), ("clicks", 2)), 1):
            topic = self.control(CreateTopic(topic_id(number), name, count, 3, None, [], self.index))
            for partition in topic.partitions:
                self.replicas[partition.group] = {
                    node: Replica(self.publishers[node], group=partition.group) for node in NODES
                }
                for replica in self.replicas[partition.group].values():
                    replica.begin_term(1)
                    replica.write()
        self.coordinators = {
            node.id: CheckpointCoordinator(cast(CheckpointContext, self._context(node.id)))
            for node in self.nodes
        }

    def _context(self, node: int) -> SimpleNamespace:
        return SimpleNamespace(
            config=SimpleNamespace(
                cluster=SimpleNamespace(id=CLUSTER, nodes=[SimpleNamespace(id=peer) for peer in NODES])
            ),
            loop=self.nodes[node - 1].loop,
            calls=SimpleNamespace(
                call=self.call, serve=lambda method, handler: self.handlers.__setitem__(node, handler)
            ),
            controller=SimpleNamespace(machine=self.controllers[node], submit=self.submit),
            leaders=SimpleNamespace(leader_of=lambda group: self.leader_of(group)),
            store=self.store.client(self.nodes[node - 1]),
            partitions=SimpleNamespace(by_group=lambda group: self._partition(group, node)),
        )

    def control(self, command: Command) -> Any:
        self.index += 1
        result = None
        for node in NODES:
            if node not in self.down:
                self.recorders[node].applied(self.index, 1, encode(command))
                result = self.controllers[node].apply(self.index, 1, encode(command))
        return result

    async def submit(self, command: Command, timeout: float) -> Any:  # noqa: ASYNC109
        if 0 in self.leaderless:
            await asyncio.sleep(timeout)
            return Unavailable("the controller has no leader", unknown=False)
        return self.control(command)

    def leader_of(self, group: int) -> Leader | None:
        return None if group in self.leaderless else Leader(group % 3 + 1, 1)

    async def call(self, node: int, method: str, payload: Any, timeout: float) -> Any:  # noqa: ASYNC109
        assert method == METHOD
        self.calls.append((node, payload[0]))
        await asyncio.sleep(0.001)
        if node in self.down:
            raise CallFailed(f"node {node} is not connected", unknown=False)
        answer = await self.handlers[node](1, payload)
        if self.lose_answers:
            self.lose_answers -= 1
            raise CallFailed("the connection was lost", unknown=True)
        return answer

    def _partition(self, group: int, node: int) -> SimpleNamespace | None:
        async def execute(command: Checkpoint) -> Any:
            leader = self.leader_of(group)
            if leader is None or leader.node != node:
                return SimpleNamespace(__str__=lambda self: "not the leader")
            up = [replica for peer, replica in self.replicas[group].items() if peer not in self.down]
            indexes = [replica.apply(command) for replica in up]
            return CheckpointTaken(indexes[0], 0)

        return SimpleNamespace(execute=execute) if group in self.replicas else None


def take(
    made: World, cluster: Cluster, topics: list[str] | None = None, *, node: int = 1, timeout: float = 10.0
) -> CheckpointReport:
    coordinator = cluster.coordinators[node]
    return run(made, cluster.nodes[node - 1], coordinator.take(topics, LEASE_MS, timeout))


def test_every_partition_and_then_the_controller_from_any_node() -> None:
    with world() as made:
        cluster = Cluster(made)
        began = made.now
        report = take(made, cluster, node=2)
        assert made.now - began < 2
        assert report.complete
        assert [(part.topic, part.partition, part.group) for part in report.checkpoints] == [
            ("orders", 0, 1),
            ("orders", 1, 2),
            ("orders", 2, 3),
            ("clicks", 0, 4),
            ("clicks", 1, 5),
            (None, None, 0),
        ]
        for part in report.checkpoints:
            assert part.index is not None
            assert (part.published_by, part.missing, part.error) == (NODES, (), None)
            names = {snapshot_name(CLUSTER, part.group, part.index, node) for node in NODES}
            assert names < set(cluster.store.keys(checkpoint_prefix(CLUSTER, part.group, part.index)))
        # Each group's leader was asked once, and the lease is what was asked for.
        assert sorted(cluster.calls, key=lambda call: call[1]) == [(g % 3 + 1, g) for g in range(1, 6)]
        (retained,) = cluster.replicas[1][1].machine.checkpoints.retained
        assert retained.lease_until == 1_000 + LEASE_MS
        assert report.as_dict()["complete"] is True
        assert report.as_dict()["checkpoints"][0]["published_by"] == NODES


def test_only_the_topics_asked_for() -> None:
    with world() as made:
        cluster = Cluster(made)
        report = take(made, cluster, ["clicks"])
        assert [part.group for part in report.checkpoints] == [4, 5, 0]
        with pytest.raises(UnknownTopic, match="no topic missing, gone"):
            take(made, cluster, ["missing", "orders", "gone"])
        assert len(cluster.calls) == 2


def test_a_node_that_is_down_is_missing_until_it_is_fenced() -> None:
    with world() as made:
        cluster = Cluster(made)
        cluster.down = {3}
        report = take(made, cluster, ["orders"], timeout=5.0)
        assert not report.complete
        by_group = {part.group: part for part in report.checkpoints}
        assert by_group[1].published_by == (1, 2)
        assert by_group[1].missing == (3,)
        assert by_group[2].index is None  # node 3 leads it
        assert by_group[2].missing == NODES
        assert "node 3, its leader: node 3 is not connected" in str(by_group[2].error)

        heard = cluster.controllers[1].nodes[3].heard_index
        cluster.control(FenceNode(3, heard, 1))
        cluster.leader_of = lambda group: Leader(1, 2)  # type: ignore[method-assign]
        began = made.now
        assert take(made, cluster, ["orders"], timeout=5.0).complete
        assert made.now - began < 2


def test_a_leader_that_appears_in_time_is_found() -> None:
    with world() as made:
        cluster = Cluster(made)
        cluster.leaderless = {1}
        made.call_later(3.0, cluster.leaderless.clear)
        report = take(made, cluster)
        assert report.complete
        cluster.leaderless = {1}
        report = take(made, cluster, timeout=2.0)
        assert "no leader is known" in str(report.checkpoints[0].error)


def test_a_lost_answer_takes_another_checkpoint() -> None:
    with world() as made:
        cluster = Cluster(made)
        cluster.lose_answers = 1
        assert take(made, cluster, ["clicks"]).complete
        assert len(cluster.calls) == 3


def test_without_a_controller_leader_it_ends_in_time_and_says_so() -> None:
    with world() as made:
        cluster = Cluster(made)
        cluster.leaderless = {0}
        began = made.now
        report = take(made, cluster, timeout=3.0)
        assert made.now - began < 3.5
        assert not report.complete
        assert report.checkpoints[-1].index is None
        assert report.checkpoints[-1].error


def test_a_store_that_is_away_leaves_everything_missing_and_comes_back() -> None:
    with world() as made:
        cluster = Cluster(made)
        cluster.store.refused = 1.0
        report = take(made, cluster, ["clicks"], timeout=3.0)
        assert [part.missing for part in report.checkpoints] == [NODES] * 3
        assert all(part.index for part in report.checkpoints)
        assert "cannot be listed" in str(report.checkpoints[0].error)
        made.call_later(2.0, lambda: setattr(cluster.store, "refused", 0.0))
        assert take(made, cluster, ["clicks"], timeout=20.0).complete


def test_a_call_that_makes_no_sense_is_refused() -> None:
    with world() as made:
        cluster = Cluster(made)
        for payload in ([1], ["1", 5], [1, -1], None):
            with pytest.raises(CallFailed) as failed:
                run(made, cluster.nodes[0], _call(cluster, payload))
            assert not failed.value.unknown
        assert run(made, cluster.nodes[0], _call(cluster, [99, 5])) == "it has no replica of the group"


async def _call(cluster: Cluster, payload: Any) -> Any:
    return await cluster.handlers[1](2, payload)
