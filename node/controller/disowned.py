"""The other nodes' word on this node's data folder, for an operator."""

from __future__ import annotations

from strandline.node.raft.host import RaftHost


def disowned(host: RaftHost) -> str | None:
    """That others know this node by another data folder, in one line; None if no peer said so lately."""
    if not host.mesh.strangers.is_disowned():
        return None
    node = host.node_id
    known = (
        f"the other nodes know node {node} by another data folder, whose votes and acknowledged"
        " entries this one lacks"
    )
    cure = f"let this one in with `strandline node replace {node}`"
    if host.folder.newcomer:
        return (
            f"{known}, since it is empty: bring that folder back, or {cure}; with"
            " cluster.replace_lost_disks the others let it in by themselves within a minute"
        )
    return (
        f"{known}, and it is not empty: it may be an older copy, or one from before this node was"
        " replaced, or removed: bring that folder back, or, if that one is lost or the node was"
        f" removed, start this node with an empty one, then `strandline node replace {node}`"
    )
