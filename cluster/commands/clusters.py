"""`strandline cluster`: start and stop a cluster on this machine, and kill its nodes on purpose."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from strandline.cluster.admin_client import DEGRADED, first_answer
from strandline.cluster.client_settings import load
from strandline.cluster.commands.restart import Nodes, Timeout, restart, show_started
from strandline.cluster.commands.restore import restore
from strandline.cluster.failure import FAILED, MISUSED, CommandFailed
from strandline.cluster.last_lines import lines
from strandline.cluster.last_point import take_last_point
from strandline.cluster.local import HEALTHY_SECONDS, STOP_SECONDS, LocalCluster, NodeStatus
from strandline.cluster.local_files import Description
from strandline.cluster.output import Json, escaped, plural, progress, show, table, warn
from strandline.cluster.ports import free_ports, usual_ports
from strandline.cluster.remote import ask
from strandline.cluster.target import DEFAULT_FOLDER, Admin, Cluster, target
from strandline.cluster.well import wait_well

T = TypeVar("T")
_LOOKS: Final = 10
_LOOK_SECONDS: Final = 0.2

app = typer.Typer(help="Run a cluster on this machine.", no_args_is_help=False)
app.command()(restore)
app.command()(restart)

Folder = Annotated[Path, typer.Option("--cluster", metavar="FOLDER", help="Folder of the cluster's files.")]
Node = Annotated[int, typer.Argument(metavar="NODE", help="Node id, from 1.")]


@app.command()
def up(
    nodes: Annotated[int | None, typer.Option(help="Number of nodes. Default for a new cluster: 3.")] = None,
    cluster: Folder = Path(DEFAULT_FOLDER),
    free: Annotated[
        bool, typer.Option("--free-ports", help="Use free ports instead of 9092, 9644, 7101 and up.")
    ] = False,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Object storage: a folder, s3://, gs:// or az://. Default: FOLDER/objects."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SECTION.KEY=VALUE",
            help="Setting of every node. Replaces all settings of earlier calls.",
        ),
    ] = None,
    no_settings: Annotated[
        bool, typer.Option("--no-settings", help="Remove all settings of earlier calls.")
    ] = False,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="Make a cluster with TLS and logins on all ports, and show a client's settings.",
        ),
    ] = False,
    timeout: Timeout = HEALTHY_SECONDS,
    as_json: Json = False,
) -> None:
    """Start a cluster, or those of its nodes that do not run, and wait until all nodes are healthy.

    \b
    Examples:
      strandline cluster up
      strandline cluster up --secure
      strandline cluster up --nodes 5 --cluster /var/tmp/five --free-ports
      strandline cluster up --storage s3://bucket/prefix --set storage.options.region=eu-west-1
    """
    if settings and no_settings:
        raise CommandFailed("--set and --no-settings exclude each other", "leave one of them out", MISUSED)
    local = LocalCluster(cluster)
    with progress(as_json) as tell:
        started = local.up(
            nodes,
            choose_ports=free_ports if free else usual_ports,
            storage=storage,
            settings=() if no_settings else settings,
            secure=secure,
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
            "client_file": str(found.security.client) if found.secure else None,
        },
        "\n".join((said, *(_client(found) if secure else ()))),
    )


def _client(found: Description) -> list[str]:
    """Settings of a client to paste: librdkafka's, and Java's."""
    client = found.security.client
    same = load(client)
    librdkafka = "\n".join(f"{name}={value}" for name, value in same.items())
    return [
        "",
        "A client of librdkafka:",
        librdkafka,
        "",
        f"A client in Java, and `--command-config` of Kafka's tools ({client}, which is yours alone):",
        client.read_text().rstrip(),
        "",
        "Commands of strandline log in by themselves where they find the folder.",
    ]


@app.command()
def status(
    wait: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0, help="Wait for so long until all is healthy and replicas in step."
        ),
    ] = 0.0,
    admin: Admin = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Show each node's process, ports and health. Exits with status 1 unless all nodes are healthy.

    With --admin it asks nodes of any cluster, which were not started by `cluster up`. With --wait status 0
    also means that every replica is in step, so that the cluster can do without any one node.

    \b
    Examples:
      strandline cluster status
      strandline cluster status --wait 60
      strandline cluster status --admin 10.0.0.1:9644,10.0.0.2:9644,10.0.0.3:9644
    """
    if wait:
        with progress(as_json) as tell:
            lacking = wait_well(target(admin=admin, folder=cluster).admin, wait, tell)
        if lacking is not None:
            raise CommandFailed(
                f"the cluster is not well after {wait:g} s: {lacking}", "see `strandline cluster status`"
            )
    if admin is not None:
        addresses = target(admin=admin, folder=cluster).admin
        _remote(_calm(lambda: ask(addresses), lambda found: bool(found["healthy"]), wait), as_json)
        return
    local = LocalCluster(cluster or DEFAULT_FOLDER)
    nodes = _calm(local.status, _healthy, wait)
    healthy = _healthy(nodes)
    plain = {
        "cluster": local.description.cluster,
        "folder": str(local.folder),
        "bootstrap": local.description.bootstrap,
        "healthy": healthy,
        "nodes": [asdict(node) for node in nodes],
    }
    rows = [(node.node, node.pid, node.kafka, node.admin, _health(node.problem)) for node in nodes]
    reasons = _reasons((node.node, node.problem) for node in nodes)
    show(as_json, plain, [table(("NODE", "PID", "KAFKA", "HTTP", "HEALTH"), rows), *reasons])
    if not healthy:
        raise typer.Exit(FAILED)


