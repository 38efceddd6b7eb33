"""A node that is drained of its leaderships: hosts in the simulated world."""

from __future__ import annotations

import pytest

from tests.raft.register_map import RegisterMap
from tests.raft.small_cluster import SETTLE, SmallCluster

GROUPS = [1, 2]


def led(cluster: SmallCluster, node: int) -> list[int]:
    """The groups that a node leads."""
    host = cluster.hosts.get(node)
    return [] if host is None else [group.id for group in host.groups.values() if group.is_leader]


def drained(cluster: SmallCluster, seconds: float) -> tuple[int, int, int]:
    """A node that led something and is drained, one that leads now, and the third."""
    cluster.serve()
    node = cluster.leader()
    assert cluster.hosts[node].leader_drain.seconds_left is None
    assert cluster.hosts[node].leader_drain.for_a_while(seconds)
    assert cluster.world.run_until(lambda: not led(cluster, node) and cluster.all_led(), timeout=2.0)
    one, other = (each for each in cluster.voters if each != node)
    return node, one, other


def test_a_node_hands_over_all_it_leads_and_another_takes_over_when_the_next_leader_dies() -> None:
    with SmallCluster() as cluster:
        node, one, other = drained(cluster, 20.0)
        left = cluster.hosts[node].leader_drain.seconds_left
        assert left is not None
        assert 15.0 < left < 20.0
        cluster.stop(one)
        assert cluster.world.run_until(lambda: led(cluster, other) == GROUPS, timeout=SETTLE)
        cluster.run(3.0)
        assert led(cluster, other) == GROUPS
        assert cluster.hosts[node].leaving


def test_the_node_may_lead_again_when_its_time_is_over() -> None:
    with SmallCluster() as cluster:
        node, one, other = drained(cluster, 5.0)
        drain = cluster.hosts[node].leader_drain
        assert cluster.world.run_until(lambda: drain.seconds_left is None, timeout=6.0)
        cluster.stop(one)
        cluster.hosts[other].leader_drain.for_a_while(60.0)
        assert cluster.world.run_until(lambda: led(cluster, node) == GROUPS, timeout=SETTLE)


def test_a_drain_ends_when_a_group_finds_no_leader_without_the_node() -> None:
    """It alone may have an entry that is committed: the third node was away when the last leader wrote it."""
    with SmallCluster() as cluster:
        node, one, other = drained(cluster, 60.0)
        cluster.stop(one)
        assert cluster.world.run_until(lambda: led(cluster, other) == GROUPS, timeout=SETTLE)
        cluster.stop(other)
        cluster.start(one)  # which lacks what `other` wrote as a new leader
        assert cluster.world.run_until(cluster.all_led, timeout=SETTLE)
        assert led(cluster, node)
        assert cluster.hosts[node].leader_drain.seconds_left is None


def test_a_replica_that_joins_and_hears_no_leader_yet_ends_no_drain() -> None:
    """No group needs it: it has no vote, and its leader sends to new replicas a few at a time."""
    with SmallCluster() as cluster:
        node, _, _ = drained(cluster, 60.0)
        host = cluster.hosts[node]
        cluster.world.nodes[node].call(lambda: host.create_group(20, RegisterMap()))
        cluster.run(10.0)
        assert host.groups[20].leader is None
        assert host.leader_drain.seconds_left is not None


def test_a_replica_that_failed_here_ends_no_drain() -> None:
    with SmallCluster() as cluster:
        node, _, _ = drained(cluster, 60.0)
        group = cluster.group(node)

        def fail() -> None:
            group.stop(RuntimeError("broken"), "it is broken")
            group.leader = None

        cluster.world.nodes[node].call(fail)
        cluster.run(10.0)
        assert (group.leader, cluster.hosts[node].leader_drain.seconds_left is None) == (None, False)


def test_a_second_drain_takes_the_place_of_the_first() -> None:
    """Ending it ends both: what the node leads then it keeps."""
    with SmallCluster() as cluster:
        node, _, _ = drained(cluster, 60.0)
        drain = cluster.hosts[node].leader_drain
        assert drain.for_a_while(30.0)
        assert drain.seconds_left is not None
        assert drain.seconds_left <= 30.0
        drain.end()
        for group in GROUPS:
            (leader,) = cluster.leaders(group)
            cluster.world.nodes[leader].call(cluster.group(leader, group).transfer, node)
        assert cluster.world.run_until(lambda: led(cluster, node) == GROUPS, timeout=SETTLE)
        cluster.run(3.0)
        assert led(cluster, node) == GROUPS


def test_a_drain_that_is_ended_lets_the_node_lead_and_one_for_good_does_not_end() -> None:
    with SmallCluster() as cluster:
        cluster.serve()
        drain = cluster.hosts[1].leader_drain
        drain.for_a_while(20.0)
        assert cluster.hosts[1].leaving
        drain.end()
        assert (cluster.hosts[1].leaving, drain.seconds_left) == (False, None)
        drain.for_a_while(20.0)
        drain.for_good()
        assert not drain.for_a_while(1.0)
        drain.end()
        assert cluster.hosts[1].leaving
        assert not cluster.world.run_until(lambda: not cluster.hosts[1].leaving, timeout=30.0)


@pytest.mark.parametrize("third_is_there", [False, True])
def test_two_voters_that_are_drained_settle_on_one_leader_of_each_group(third_is_there: bool) -> None:
    """They do not hand a group to each other and back; where the third is away, the one that led serves."""
    with SmallCluster() as cluster:
        cluster.serve()
        one = cluster.leader()
        other, third = (each for each in cluster.voters if each != one)
        if not third_is_there:
            cluster.stop(third)
            cluster.run(3.0)
        for node in (one, other):
            assert cluster.hosts[node].leader_drain.for_a_while(60.0)
        cluster.run(3.0)
        before = {group: (cluster.leaders(group), cluster.group(one, group).term) for group in GROUPS}
        assert all(len(leaders) == 1 for leaders, _ in before.values())
        cluster.load()
        cluster.run(20.0)
        cluster.unload()
        assert before == {group: (cluster.leaders(group), cluster.group(one, group).term) for group in GROUPS}
        assert led(cluster, third) == (GROUPS if third_is_there else [])
        for group in GROUPS:
            # A transfer that is declined refuses the commands of a moment.
            assert len(cluster.refused[group]) < len(cluster.acked[group]) / 4
            assert len(cluster.acked[group]) > 1000
