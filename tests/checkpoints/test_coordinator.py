"""A checkpoint of whole topics: who is asked, what is waited for, and what the report says."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.node.checkpoints.checkpoint_coordinator import METHOD, UnknownTopic
from strandline.node.controller.leaders import Leader
from strandline.node.rpc import CallFailed
from strandline.snapshot.names import checkpoint_prefix, snapshot_name
from strandline.statemachine.controller.controller_commands import FenceNode
from tests.checkpoints.cluster import LEASE_MS, NODES, Cluster, take
from tests.checkpoints.harness import CLUSTER, world
from tests.level_zero.samples import run


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
    return await cluster.handlers[1, METHOD](2, payload)