@app.command()
def down(
    cluster: Folder = Path(DEFAULT_FOLDER),
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Kill the nodes that still run after this time.")
    ] = STOP_SECONDS,
    as_json: Json = False,
) -> None:
    """Stop every node cleanly (SIGTERM), and wait. The data stays: `cluster up` starts with it again.

    Unless checkpoints.interval is 0, a restore point is taken first: stop clients that write before.

    \b
    Example:
      strandline cluster down
    """
    local = LocalCluster(cluster)
    with progress(as_json) as tell:
        tell("taking a restore point")
        problem = take_last_point(local.description)
        if problem is not None:
            warn(f"no restore point was taken before the stop: {problem}")
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
def stop(node: Node, cluster: Folder = Path(DEFAULT_FOLDER), as_json: Json = False) -> None:
    """Stop one node cleanly. The node hands over its leadership first.

    \b
    Example:
      strandline cluster stop 2
    """
    ran = LocalCluster(cluster).stop(node)
    show(as_json, {"node": node, "stopped": ran}, f"{'stopped' if ran else 'already down'}: node {node}")


@app.command()
def start(
    nodes: Nodes = None,
    cluster: Folder = Path(DEFAULT_FOLDER),
    timeout: Timeout = HEALTHY_SECONDS,
    as_json: Json = False,
) -> None:
    """Start stopped nodes with their data, and wait until they are healthy (--timeout 0: do not wait).

    \b
    Examples:
      strandline cluster start 2
      strandline cluster start
    """
    local = LocalCluster(cluster)
    with progress(as_json) as tell:
        started = local.start(*(nodes or ()), timeout=timeout, progress=tell)
    show_started("started", started, local, nodes, as_json)


@app.command()
def upgrade(
    level: Annotated[
        int | None, typer.Option(min=1, help="Feature level. Default: the highest of the nodes' release.")
    ] = None,
    admin: Admin = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Raise the cluster's feature level once all nodes run the new release. There is no way back.

    \b
    Example:
      strandline cluster upgrade
    """
    where = target(admin=admin, folder=cluster).admin
    body = {"level": level} if level else {}
    answer = first_answer(where, "POST", "/api/cluster/upgrade", body, timeout=20.0)
    show(as_json, answer, "feature level {feature_level}, was {before}".format(**answer))


@app.command()
def logs(
    nodes: Nodes = None,
    last: Annotated[int, typer.Option("--last", "-n", min=0, help="Lines of each log.")] = 20,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new lines until Ctrl-C.")
    ] = False,
    cluster: Folder = Path(DEFAULT_FOLDER),
    as_json: Json = False,
) -> None:
    """Print the last lines of the nodes' logs. --json: an object with "node" and "line" for each line.

    \b
    Examples:
      strandline cluster logs 2 -n 100
      strandline cluster logs --follow
    """
    found = LocalCluster(cluster).chosen(*(nodes or ()))
    for node, line in lines({each.node: each.log for each in found}, last, follow=follow):
        show(as_json, {"node": node, "line": line}, f"node {node}: {line}" if len(found) > 1 else line)


def _calm(look: Callable[[], T], healthy: Callable[[T], bool], wait: float) -> T:
    """Look again, after a wait, while not all is healthy: a group that changes its leader has none then."""
    for _ in range(_LOOKS if wait else 0):
        if healthy(found := look()):
            return found
        time.sleep(_LOOK_SECONDS)
    return look()


def _healthy(nodes: Sequence[NodeStatus]) -> bool:
    return all(node.problem is None for node in nodes)


def _remote(found: dict[str, Any], as_json: bool) -> None:
    rows = [
        (
            each["node"],
            each["kafka"],
            each["admin"],
            each["replicas"],
            each["leads"],
            _health(each["problem"]),
        )
        for each in found["nodes"]
    ]
    header = ("NODE", "KAFKA", "HTTP", "REPLICAS", "LEADS", "HEALTH")
    leader = "no leader" if found["controller"] is None else f"node {found['controller']}"
    head = f"cluster {found['cluster'] or '(unknown)'}, epoch {found['epoch']}, controller: {leader}"
    reasons = _reasons((each["node"], each["problem"]) for each in found["nodes"])
    show(as_json, found, [escaped(head), table(header, rows, right=(0, 3, 4)), *reasons])
    if not found["healthy"]:
        raise typer.Exit(FAILED)


def _health(problem: str | None) -> str:
    """One word for the table: reasons are long, and follow below it."""
    if problem is None:
        return "healthy"
    return "degraded" if problem.startswith(DEGRADED) else "unhealthy"


def _reasons(problems: Iterable[tuple[int | None, str | None]]) -> list[str]:
    """A line for each node with a problem."""
    return [
        escaped(f"{'?' if node is None else f'node {node}'}: {problem.removeprefix(DEGRADED)}")
        for node, problem in problems
        if problem is not None
    ]
