"""`strandline transaction`: who produces in transactions, what hangs, and the end of it.

A transaction that nobody ends holds back every reader of what was committed behind it. Its coordinator aborts
it when its time is over; an operator who knows that its producer is gone need not wait for that.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer
from rich.console import Group

from cluster.admin_client import AdminClient, Unreachable
from cluster.failure import FAILED, CommandFailed
from cluster.output import Json, plural, show, table
from cluster.target import Admin, Cluster, target

app = typer.Typer(help="List and describe transactions, abort one that hangs.")

PAGE: Final = 1000
MAX_PAGES: Final = 1000
"""Of transactional ids, a node: a million."""
_OPEN: Final = "Ongoing"

Id = Annotated[str, typer.Argument(metavar="TRANSACTIONAL_ID")]


@app.command("list")
def list_transactions(
    state: Annotated[
        str | None, typer.Option(metavar="STATE", help="Only those in this state, e.g. Ongoing.")
    ] = None,
    admin: Admin = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """List transactional ids and the state of the newest transaction of each.

    Ends with status 1 when a node does not answer: what it coordinates is not known then.

    \b
    Examples:
      strandline transaction list
      strandline transaction list --state Ongoing --json
    """
    filters = "" if state is None else f"&state={quote(state, safe='')}"
    rows, problems = _ask(target(admin=admin, folder=cluster).admin, filters)
    listed = table(
        ("TRANSACTIONAL ID", "STATE", "NUMBER", "PRODUCER", "EPOCH", "BEGAN", "PARTITIONS", "GROUPS"),
        [
            (
                row["transactional_id"],
                row["state"],
                row["number"],
                row["producer_id"],
                row["producer_epoch"],
                _time(row["started_ms"]),
                len(row["partitions"]),
                len(row["groups"]),
            )
            for row in rows
        ],
        right=(2, 3, 4, 6, 7),
    )
    text = listed if rows else "no transactional ids"
    show(as_json, {"transactions": rows, "problems": problems}, Group(text, *map(_plain, problems)))
    if problems:
        raise typer.Exit(FAILED)


@app.command()
def describe(
    transactional_id: Id, admin: Admin = None, cluster: Cluster = None, as_json: Json = False
) -> None:
    """Show a transactional id's producer, and what is in its transaction.

    \b
    Example:
      strandline transaction describe copier-3
    """
    _, row = _find(target(admin=admin, folder=cluster).admin, transactional_id)
    head = [
        f"{transactional_id}: transaction {row['number']} is {row['state']}"
        + ("" if row["started_ms"] is None else f", began {_time(row['started_ms'])}"),
        f"producer {row['producer_id']} epoch {row['producer_epoch']}, timeout {row['timeout_ms']:,} ms, "
        f"coordinator {row['coordinator']}",
    ]
    inside = [
        *(("partition", f"{one['topic'] or '(deleted)'}-{one['partition']}") for one in row["partitions"]),
        *(("group", group) for group in row["groups"]),
    ]
    show(as_json, row, Group(*map(_plain, head), *([table(("IN IT", "NAME"), inside)] if inside else [])))


@app.command()
def abort(
    transactional_id: Id,
    number: Annotated[
        int | None,
        typer.Option(min=1, help="Only if it is this one that is open. Default: the one that is."),
    ] = None,
    admin: Admin = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Abort the open transaction of a transactional id. Its producer is fenced: it has to start anew.

    \b
    Example:
      strandline transaction abort copier-3
    """
    address, row = _find(target(admin=admin, folder=cluster).admin, transactional_id)
    seen = row["number"] if number is None else number
    if row["state"] != _OPEN or row["number"] != seen:
        raise CommandFailed(
            f"transaction {seen} of {transactional_id} is not open: {row['number']} is {row['state']}",
            "see `strandline transaction describe`",
        )
    body = {"transactional_id": transactional_id, "number": seen}
    try:
        answer = AdminClient(address).request("POST", "/api/transactions/abort", body, timeout=35.0)
    except Unreachable as error:
        raise CommandFailed(
            f"{address} did not answer ({error}): it may be aborted, or not",
            "see `strandline transaction describe`, then try again",
        ) from error
    if answer.status != 200:
        raise CommandFailed(
            f"transaction {seen} of {transactional_id} is not aborted: {answer.reasons}",
            "see `strandline transaction describe`",
        )
    show(as_json, answer.body, f"aborted: transaction {seen} of {transactional_id}")


def _find(addresses: tuple[str, ...], transactional_id: str) -> tuple[str, dict[str, Any]]:
    """The address of the node that coordinates an id, and what it says of it."""
    asked = f"/api/transactions?limit=1&transactional_id={quote(transactional_id, safe='')}"
    problems = []
    for address in addresses:
        try:
            rows = _page(AdminClient(address), asked)["transactions"]
        except Unreachable as error:
            problems.append(f"{address}: {error}")
            continue
        if rows:
            return address, rows[0]
    why = f"; {plural(len(problems), 'node')} did not answer: {'; '.join(problems)}" if problems else ""
    raise CommandFailed(
        f"no node coordinates {transactional_id}{why}",
        "see `strandline transaction list`" if not problems else "see `strandline cluster status`",
    )


def _ask(addresses: tuple[str, ...], filters: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Every node's rows in the order of the ids, and who did not answer; CommandFailed when nobody did.

    Two nodes may both believe that they coordinate an id: the one that knows its newest transaction counts.
    """
    rows: dict[str, dict[str, Any]] = {}
    problems = []
    for address in addresses:
        client, after = AdminClient(address), ""
        try:
            for _ in range(MAX_PAGES):
                page = _page(client, f"/api/transactions?limit={PAGE}{filters}{after}")
                for row in page["transactions"]:
                    known = rows.get(row["transactional_id"])
                    if known is None or row["updated_ms"] > known["updated_ms"]:
                        rows[row["transactional_id"]] = row
                if page["next"] is None:
                    break
                after = f"&after={quote(page['next'], safe='')}"
        except Unreachable as error:
            problems.append(f"{address} does not answer: {error}")
    if len(problems) == len(addresses):
        raise CommandFailed(
            f"no node answers ({'; '.join(problems)})",
            "see whether the nodes run (`strandline cluster status`), or name one's HTTP port with --admin",
        )
    return [rows[key] for key in sorted(rows)], problems


def _page(client: AdminClient, path: str) -> dict[str, Any]:
    answer = client.request("GET", path)
    if answer.status != 200:
        raise Unreachable(answer.reasons)
    if not isinstance(answer.body, dict) or not {"transactions", "next"} <= answer.body.keys():
        raise Unreachable("that is no node's HTTP port, or one of another release")
    return answer.body


def _time(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def _plain(line: str) -> str:
    """A line that Rich prints as it is."""
    return line.replace("[", r"\[")
