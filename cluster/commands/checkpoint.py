"""`strandline checkpoint`: publish a cluster's state for audits and exports."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from strandline.cluster.admin_client import first_answer
from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.output import Json, plural, progress, show
from strandline.cluster.target import Admin, Cluster, target
from strandline.statemachine.internal_topics import INTERNAL_TOPICS


def checkpoint(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC...]", help="Topics to include. Default: all.")
    ] = None,
    lease: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="Lease: how long the referenced objects are kept.")
    ] = 3600.0,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, max=600, help="How long to wait for the checkpoint.")
    ] = 60.0,
    renew: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Renew the leases in this output of `checkpoint --json`."),
    ] = None,
    admin: Admin = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Publish the state of every replica to the object storage, and wait until all states are stored.

    \b
    Examples:
      strandline checkpoint && strandline audit
      strandline checkpoint orders --lease 86400
      strandline checkpoint --json > taken.json; strandline checkpoint --renew taken.json
    """
    where = target(admin=admin, folder=cluster)
    if renew is not None:
        if topics:
            raise CommandFailed("--renew takes no topics", "leave them out, or leave out --renew", MISUSED)
        _renew(where.admin, renew, lease, timeout, as_json)
        return
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
            "check that all nodes are healthy, then take it once more",
        )
    documents = sum(len(part["published_by"]) for part in parts)
    said = f"checkpoint of {plural(len(parts), 'group')}: {plural(documents, 'document')} published"
    # Nodes of a build without restore points say nothing of them.
    if report.get("restore_point") is not None:
        said += f"; restore point {report['restore_point']}"
    elif report.get("no_restore_point") is not None:
        said += f"; no restore point: {report['no_restore_point']}"
    show(as_json, report, said)


def _renew(addresses: Sequence[str], path: Path, lease: float, timeout: float, as_json: bool) -> None:
    body = {"checkpoints": _leased(path), "lease_seconds": lease, "timeout_seconds": timeout}
    report = first_answer(addresses, "POST", "/api/checkpoints/renew", body, timeout=timeout + 10)
    lost = [part for part in report["checkpoints"] if part["lease_until_ms"] is None]
    if lost:
        if as_json:
            show(True, report, "")
        first, count = lost[0], len(report["checkpoints"])
        raise CommandFailed(
            f"{len(lost)} of {plural(count, 'lease')} not renewed: group {first['group']}, checkpoint "
            f"{first['index']}: {first['error']}",
            "take a new checkpoint" if first["ended"] else "check that all nodes are healthy, then try again",
        )
    show(as_json, report, f"renewed: {plural(len(report['checkpoints']), 'lease')}")


def _leased(path: Path) -> list[dict[str, int]]:
    """Group and index of each partition's checkpoint that a report names; coordinators' have no lease."""
    try:
        parts = json.loads(path.read_text())["checkpoints"]
        named = [
            {"group": part["group"], "index": part["index"]}
            for part in parts
            if part["topic"] is not None
            and part["topic"] not in INTERNAL_TOPICS
            and part["index"] is not None
        ]
    except OSError as error:
        raise CommandFailed(f"{path}: {error.strerror}", "name what was written", MISUSED) from error
    except (ValueError, LookupError, TypeError) as error:
        raise CommandFailed(
            f"{path} is not a report of a checkpoint",
            "give it what `strandline checkpoint --json` printed",
            MISUSED,
        ) from error
    if not named:
        raise CommandFailed(f"{path} names no partition's checkpoint", "take one", MISUSED)
    return named


def _why(part: dict[str, Any]) -> str:
    name = "the controller" if part["topic"] is None else f"{part['topic']}-{part['partition']}"
    if part["index"] is None:
        return f"{name} took none ({part['error'] or 'no reason known'})"
    return f"{name} lacks the documents of node {', '.join(map(str, part['missing']))}"
