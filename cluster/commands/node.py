"""`strandline node`: run one in the foreground, list and add them, replace, empty or forget one."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from strandline.cluster.admin_client import AdminClient, Unreachable, first_answer
from strandline.cluster.commands import node_members
from strandline.cluster.commands.leader_drain import SECONDS, drain_node_leaders
from strandline.cluster.commands.node_members import keeps_its_vote, votes_missing
from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.local import NODE_PROGRAM
from strandline.cluster.local_growth import forget
from strandline.cluster.output import Json, progress, show
from strandline.cluster.target import Admin, Cluster, target

# Its help is the docstring of `node`, which has the examples.
app = typer.Typer(invoke_without_command=True)

app.command("list")(node_members.nodes)
app.command()(node_members.add)

MAX_ID: Final = 2**16 - 1
REPLACED_SECONDS: Final = 600.0
DRAINED_SECONDS: Final = 600.0
REMOVED_SECONDS: Final = 60.0
_FENCED_SECONDS: Final = 15.0
"""A node counts as dead some seconds after its process ended: the command asks again until then."""
_LIVES_SECONDS: Final = 2.0
"""A node whose process talks with another for so long, and has not ended, is not about to count as dead."""
_POLL_SECONDS: Final = 0.5


@app.callback()
def node(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="The node's TOML file.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Setting that overrides the file's."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run one node in the foreground until SIGTERM or Ctrl-C, list, add, replace, drain or remove nodes.

    --json: the log as JSON lines.

    \b
    Examples:
      strandline node --config /etc/strandline/node.toml
      STRANDLINE_LOG_LEVEL=debug strandline node --config node.toml --set kafka.port=19092
      strandline node list
      strandline node add --mesh 10.0.0.4:7101
      strandline node replace 3
      strandline node drain 3
      strandline node remove 3
    """
    if context.invoked_subcommand is not None:
        return
    if config is None:
        raise CommandFailed("there is no --config", "name the node's TOML file: --config FILE", MISUSED)
    command = [*NODE_PROGRAM, "--config", str(config)]
    for setting in [*(settings or ()), *(["log.format=json"] if as_json else ())]:
        command += ["--set", setting]
    sys.stdout.flush()
    # The node takes this process's place, so signals and the exit status are its own.
    os.execv(command[0], command)


