"""The nodes of any cluster by their HTTP ports: which of them answer, are healthy, or are missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strandline.cluster.admin_client import AdminClient, Answer, Unreachable
from strandline.cluster.failure import CommandFailed


def ask(addresses: Sequence[str]) -> dict[str, Any]:
    """Each node at these addresses ("host:port"), and each that is registered and at none of them.

    "problem" is None where a node is healthy. "healthy" is true when all are, so a registered node whose
    address was not given has to be live as the controller sees it, and every address given has to answer.

    Raises CommandFailed when no address is a node's, or they are of more than one cluster.
    """
    problems: dict[str, str | None] = {}
    nodes: dict[str, int] = {}
    clusters: dict[str, dict[str, Any]] = {}
    for address in addresses:
        client = AdminClient(address)
        problems[address] = client.health()
        told = _told(client, "/api/cluster")
        if told is not None and "cluster_id" in told:
            nodes[address] = told["node"]
            clusters.setdefault(told["cluster_id"] or "", told)
    if not clusters:
        raise CommandFailed(
            "; ".join(f"{address}: {problem}" for address, problem in problems.items()),
            "check that the nodes run, and give the address of admin.host and admin.port of their files",
        )
    known = {name: told for name, told in clusters.items() if name}
    if len(known) > 1:
        raise CommandFailed(
            f"the addresses are of {len(known)} clusters: {', '.join(sorted(known))}", "ask one at a time"
        )
    cluster = next(iter((known or clusters).values()))
    registered: dict[int, dict[str, Any]] = {}
    for address in nodes:
        listed = _told(AdminClient(address), "/api/nodes")
        if listed is not None and listed["nodes"]:
            registered = {row["node"]: row for row in listed["nodes"]}
            break
    rows = [
        _row(nodes.get(address), address, registered.get(nodes.get(address, 0)), problem)
        for address, problem in problems.items()
    ]
    for node, row in registered.items():
        if node not in nodes.values():
            unasked = "its own address was not given, or does not answer"
            problem = f"the controller counts it as dead; {unasked}" if row["fenced"] else None
            if problem is None and len(nodes) < len(problems):
                # The one that does not answer may be this one: the controller gives it some seconds first.
                problem = f"the controller has heard from it a moment ago; {unasked}"
            rows.append(_row(node, None, row, problem))
    return {
        "cluster": cluster["cluster_id"],
        "epoch": cluster["cluster_epoch"],
        "controller": cluster["controller"]["leader"],
        "healthy": all(row["problem"] is None for row in rows),
        "nodes": sorted(rows, key=lambda row: (row["node"] is None, row["node"])),
    }


def _told(client: AdminClient, path: str) -> dict[str, Any] | None:
    """A node's answer; None when there is none, or it is not a node's."""
    try:
        answer: Answer = client.request("GET", path, timeout=5.0)
    except Unreachable:
        return None
    return answer.body if answer.status == 200 and isinstance(answer.body, dict) else None


def _row(
    node: int | None, address: str | None, registered: dict[str, Any] | None, problem: str | None
) -> dict[str, Any]:
    row = registered or {}
    return {
        "node": node,
        "kafka": f"{row['kafka_host']}:{row['kafka_port']}" if row else None,
        "admin": address,
        "replicas": row.get("replicas"),
        "leads": row.get("leads"),
        "problem": problem,
    }
