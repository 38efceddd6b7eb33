"""`strandline transaction`: list transactions, and abort those that hang.

An open transaction holds back every reader of the committed records behind it. Its coordinator aborts it
after its timeout; an operator that knows that the producer is gone need not wait for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from strandline.cluster.admin_client import AdminClient, Unreachable
from strandline.cluster.failure import FAILED, MISUSED, CommandFailed
from strandline.cluster.output import Json, escaped, plural, show, table
from strandline.cluster.target import Admin, Cluster, target

app = typer.Typer(help="List and describe transactions, and abort hanging ones.")

PAGE: Final = 1000
MAX_PAGES: Final = 1000
"""Of transactional ids, a node: a million."""
_OPEN: Final = "Ongoing"
_KEYS: Final = {"transactions", "next", "coordinators"}

Id = Annotated[str, typer.Argument(metavar="TRANSACTIONAL_ID")]


@app.command("list")
def list_transactions(
    state: Annotated[
        str | None, typer.Option(metavar="STATE", help="Only transactions in this state, e.g. Ongoing.")
    ] = None,
    admin: Admin = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """List transactional ids, each with the state of its newest transaction.

    Ends with status 1 when some may be missing: a node does not answer, or a coordinator has no leader.

    \b
    Examples:
      strandline transaction list
      strandline transaction list --state Ongoing --json
    """
    filters = "" if state is None else f"&state={quote(state, safe='')}"
    found, problems = _ask(target(admin=admin, folder=cluster).admin, filters)
    rows = [row for _, row in found]
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
    show(as_json, {"transactions": rows, "problems": problems}, [text, *map(escaped, problems)])
    if problems:
        raise typer.Exit(FAILED)


@app.command()
def describe(
    transactional_id: Id, admin: Admin = None, cluster: Cluster = None, as_json: Json = False
) -> None:
    """Show a transactional id's producer, and the partitions and groups of its transaction.

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
    show(as_json, row, [*map(escaped, head), *([table(("IN IT", "NAME"), inside)] if inside else [])])


@app.command()
def abort(
    transactional_id: Id,
    number: Annotated[
        int | None,
        typer.Option(min=1, help="Abort only the transaction of this number. Default: the open one."),
    ] = None,
    admin: Admin = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Abort the open transaction of a transactional id. The producer is fenced and has to be restarted.

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
        if answer.status >= 500:
            raise Unreachable(answer.reasons)
    except Unreachable as error:
        raise CommandFailed(
            f"{address} did not say what became of it ({error}): it may be aborted, or not",
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
    found, problems = _ask(addresses, f"&transactional_id={quote(transactional_id, safe='')}")
    if found:
        return found[0]
    why = f"; {'; '.join(problems)}" if problems else ""
    raise CommandFailed(
        f"no node that was asked coordinates {transactional_id}{why}",
        "see `strandline transaction list`" if not problems else "see `strandline cluster status`",
    )


def _ask(addresses: tuple[str, ...], filters: str) -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
    """Every node's rows in the order of the ids, each with the node's address, and what they may lack.

    Two nodes may both believe that they coordinate an id: the one that knows its newest transaction counts.
    CommandFailed when no node answers.
    """
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    problems: list[str] = []
    count, led = 0, set[int]()
    for address in addresses:
        # If a leader changes between two pages, no node has listed all ids of its coordinator.
        here: set[int] | None = None
        try:
            for page in _pages(AdminClient(address), filters):
                for row in page["transactions"]:
                    known = found.get(row["transactional_id"])
                    if known is None or row["updated_ms"] > known[1]["updated_ms"]:
                        found[row["transactional_id"]] = address, row
                count = max(count, page["coordinators"]["coordinators_total"])
                told = set(page["coordinators"]["led"])
                here = told if here is None else here & told
            led |= here or set()
        except Unreachable as error:
            problems.append(f"{address} does not answer: {error}")
    if len(problems) == len(addresses):
        raise CommandFailed(
            f"no node answers ({'; '.join(problems)})",
            "check that the nodes run (`strandline cluster status`), or name one's HTTP port with --admin",
        )
    missing = sorted({*range(count)} - led)
    if missing:
        numbers = ", ".join(map(str, missing[:20])) + (" and more" if len(missing) > 20 else "")
        problems.append(
            f"{plural(len(missing), 'coordinator')} of {count} led by no node that answered, and what they "
            f"coordinate missing: {numbers}"
        )
    return [found[key] for key in sorted(found)], problems


def _pages(client: AdminClient, filters: str) -> Iterator[dict[str, Any]]:
    after = ""
    for _ in range(MAX_PAGES):
        answer = client.request("GET", f"/api/transactions?limit={PAGE}{filters}{after}")
        if answer.status == 400:
            raise CommandFailed(answer.reasons, "correct what was asked for", MISUSED)
        if answer.status != 200:
            raise Unreachable(answer.reasons)
        if not isinstance(answer.body, dict) or not answer.body.keys() >= _KEYS:
            raise Unreachable("it is not a node's HTTP port, or the node is of another release")
        yield answer.body
        if answer.body["next"] is None:
            return
        after = f"&after={quote(answer.body['next'], safe='')}"


def _time(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
