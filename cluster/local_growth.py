"""More nodes for a local cluster that runs, and fewer in its description once the cluster forgot them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from strandline.cluster.admin_client import first_answer
from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.folder_lock import alone
from strandline.cluster.local_files import Description, LocalNode
from strandline.cluster.ports import Ports

NEEDED_LEVEL = 5
"""The feature level from which nodes join (statemachine/controller/feature_levels.py)."""


def check_level(told: Mapping[str, Any]) -> None:
    """Raise CommandFailed if no node can join a cluster of which this is the answer of `/api/cluster`."""
    if int(told["feature_level"]) < NEEDED_LEVEL:
        raise CommandFailed(
            f"no node can join: the cluster is at feature level {told['feature_level']}, and"
            f" {NEEDED_LEVEL} is needed",
            "raise it with `strandline cluster upgrade`, when all nodes run this release",
        )


def grown(
    found: Description, nodes: int | None, choose_ports: Callable[[Sequence[int]], dict[int, Ports]]
) -> list[LocalNode]:
    """The files of as many nodes as there are too few, written; the cluster runs.

    CommandFailed, before anything is written, if its feature level does not allow it.
    """
    more = (nodes or 0) - len(found.nodes)
    if more <= 0:
        return []
    addresses = [node.admin for node in found.nodes.values()]
    check_level(first_answer(addresses, "GET", "/api/cluster"))
    first = max((*found.nodes, *found.gone)) + 1
    ids = range(first, first + more)
    # Of the usual ports, each node has those of its id.
    ports = choose_ports(range(1, first + more))
    return found.grow({node: ports[node] for node in ids})


def forget(folder: Path, node: int) -> None:
    """Leave a node that the cluster has removed out of the folder's description, if it is in it.

    The description is read again: others may have started nodes since the removal began. CommandFailed
    if they started this one: no command could end a process that the description does not name.
    """
    with alone(folder):
        found = Description.load(folder)
        if found is None or node not in found.nodes:
            return
        if (pid := found.nodes[node].pid) is not None:
            raise CommandFailed(
                f"node {node} is removed, and its process was started again (pid {pid}): no node lets it in",
                f"end it with `strandline cluster stop {node}`, then repeat this",
            )
        found.forget(node)


def too_few(found: Description, nodes: int) -> CommandFailed:
    """The refusal of a smaller number of nodes than there are."""
    last = max(found.nodes)
    return CommandFailed(
        f"the cluster in {found.folder} has {len(found.nodes)} nodes, not {nodes}",
        f"to take one out: strandline node drain {last}, strandline cluster stop {last}, "
        f"strandline node remove {last}",
        MISUSED,
    )
