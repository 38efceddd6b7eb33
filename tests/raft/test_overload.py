"""A cluster that has too much to do comes back by itself, and loses no leader that it need not lose."""

from __future__ import annotations

import random

import pytest

from strandline.node.raft import clock
from strandline.node.raft.attention import Attention
from tests.raft.slow_loop import SlowCluster

GROUPS = 400
CALL_SECONDS = 0.0002
"""Some six times what a call takes: as much work as a few thousand groups are."""
BACK_SECONDS = 5.0


def settled(cluster: SlowCluster) -> bool:
    return cluster.all_led() and all(not each.ticker.active for each in cluster.hosts.values())


class CountsTimeItWasNotThere(Attention):
    def clock(self, now: float) -> float:
        return now

    def since(self, moment: float, now: float) -> float:
        return now - moment


@pytest.mark.parametrize("seed", range(3))
def test_after_an_overload_all_groups_are_led_and_terms_stand_still(seed: int) -> None:
    comes_back(seed)


def comes_back(seed: int) -> None:
    with SlowCluster(GROUPS, CALL_SECONDS, seed=seed) as cluster:
        cluster.start()
        assert cluster.world.run_until(cluster.all_led, timeout=20), "created"
        with cluster.overload(random.Random(seed), stalls=0.5, call_seconds=4 * CALL_SECONDS):
            cluster.run(10.0)
        assert cluster.world.run_until(cluster.all_led, timeout=BACK_SECONDS), "led again"
        cluster.run(BACK_SECONDS)
        terms = cluster.terms()
        cluster.run(10.0)
        assert cluster.terms() == terms
        assert settled(cluster)
        cluster.world.check()


@pytest.mark.parametrize("seed", range(3))
def test_loops_that_stand_still_for_less_than_a_promise_cost_no_leader(seed: int) -> None:
    keeps_its_leaders(seed)


def test_by_the_clock_alone_they_cost_leaders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "Attention", CountsTimeItWasNotThere)
    with pytest.raises(AssertionError):
        keeps_its_leaders(0)


def keeps_its_leaders(seed: int) -> None:
    with SlowCluster(GROUPS, CALL_SECONDS, seed=seed) as cluster:
        cluster.start()
        assert cluster.world.run_until(cluster.all_led, timeout=20), "created"
        cluster.run(2.0)
        terms = cluster.terms()
        with cluster.overload(random.Random(seed), stalls=0.3, call_seconds=CALL_SECONDS):
            cluster.run(20.0)
        assert cluster.terms() == terms


def test_a_node_that_dies_among_many_groups_is_replaced_and_comes_back_without_more_elections() -> None:
    with SlowCluster(GROUPS, CALL_SECONDS) as cluster:
        cluster.start()
        assert cluster.world.run_until(cluster.all_led, timeout=20), "created"
        cluster.run(2.0)
        cluster.stop(2)
        assert cluster.world.run_until(cluster.all_led, timeout=BACK_SECONDS), "led by the others"
        cluster.run(2.0)
        cluster.start(2)
        cluster.run(BACK_SECONDS)
        terms = cluster.terms()
        # A third of the groups were led by it: one election each, and hardly a second one.
        assert terms < 3 * GROUPS * 1.4
        cluster.run(BACK_SECONDS)
        assert cluster.terms() == terms
        assert settled(cluster)
