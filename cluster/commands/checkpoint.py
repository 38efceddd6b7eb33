"""`strandline checkpoint`: have a cluster publish where it stands, for audits and exports to read."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cluster.admin_client import first_answer
from cluster.failure import CommandFailed
from cluster.output import Json, plural, progress, show
from cluster.target import Admin, Cluster, target


def checkpoint(
    topics: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC...]", help="Default: all.")] = None,
    lease: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="How long what it refers to is kept for readers.")
    ] = 3600.0,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, max=600, help="How long to wait for it.")
    ] = 60.0,
    admin: Admin = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Have every replica publish its state to the object storage, and wait until it lies there.

    \b
    Examples:
      strandline checkpoint && strandline audit
      strandline checkpoint orders --lease 86400
    """
    where = target(admin=admin, folder=cluster)
    body: dict[str, Any] = {"lease_seconds": lease, "timeout_seconds": timeout}
    if topics:
        body["topics"] = topics
    with progress(as_json) as tell:
        tell("waiting for every replica's state in the object storage")
        report = first_answer(where.admin, "POST", "/api/checkpoints", body, timeout=timeout + 10)
    parts = report["checkpoints"]
    incomplete = [part for part in parts if part["index"] is None or part["missing"]]
    if incomplete:
        if as_json:
            show(True, report, "")
        raise CommandFailed(
            f"{len(incomplete)} of {plural(len(parts), 'group')} are not complete: {_why(incomplete[0])}",
            "see whether all nodes are healthy, then take it once more",
        )
    documents = sum(len(part["published_by"]) for part in parts)
    show(
        as_json,
        report,
        f"checkpoint of {plural(len(parts), 'group')}: {plural(documents, 'document')} published",
    )


def _why(part: dict[str, Any]) -> str:
    name = "the controller" if part["topic"] is None else f"{part['topic']}-{part['partition']}"
    if part["index"] is None:
        return f"{name} took none ({part['error'] or 'no reason known'})"
    return f"{name} lacks the documents of node {', '.join(map(str, part['missing']))}"
