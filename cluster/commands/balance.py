"""`strandline cluster balance`: replicas that move by themselves until nodes are even; shown, on and off."""

from __future__ import annotations

from typing import Any

import typer

from strandline.cluster.admin_client import first_answer
from strandline.cluster.output import Json, escaped, plural, show, table
from strandline.cluster.target import Admin, Cluster, target

app = typer.Typer(help="Spread replicas over racks and nodes in the background: show, on, off.")


@app.command()
def status(admin: Admin = None, cluster: Cluster = None, as_json: Json = False) -> None:
    """Show how many replicas each node has, which would move next, and why.

    The moves are shown whether balancing is on or off; the nodes' log tells of each that begins.

    \b
    Examples:
      strandline cluster balance status
      strandline cluster balance status --json
    """
    found = first_answer(target(admin=admin, folder=cluster).admin, "GET", "/api/balance")
    steps, waits = found["steps"], found["waits"]
    if not steps:
        state = "even"
    elif not found["on"]:
        state = "uneven, and balancing is off: `strandline cluster balance on` begins it"
    elif waits is None:
        state = "uneven, one replica moves at a time"
    else:
        state = f"uneven, waits: {waits}"
    more = " or more" if found["more"] else ""
    head = f"balancing is {'on' if found['on'] else 'off'}; {state}; {plural(len(steps), 'move')}{more} to go"
    nodes = table(
        ("NODE", "RACK", "REPLICAS"),
        [(each["node"], each["rack"] or "-", each["replicas"]) for each in found["nodes"]],
        right=(0, 2),
    )
    shown: list[Any] = [escaped(head), nodes]
    if steps:
        rows = [
            (each["topic"], each["partition"], each["leaves"], each["joins"], each["why"]) for each in steps
        ]
        shown.append(table(("TOPIC", "PARTITION", "FROM", "TO", "WHY"), rows, right=(1, 2, 3)))
    show(as_json, found, shown)


@app.command("on")
def switch_on(admin: Admin = None, cluster: Cluster = None, as_json: Json = False) -> None:
    """Have replicas move until racks and nodes are even, and again whenever they are not any more.

    One replica moves at a time, and each is added before the old one goes. Nothing moves while a node is
    away, drained or replaced. It outlives restarts.

    \b
    Example:
      strandline cluster balance on
    """
    _set(True, admin, cluster, as_json)


@app.command("off")
def switch_off(admin: Admin = None, cluster: Cluster = None, as_json: Json = False) -> None:
    """Begin no more moves. A move under way goes on to its end.

    \b
    Example:
      strandline cluster balance off
    """
    _set(False, admin, cluster, as_json)


def _set(on: bool, admin: str | None, cluster: Cluster, as_json: bool) -> None:
    addresses = target(admin=admin, folder=cluster).admin
    found = first_answer(addresses, "POST", "/api/balance", {"on": on}, timeout=20.0)
    show(as_json, found, f"balancing is {'on' if found['on'] else 'off'}")
