"""`strandline node list` and `strandline node add`: the nodes of a cluster, and the file of one more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from strandline.cluster.admin_client import first_answer
from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.local_growth import NEEDED_LEVEL, check_level
from strandline.cluster.node_file import toml
from strandline.cluster.output import Json, show, table
from strandline.cluster.target import Admin, Cluster, target

HEADER = ("NODE", "STATE", "RACK", "CONTROLLER", "REPLICAS", "LEADS", "MESH", "KAFKA")


def nodes(admin: Admin = None, cluster: Cluster = None, as_json: Json = False) -> None:
    """List the nodes: which are alive, which vote in the controller's group, and what they carry.

    \b
    Example:
      strandline node list
    """
    answer = first_answer(target(admin=admin, folder=cluster).admin, "GET", "/api/nodes")
    rows = [_row(one) for one in answer["nodes"]]
    strangers = [
        f"a process comes as node {one['node']} with data folder {one['folder']}, which is not let in: "
        f"`strandline node replace {one['node']}` lets it take that node's place"
        for one in answer["strangers"]
    ]
    show(as_json, answer, [table(HEADER, rows, right=(0, 4, 5)), *strangers])


def add(
    mesh: Annotated[
        str, typer.Option("--mesh", metavar="HOST:PORT", help="Where the other nodes reach the new machine.")
    ],
    data: Annotated[str, typer.Option(metavar="FOLDER", help="Its data folder.")] = "/var/lib/strandline",
    rack: Annotated[str, typer.Option(help="Its rack, or availability zone.")] = "",
    admin: Admin = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Print the file of a machine that is to join: its id, the cluster's, and seeds to find it by.

    The id is one that no node has, or had. Put the secret and the storage of the other nodes into the file,
    and start it on the machine with `strandline node --config FILE`: it joins by itself. Nothing is changed
    before that.

    \b
    Example:
      strandline node add --mesh 10.0.0.4:7101 --rack east > node-4.toml
    """
    host, _, port = mesh.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise CommandFailed(f"--mesh {mesh}: that is not host:port", "write like 10.0.0.4:7101", MISUSED)
    addresses = target(admin=admin, folder=cluster).admin
    told = first_answer(addresses, "GET", "/api/cluster")
    check_level(told)
    answer = first_answer(addresses, "GET", "/api/nodes")
    seeds = [f"{one['mesh_host']}:{one['mesh_port']}" for one in answer["nodes"]]
    plain = {"node": answer["free_id"], "cluster": told["cluster_id"], "seeds": seeds, "mesh": mesh}
    show(as_json, plain, _file(plain, host.strip("[]"), int(port), data, rack))


def _file(plain: Mapping[str, Any], host: str, port: int, data: str, rack: str) -> str:
    lines: Sequence[str] = (
        f"# Node {plain['node']}, which joins the cluster. Keep it to yourself: the secret admits to that.",
        "",
        "[node]",
        f"id = {plain['node']}",
        f"data = {toml(data)}",
        *([f"rack = {toml(rack)}"] if rack else ()),
        "",
        "[cluster]",
        f"id = {toml(plain['cluster'])}",
        'secret = "<that of the other nodes>"',
        f"seeds = {toml(plain['seeds'])}",
        "",
        "[mesh]",
        f"host = {toml(host)}",
        f"port = {port}",
        "",
        "# As in the other nodes' files: [storage]; [kafka] or [listeners.<name>], with this machine's own",
        "# address; and what they have for TLS and logins.",
    )
    return "\n".join(lines)


def _row(one: Mapping[str, Any]) -> tuple[object, ...]:
    state = "dead" if one["fenced"] else "alive"
    if one["draining"]:
        state += ", draining"
    return (
        one["node"],
        state,
        one["rack"],
        one["controller_role"],
        one["replicas"],
        one["leads"],
        f"{one['mesh_host']}:{one['mesh_port']}",
        f"{one['kafka_host']}:{one['kafka_port']}",
    )


def keeps_its_vote(rows: Sequence[Mapping[str, Any]], node: int, level: int) -> bool:
    """Whether a drained node votes in the controller's group although another could, or has just begun to.

    `level` is the cluster's feature level: below that of growth no vote goes by itself. Nodes of earlier
    releases do not tell.
    """
    votes = any(one["node"] == node and one.get("controller_role") == "voter" for one in rows)
    # The other one votes first, and only then this one ceases to.
    given = level >= NEEDED_LEVEL and _voters(rows) > _wanted_voters(rows)
    return votes and (given or any(map(_could_vote, rows)))


def votes_missing(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the controller's group has fewer voters than it should, and a node could be one."""
    return _voters(rows) < _wanted_voters(rows) and any(map(_could_vote, rows))


def _wanted_voters(rows: Sequence[Mapping[str, Any]]) -> int:
    from strandline.node.controller.voter_choice import wanted_voters

    return wanted_voters(len(rows), sum(bool(one.get("draining")) for one in rows))


def _voters(rows: Sequence[Mapping[str, Any]]) -> int:
    return sum(one.get("controller_role") == "voter" for one in rows)


def _could_vote(one: Mapping[str, Any]) -> bool:
    return one.get("controller_role") == "learner" and not one["fenced"] and not one["draining"]
