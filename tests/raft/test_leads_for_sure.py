"""A leader that need ask no other node whether it leads: by its lease, with all that is committed applied."""

from __future__ import annotations

from unittest.mock import patch

from tests.raft.small_cluster import SETTLE, SmallCluster


def test_a_leader_with_its_lease_leads_for_sure_and_a_follower_does_not() -> None:
    with SmallCluster() as cluster:
        cluster.serve()
        leader, follower = cluster.group(cluster.leader()), cluster.group(cluster.followers()[0])
        assert cluster.world.run_until(lambda: leader.leads_for_sure, timeout=SETTLE)
        assert not follower.leads_for_sure


def test_it_does_not_while_entries_wait_to_be_applied_or_its_own_first_one_does() -> None:
    with SmallCluster() as cluster:
        cluster.serve()
        leader = cluster.group(cluster.leader())
        assert cluster.world.run_until(lambda: leader.leads_for_sure, timeout=SETTLE)

        def is_sure() -> bool:
            return leader.leads_for_sure

        with patch.object(leader, "commit", leader.applied + 1):
            assert not is_sure()
        assert is_sure()
        leader.term_start = leader.applied + 1
        assert not is_sure()


def test_a_leader_that_gave_up_its_lease_has_to_ask() -> None:
    with SmallCluster() as cluster:
        cluster.serve()
        leader = cluster.group(cluster.leader())
        assert cluster.world.run_until(lambda: leader.leads_for_sure, timeout=SETTLE)
        leader.lease_allowed = False  # as once it hands its leadership over
        assert leader.is_ready
        assert not leader.leads_for_sure
