"""Compares the members in a node's configuration with those of the cluster.

`cluster.nodes` makes a cluster when it is new; afterwards the controller's own log has the members
(members.py). A list that is changed later adds no node, so the node logs that it has more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from strandline.node.config.node_config import PeerAddress
from strandline.statemachine.controller.controller_state import NodeRegistration


def differences(
    configured: Sequence[PeerAddress], voters: Collection[int], registered: Mapping[int, NodeRegistration]
) -> list[str]:
    """Half a line for each difference between cluster.nodes and the cluster; none where there is none.

    `voters` are those of the controller's group, `registered` the nodes that the controller knows.
    """
    known, belong = {peer.id: peer for peer in configured}, {*voters, *registered}
    told = []
    if extra := sorted(known.keys() - belong):
        told.append(
            f"{_nodes(extra)} in cluster.nodes and no part of the cluster, whose members are "
            f"{_listed(sorted(belong))}: the list adds no node to a cluster that runs: start the new one "
            "with cluster.seeds, and correct cluster.nodes here"
        )
    for node, there in sorted(registered.items()):
        peer = known.get(node)
        if peer is None or there.fenced or (peer.host, peer.port) == (there.mesh_host, there.mesh_port):
            continue
        told.append(
            f"node {node} says that its address is {there.mesh_host}:{there.mesh_port}, and cluster.nodes "
            f"has {peer.host}:{peer.port}: give all nodes the same list"
        )
    return told


def _nodes(ids: Sequence[int]) -> str:
    return f"nodes {_listed(ids)} are" if len(ids) > 1 else f"node {ids[0]} is"


def _listed(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids))
