"""`strandline gc`: garbage collection: what can be deleted, what holds it back, pause and resume."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from strandline.cluster.admin_client import AdminClient, Unreachable, first_answer
from strandline.cluster.collection import ask, collectable, lowest, problems, why
from strandline.cluster.failure import FAILED, CommandFailed
from strandline.cluster.node_answers import NodeAnswers
from strandline.cluster.output import Json, escaped, plural, show, table
from strandline.cluster.target import Admin, Cluster, target

app = typer.Typer(help="Show, pause, resume and reset garbage collection.")

WORST = 10
"""Partitions that are shown without --all."""


@app.command()
def status(
    every: Annotated[
        bool, typer.Option("--all", help="Show every partition, not only the ten with the lowest M(p).")
    ] = False,
    admin: Admin = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Show M, what holds it back, the collectors, and each partition's M(p), the lowest first.

    No partition needs level-zero objects of epochs up to M; collectors delete them a grace period later.
    Exits with status 1 if a node does not answer, or reports a failure.

    \b
    Examples:
      strandline gc status
      strandline gc status --all --json
    """
    answers = ask(target(admin=admin, folder=cluster).admin)
    partitions, low, wrong = collectable(answers), lowest(answers), problems(answers)
    told = [answer.status for answer in answers if answer.problem is None]
    epoch = max(each["cluster_epoch"] for each in told)
    paused = any(each["collector"]["paused"] for each in told)
    plain = {
        "cluster_epoch": epoch,
        "max_collectable_epoch": low["max_collectable_epoch"],
        "held_back": low["held_back"],
        "paused": paused,
        "problems": wrong,
        "nodes": [
            {"address": answer.address, "problem": answer.problem, **answer.status} for answer in answers
        ],
        "partitions": partitions if every else partitions[:WORST],
        "partition_count": len(partitions),
    }
    state = "PAUSED in the whole cluster, `strandline gc resume` ends that" if paused else "collecting"
    head = [
        f"M {low['max_collectable_epoch']:,} at cluster epoch {epoch:,}; {state}",
        f"held back by {why(low['held_back'])}",
    ]
    shown = partitions if every else partitions[:WORST]
    left = len(partitions) - len(shown)
    nodes = table(
        ("NODE", "STATE", "M", "DELETES TO", "LAG", "DELETED", "LISTED", "ERRORS", "TO LIFT"),
        [_node(answer) for answer in answers],
        right=(2, 3, 4, 5, 6, 7, 8),
    )
    listed = table(
        ("PARTITION", "LEADER", "M(p)", "BEHIND", "HEARD"),
        [_partition(row, epoch) for row in shown],
        right=(1, 2, 3),
    )
    tail = [f"and {plural(left, 'partition')} more: --all"] if left else []
    tail += ["", *wrong] if wrong else []
    show(as_json, plain, [*map(escaped, head), "", nodes, "", listed, *map(escaped, tail)])
    if wrong:
        raise typer.Exit(FAILED)


@app.command()
def pause(admin: Admin = None, cluster: Cluster = None, as_json: Json = False) -> None:
    """Pause garbage collection on every node until `gc resume`. Survives restarts.

    \b
    Example:
      strandline gc pause && strandline gc status
    """
    plain = first_answer(target(admin=admin, folder=cluster).admin, "POST", "/api/gc/pause", {}, timeout=20.0)
    show(as_json, plain, "paused: no node deletes records from storage")


@app.command()
def resume(admin: Admin = None, cluster: Cluster = None, as_json: Json = False) -> None:
    """Resume garbage collection on every node.

    \b
    Example:
      strandline gc resume
    """
    plain = first_answer(
        target(admin=admin, folder=cluster).admin, "POST", "/api/gc/resume", {}, timeout=20.0
    )
    show(as_json, plain, "resumed: all nodes collect")


@app.command()
def reset(admin: Admin = None, cluster: Cluster = None, as_json: Json = False) -> None:
    """Restart every node's collector: after a collector stopped, or to set its counters to 0.

    \b
    Example:
      strandline gc reset
    """
    done = _each(target(admin=admin, folder=cluster).admin, "POST", "/api/gc/reset", {})
    nodes = [answer["node"] for answer in done]
    show(as_json, {"reset": nodes}, f"reset: node {', '.join(map(str, nodes))}")


@app.command("dry-run")
def dry_run(
    limit: Annotated[
        int, typer.Option(min=1, max=1000, help="Maximum number of objects that each node counts.")
    ] = 1000,
    names: Annotated[bool, typer.Option("--names", help="Print the objects' names.")] = False,
    admin: Admin = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Show which level-zero objects the collectors would delete now. Deletes nothing.

    \b
    Examples:
      strandline gc dry-run
      strandline gc pause && strandline gc dry-run --limit 10 --names
    """
    done = _each(target(admin=admin, folder=cluster).admin, "GET", f"/api/gc/dry-run?limit={limit}", None)
    rows = [
        (each["node"], each["epoch"], f"{each['objects']:,}{' or more' if each['more'] else ''}",
         ", ".join(f"{shard}: {count:,}" for shard, count in each["shards"].items()))
        for each in done
    ]  # fmt: skip
    listed = table(("NODE", "UP TO EPOCH", "OBJECTS", "BY SHARD"), rows, right=(1, 2))
    text = [listed, *(name for each in done for name in each["names"])] if names else listed
    show(as_json, {"nodes": done}, text)


def _each(addresses: tuple[str, ...], method: str, path: str, body: Any) -> list[dict[str, Any]]:
    """The answers of all nodes; raises CommandFailed, after all were asked, if one did not answer."""
    done, failed = [], []
    for address in addresses:
        try:
            answer = AdminClient(address).request(method, path, body, timeout=35.0)
        except Unreachable as error:
            failed.append(f"{address}: {error}")
            continue
        if answer.status == 200 and isinstance(answer.body, dict):
            done.append(answer.body)
        else:
            failed.append(f"{address}: {answer.reasons}")
    if failed:
        rest = f"; done on node {', '.join(str(each['node']) for each in done)}" if done else ""
        raise CommandFailed(
            f"{method} {path} failed on {plural(len(failed), 'node')} ({'; '.join(failed)}){rest}",
            "check that the nodes run (`strandline cluster status`), then try again",
        )
    return done


def _node(answer: NodeAnswers) -> tuple[object, ...]:
    if answer.problem is not None:
        return (answer.address, "no answer", *[None] * 7)
    told, collector = answer.status, answer.status["collector"]
    state = (
        "stopped" if collector["broken"] is not None
        else "paused" if collector["paused"]
        else "starting" if collector["waiting"]
        else "failing" if collector["last_error"] is not None
        else "collecting"
    )  # fmt: skip
    return (
        told["node"],
        state,
        f"{told['max_collectable_epoch']:,}",
        f"{collector['bound']:,}",
        f"{collector['lag_epochs']:,} ({collector['lag_seconds']:.0f} s)",
        f"{collector['deleted']:,}",
        f"{collector['listed']:,}",
        f"{collector['errors']:,}",
        f"{told['level_one']['unreconciled_bytes']:,} B",
    )


def _partition(row: dict[str, Any], epoch: int) -> tuple[object, ...]:
    return (
        f"{row['topic']}-{row['partition']}",
        row["leader"],
        f"{row['max_collectable_epoch']:,}",
        f"{epoch - row['max_collectable_epoch']:,}",
        "never" if row["heard_from_term"] is None else f"term {row['heard_from_term']}",
    )
