"""Whether a leader has a lease, as `RaftGroup.has_lease` counts it, but asked from outside."""

from __future__ import annotations

from strandline.node.raft.group import RaftGroup
from strandline.node.raft.host import RaftHost
from strandline.node.raft.rules.progress import majority_of


def holds_lease(host: RaftHost, group: RaftGroup) -> bool:
    """Whether a read on this node would be answered without asking any other.

    No lease outlives a clock that was set back, and the host alone is to notice that (`RaftHost.now`).
    """
    now = host.loop.time() + host.clock._behind
    if not group.is_leader or not group.lease_allowed or now < host.clock._newest:
        return False
    heard = majority_of(now if node == host.node_id else group.lease.acked_at(node) for node in group.voters)
    return heard + host.config.lease_seconds > now
