"""A replica that leaves a group keeps what it promised: term, vote, and the end of its log."""

from __future__ import annotations

from tests.raft.members import change, leave
from tests.raft.register_map import RegisterMap
from tests.raft.small_cluster import BUSY, SmallCluster


def led(cluster: SmallCluster) -> tuple[int, int]:
    """The leader of group 1 and a follower of it, under load for a while."""
    cluster.serve()
    cluster.load()
    cluster.run(1.0)
    leader = cluster.leader()
    return leader, cluster.followers()[0]


def test_replica_that_left_refuses_what_it_refused_before_also_after_a_power_cut() -> None:
    with SmallCluster(groups=(1, 2)) as cluster:
        leader, node = led(cluster)
        change(cluster, leader, node, add=False)
        cluster.run(0.5)
        group = cluster.group(node)
        held = group.term, group.vote, group.journal.last, group.journal.last_term
        leave(cluster, node)
        assert 1 not in cluster.hosts[node].groups
        assert cluster.hosts[node].stored_groups() == [1]
        cluster.stop(node, "power")
        cluster.start(node)
        cluster.run(0.5)
        again = cluster.group(node)
        assert (again.term, again.vote, again.journal.last, again.journal.last_term) == held
        assert again.voters == ()
        assert not again.election.has_vote(), "whether it is a member, only the leader can say"
        last, last_term = held[2:]
        assert not again.election.is_up_to_date(last - 1, last_term)
        assert again.election.is_up_to_date(last, last_term)
        assert cluster.machine(node).snapshot() == RegisterMap().snapshot(), "its state is gone"
        assert again.damaged_below


def test_replica_that_left_comes_back_by_its_leader_and_has_everything() -> None:
    with SmallCluster(groups=(1, 2)) as cluster:
        leader, node = led(cluster)
        change(cluster, leader, node, add=False)
        leave(cluster, node)
        cluster.stop(node)
        cluster.start(node)
        cluster.run(1.0)
        change(cluster, cluster.leader(), node, add=True)
        cluster.run(1.0)
        cluster.unload()
        cluster.run(1.0)
        assert node in cluster.group(cluster.leader()).voters
        machines = [cluster.machine(each).snapshot() for each in (1, 2, 3)]
        assert len(set(machines)) == 1
        assert not cluster.failed
        assert len(cluster.acked[1]) > 100


def test_promises_of_a_replica_that_left_do_not_keep_the_log_from_getting_shorter() -> None:
    with SmallCluster(groups=(1, 2)) as cluster:
        leader, node = led(cluster)
        change(cluster, leader, node, add=False)
        leave(cluster, node)
        stored = cluster.hosts[node].stored.log(1)
        assert stored is not None
        held = stored.term, stored.vote, stored.entries[-1][1:]
        wal = cluster.hosts[node].wal
        left_in = wal.current_segment
        cluster.unload()
        cluster.load(size=2000, pause=0.05)
        cluster.run(3 * cluster.raft.stuck_seconds)
        assert wal.first_segment > left_in + BUSY.max_wal_segments
        cluster.stop(node, "power")
        cluster.start(node)
        cluster.run(0.5)
        again = cluster.group(node)
        assert (again.term, again.vote, (again.journal.last, again.journal.last_term)) == held
