"""`strandline cluster restart`: nodes of a local cluster one after the other, by force or rolling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.local import HEALTHY_SECONDS, LocalCluster
from strandline.cluster.output import Json, plural, progress, show
from strandline.cluster.rolling_restart import Restarted, restart_rolling
from strandline.cluster.target import DEFAULT_FOLDER

Nodes = Annotated[list[int] | None, typer.Argument(metavar="[NODE...]", help="Node ids. Default: all nodes.")]
Timeout = Annotated[
    float, typer.Option(metavar="SECONDS", min=0, help="How long to wait until the nodes are healthy.")
]


def restart(
    nodes: Nodes = None,
    rolling: Annotated[
        bool,
        typer.Option(
            "--rolling",
            help="Drain each node of its leaderships first, and wait for all replicas after it. Refused while"
            " the cluster is not healthy. Repeat it to go on after a cut.",
        ),
    ] = False,
    again: Annotated[
        bool,
        typer.Option("--again", help="With --rolling: also what a call that was cut off has done."),
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="With --rolling: go on with a call that was cut off more than an hour ago."
        ),
    ] = False,
    cluster: Annotated[
        Path, typer.Option("--cluster", metavar="FOLDER", help="Folder of the cluster's files.")
    ] = Path(DEFAULT_FOLDER),
    timeout: Timeout = HEALTHY_SECONDS,
    as_json: Json = False,
) -> None:
    """Restart nodes one at a time, each after all running nodes are healthy. Clients keep working.

    \b
    Examples:
      strandline cluster restart --rolling
      strandline cluster restart 3
    """
    local = LocalCluster(cluster)
    if (again or resume) and not rolling:
        raise CommandFailed("--again and --resume are for --rolling", "add --rolling", MISUSED)
    if again and resume:
        raise CommandFailed("--again and --resume are two answers to one question", "give one", MISUSED)
    with progress(as_json) as tell:
        if rolling:
            done = restart_rolling(
                local, nodes or (), again=again, resume=resume, timeout=timeout, progress=tell
            )
        else:
            restarted = local.restart(*(nodes or ()), timeout=timeout, progress=tell)
    if rolling:
        show(as_json, {"nodes": [asdict(each) for each in done]}, "\n".join(map(_said, done)) or _NOTHING)
    else:
        show_started("restarted", restarted, local, nodes, as_json)


_NOTHING = "all nodes were restarted since the call that was cut off (--again restarts them once more)"


def _said(each: Restarted) -> str:
    told = f"restarted: node {each.node} (pid {each.pid}) in {each.seconds:.1f} s"
    if each.handed_over is not None:
        told += f", {plural(each.handed_over, 'leadership')} handed over before"
    if each.needed:
        told += f"; {plural(each.needed, 'group')} of one or two replicas away meanwhile"
    return told


def show_started(
    done: str, started: list[int], local: LocalCluster, wanted: Sequence[int] | None, as_json: bool
) -> None:
    """One line a node: those started, and those that were wanted by name and ran already."""
    found = local.description.nodes
    rows = [
        {"node": node, "pid": found[node].pid, "started": node in started}
        for node in dict.fromkeys(wanted or started)
    ]
    said = [
        f"{done if row['started'] else 'already up'}: node {row['node']} (pid {row['pid']})" for row in rows
    ]
    show(as_json, {"nodes": rows}, "\n".join(said) or "already up: all nodes")