@app.command()
def replace(
    node: Annotated[
        int, typer.Argument(metavar="ID", min=1, max=MAX_ID, help="The node whose data folder was lost.")
    ],
    folder: Annotated[
        str | None,
        typer.Option(
            "--folder", metavar="IDENTITY", help="Identity of the new folder, as in the node's log."
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait until the replacement is complete.", min=1.0)
    ] = REPLACED_SECONDS,
    admin: Admin = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Let a node's new, empty data folder take the place of the one that was lost.

    First start the node with an empty folder and its old id: the others refuse it, and tell so. Then this
    command has every group leave the folder before out of its members, lets the new one in, and has it catch
    up and join them again. It needs a majority of every group without that node, and is safe to repeat: what
    was begun goes on without it. The folder before must never be started again.

    \b
    Example:
      strandline node replace 3
    """
    addresses = target(admin=admin, folder=cluster).admin
    with progress(as_json) as say:
        say(f"node {node}: waiting until it counts as dead")
        chosen = _asked(addresses, {"node": node} if folder is None else {"node": node, "folder": folder})
        deadline = time.monotonic() + timeout
        while (left := _left(addresses, node, chosen)) is not None:
            say(f"node {node}: {left}")
            if time.monotonic() > deadline:
                raise CommandFailed(
                    f"node {node} is not back in all its groups after {timeout:g} s ({left})",
                    "it goes on by itself: see `strandline cluster status` and the nodes' logs",
                )
            time.sleep(_POLL_SECONDS)
    plain = {"node": node, "folder": chosen, "replaced": True}
    show(as_json, plain, f"node {node} is replaced: data folder {chosen} is in all its groups")


@app.command()
def drain(
    node: Annotated[int, typer.Argument(metavar="ID", min=1, max=MAX_ID, help="The node to empty.")],
    undo: Annotated[
        bool, typer.Option("--undo", help="Let the node get replicas, or leaderships, again.")
    ] = False,
    leaders: Annotated[
        bool,
        typer.Option(
            "--leaders", help="Hand over its leaderships alone, and take none for --for: before a restart."
        ),
    ] = False,
    seconds: Annotated[
        float | None,
        typer.Option("--for", metavar="SECONDS", min=1, max=600, help="With --leaders; else 60."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait until the node is empty (0: do not wait).", min=0.0)
    ] = DRAINED_SECONDS,
    admin: Admin = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Move all replicas of a node to the others, and give it no new ones.

    Replicas go to racks that have none of the partition first. Records stay where they are, in the object
    storage: what moves is a replica's state, and the local log of a compacted topic. It is safe to repeat,
    and goes on without this command.

    \b
    Examples:
      strandline node drain 3
      strandline node drain 3 --undo
      strandline node drain 3 --leaders
    """
    addresses = target(admin=admin, folder=cluster).admin
    if leaders:
        drain_node_leaders(addresses, node, 0.0 if undo else seconds or SECONDS, timeout, as_json)
        return
    if seconds is not None:
        raise CommandFailed("--for is for --leaders", "add --leaders, or leave it out", MISUSED)
    body = {"node": node, "draining": not undo}
    with progress(as_json) as say:
        answer = first_answer(addresses, "POST", "/api/nodes/drain", body, timeout=20.0)
        left = held = int(answer["replicas"])
        stay = ""
        began = time.monotonic()
        votes, seen = True, False
        level = int(first_answer(addresses, "GET", "/api/cluster")["feature_level"])
        while (left or votes) and timeout and not undo:
            rows = first_answer(addresses, "GET", "/api/nodes")["nodes"]
            row = next((one for one in rows if one["node"] == node), {"replicas": left})
            # A node that answers may be behind, and not know of the drain yet.
            if seen and not row.get("draining"):
                raise CommandFailed(
                    f"node {node} is not drained any more, and has {left} of {held} replicas: another command"
                    " ended that, or removed the node",
                    "see `strandline node list`, and repeat this if it is still wanted",
                )
            seen = bool(row.get("draining"))
            left, stay, votes = int(row["replicas"]), _stay(row), keeps_its_vote(rows, node, level)
            if not left and not votes:
                break
            say(f"node {node}: {left} of {held} replicas to go{stay or _time_left(held, left, began)}")
            if time.monotonic() - began > timeout:
                if not left:
                    raise CommandFailed(
                        f"node {node} has no replicas, and still votes in the controller's group after"
                        f" {timeout:g} s",
                        "its vote goes to another node by itself: see `strandline node list`",
                    )
                cure = ": see `strandline cluster status` and the nodes' logs"
                if stay:
                    cure = " once that is mended"
                raise CommandFailed(
                    f"node {node} still has {left} of {held} replicas after {timeout:g} s{stay}",
                    f"it goes on by itself{cure}",
                )
            time.sleep(_POLL_SECONDS)
    if undo:
        said = f"node {node} may get replicas again; it has {left}"
    elif left:
        said = f"node {node} is being drained: {left} replicas to go"
    else:
        said = f"node {node} is drained: it has no replicas"
    show(as_json, {"node": node, "draining": not undo, "replicas": left}, said)


@app.command()
def remove(
    node: Annotated[
        int, typer.Argument(metavar="ID", min=1, max=MAX_ID, help="The node to forget: stopped, and drained.")
    ],
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait until it is no member any more.", min=1.0)
    ] = REMOVED_SECONDS,
    admin: Admin = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Forget a node for good: it is a member no more, has no vote, and is no longer waited for.

    Drain it first, then stop it. Its data folder is never let in again. Another machine may take its id, with
    an empty folder and `strandline node replace ID`. It is safe to repeat. Take the node out of cluster.nodes
    and cluster.seeds of the others at their next restart.

    \b
    Examples:
      strandline node drain 3
      strandline node remove 3
    """
    chosen = target(admin=admin, folder=cluster)
    addresses = chosen.admin
    with progress(as_json) as say:
        say(f"node {node}: waiting until it counts as dead")
        _when_dead(addresses, "/api/nodes/remove", {"node": node})
        deadline = time.monotonic() + timeout
        while True:
            told = first_answer(addresses, "GET", "/api/nodes")
            if told["replacement"] is None and not votes_missing(told["nodes"]):
                break
            say(f"node {node}: waiting until the controller's group has left it out, and all its voters")
            if time.monotonic() > deadline:
                if told["replacement"] is None:
                    raise CommandFailed(
                        f"node {node} is removed, and the controller's group has fewer voters than it should"
                        f" after {timeout:g} s",
                        "another node gets the vote by itself, once it is level: see `strandline node list`,"
                        " and stop no other node before",
                    )
                raise CommandFailed(
                    f"node {node} is still a member of the controller's group after {timeout:g} s",
                    "it goes on by itself: see `strandline cluster status` and the nodes' logs",
                )
            time.sleep(_POLL_SECONDS)
    if chosen.local is not None:
        forget(chosen.local.folder, node)
    show(as_json, {"node": node, "removed": True}, f"node {node} is removed")


def _stay(row: Mapping[str, Any]) -> str:
    """The replicas that do not move, if there are any, and why; nodes of earlier releases do not tell."""
    found = ""
    if row.get("without_room"):
        why = "none that is alive and not drained lacks the partition: start or add a node"
        found = f", {row['without_room']} of them with no other node to go to: {why}"
    if row.get("below_minimum"):
        topics = ", ".join(row["below_minimum"])
        found += f", and those of topics with fewer replicas than min.insync.replicas: lower that of {topics}"
    if row.get("without_majority"):
        topics = ", ".join(row["without_majority"])
        found += f", and those of partitions without a majority of live replicas, which cannot move: {topics}"
        found += ": start the nodes that have them"
    return found


def _time_left(held: int, left: int, began: float) -> str:
    """By the rate so far; nothing before the first has gone."""
    gone = held - left
    return f", about {(time.monotonic() - began) / gone * left:.0f} s" if gone else ""


def _asked(addresses: Sequence[str], body: dict[str, Any]) -> str:
    """The folder that is let in."""
    return str(_when_dead(addresses, "/api/nodes/replace", body)["folder"])


def _when_dead(addresses: Sequence[str], path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer about a node; asked again while it still counts as alive, or does not knock yet.

    One that lives is not waited for.
    """
    began = time.monotonic()
    while True:
        try:
            answer: dict[str, Any] = first_answer(addresses, "POST", path, body, timeout=20.0)
        except CommandFailed as failed:
            text, waited = str(failed), time.monotonic() - began
            alive = "is alive" in text
            if waited > _FENCED_SECONDS or not (alive or "no process comes" in text):
                raise
            if alive and waited > _LIVES_SECONDS and _lives(addresses, body["node"]):
                raise
        else:
            return answer
        time.sleep(_POLL_SECONDS)


def _lives(addresses: Sequence[str], node: int) -> bool:
    """Whether the process of a node is connected with the one that answers."""
    rows = first_answer(addresses, "GET", "/api/nodes")["nodes"]
    return any(row["node"] == node and row["connected"] and not row["fenced"] for row in rows)


def _left(addresses: Sequence[str], node: int, folder: str) -> str | None:
    """The remaining work, None if there is none, as reported by any node that knows the folder."""
    for address in addresses:
        try:
            answer = AdminClient(address).request("GET", "/api/nodes")
        except Unreachable:
            continue
        if answer.status != 200:
            continue
        present = answer.body["replacement"]
        if present is not None:
            leaving, joining = present["leaving"], present["joining"]
            away = any(row["node"] == node and row["fenced"] for row in answer.body["nodes"])
            runs = f"; node {node} is not there yet: does it run?" if away and not leaving else ""
            left = f"{leaving} groups have still to leave the lost folder out, {joining} to take the new in"
            stuck = ", ".join(present["stuck_topics"])
            without = f"; without a majority of live replicas, so that they cannot: {stuck}" if stuck else ""
            return left + runs + without
        for row in answer.body["nodes"]:
            if (row["node"], row["folder"]) == (node, folder):
                return "it is not registered yet" if row["fenced"] else None
    return "no node answers that knows of it"
