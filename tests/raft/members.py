"""Changes of a group's members in a small cluster, each awaited."""

from __future__ import annotations

from tests.raft.small_cluster import SmallCluster


def change(cluster: SmallCluster, leader: int, node: int, *, add: bool) -> None:
    """Have the leader of group 1 add or remove a member, and wait for the end of it."""
    ended: list[object] = []

    def begin() -> None:
        group = cluster.group(leader)
        future = group.add_member(node) if add else group.remove_member(node)
        future.add_done_callback(lambda done: ended.append(done.result()))

    cluster.world.nodes[leader].call(begin)
    assert cluster.world.run_until(lambda: bool(ended), timeout=20)


def leave(cluster: SmallCluster, node: int) -> None:
    cluster.world.nodes[node].call(cluster.hosts[node].leave_group, 1)
    cluster.run(1.0)
