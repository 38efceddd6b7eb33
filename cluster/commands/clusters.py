"""`strandline cluster`: a cluster on this machine, up and down, and hurt on purpose."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cluster.failure import FAILED
from cluster.local import HEALTHY_SECONDS, STOP_SECONDS, LocalCluster, NodeStatus
from cluster.output import Json, plural, progress, show, table
from cluster.ports import free_ports, usual_ports
from cluster.target import DEFAULT_FOLDER

app = typer.Typer(help="Run a cluster on this machine.", no_args_is_help=False)

Folder = Annotated[
    Path, typer.Option("--cluster", metavar="FOLDER", help="Where the cluster keeps all that it has.")
]
Node = Annotated[int, typer.Argument(metavar="NODE", help="The node's number, from 1.")]
Timeout = Annotated[float, typer.Option(metavar="SECONDS", min=0, help="How long to wait for health.")]


@app.command()
def up(
    nodes: Annotated[int | None, typer.Option(help="How many; 3 when the cluster is new.")] = None,
    cluster: Folder = Path(DEFAULT_FOLDER),
    free: Annotated[
        bool, typer.Option("--free-ports", help="Take ports that are free, not 9092, 9644, 7101 and on.")
    ] = False,
    storage: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A folder, s3://, gs:// or az://. Default: FOLDER/objects."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="For every node, over its file."),
    ] = None,
    timeout: Timeout = HEALTHY_SECONDS,
    as_json: Json = False,
) -> None:
    """Start a cluster, or what of it does not run, and wait until all of it is healthy.

    \b
    Examples:
      strandline cluster up
      strandline cluster up --nodes 5 --cluster /var/tmp/five --free-ports
      strandline cluster up --storage s3://bucket/prefix --set storage.options.region=eu-west-1
    """
    local = LocalCluster(cluster)
    with progress(as_json) as tell:
        started = local.up(
            nodes,
            choose_ports=free_ports if free else usual_ports,
            storage=storage,
            settings=settings or (),
            timeout=timeout,
            progress=tell,
        )
    found = local.description
    count = plural(len(found.nodes), "node")
    if not started:
        said = f"already up: {count} at {found.bootstrap}"
    elif len(started) < len(found.nodes):
        said = f"up: {count} at {found.bootstrap} (started {', '.join(map(str, started))})"
    else:
        said = f"up: {count} at {found.bootstrap}"
    show(
        as_json,
        {
            "cluster": found.cluster,
            "folder": str(found.folder),
            "bootstrap": found.bootstrap,
            "started": started,
            "nodes": [asdict(status) for status in local.status()],
        },
        said,
    )


@app.command()
def status(cluster: Folder = Path(DEFAULT_FOLDER), as_json: Json = False) -> None:
    """Show each node: its process, its ports, its health. Ends with status 1 unless all are healthy.

    \b
    Example:
      strandline cluster status
    """
    local = LocalCluster(cluster)
    nodes = local.status()
    healthy = all(node.problem is None for node in nodes)
    plain = {
        "cluster": local.description.cluster,
        "folder": str(local.folder),
        "bootstrap": local.description.bootstrap,
        "healthy": healthy,
        "nodes": [asdict(node) for node in nodes],
    }
    show(as_json, plain, table(("NODE", "PID", "KAFKA", "HTTP", "HEALTH"), [_row(node) for node in nodes]))
    if not healthy:
        raise typer.Exit(FAILED)


@app.command()
def down(
    cluster: Folder = Path(DEFAULT_FOLDER),
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Then what is left is killed.")
    ] = STOP_SECONDS,
    as_json: Json = False,
) -> None:
    """Stop every node cleanly: SIGTERM, then wait. The data stays; `cluster up` goes on with it.

    \b
    Example:
      strandline cluster down
    """
    local = LocalCluster(cluster)
    with progress(as_json) as tell:
        stopped = local.down(timeout, tell)
    show(
        as_json,
        {"stopped": stopped},
        f"down: {plural(len(stopped), 'node')} stopped" if stopped else "already down",
    )


@app.command()
def kill(node: Node, cluster: Folder = Path(DEFAULT_FOLDER), as_json: Json = False) -> None:
    """Kill one node with SIGKILL, as a crash would.

    \b
    Example:
      strandline cluster kill 2 && strandline cluster status; strandline cluster start 2
    """
    pid = LocalCluster(cluster).kill(node)
    show(as_json, {"killed": node, "pid": pid}, f"killed: node {node} (pid {pid})")


@app.command()
def start(
    node: Node,
    cluster: Folder = Path(DEFAULT_FOLDER),
    timeout: Timeout = HEALTHY_SECONDS,
    as_json: Json = False,
) -> None:
    """Start one node again on what it has, and wait until it is healthy (--timeout 0: do not wait).

    \b
    Example:
      strandline cluster start 2
    """
    local = LocalCluster(cluster)
    with progress(as_json) as tell:
        started = local.start(node, timeout=timeout, progress=tell)
    pid = local.description.nodes[node].pid
    said = f"started: node {node} (pid {pid})" if started else f"already up: node {node} (pid {pid})"
    show(as_json, {"node": node, "pid": pid, "started": started}, said)


def _row(status: NodeStatus) -> tuple[object, ...]:
    return status.node, status.pid, status.kafka, status.admin, status.problem or "healthy"
