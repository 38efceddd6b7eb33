"""`strandline compaction`: how far compacted topics are cleaned, and what holds that back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from strandline.cluster.admin_client import first_answer
from strandline.cluster.compaction import CompactedPartition, ask, held_by, partitions, problems, resets
from strandline.cluster.failure import FAILED, MISUSED, CommandFailed
from strandline.cluster.output import Json, escaped, plural, show, table
from strandline.cluster.target import Admin, Cluster, target

app = typer.Typer(help="Show how far compacted topics are cleaned, and hold records against it.")

_SUMMARY = ("PARTITION", "LEADER", "MTRO", "RIPE", "MXRO", "RIPE", "HOLDS")
WORST = 10
"""Partitions that are shown without --all."""


@app.callback()
def compaction() -> None:
    """Show how far compacted topics are cleaned, and hold records against it."""


@app.command()
def status(
    topic: Annotated[
        str | None,
        typer.Argument(metavar="[TOPIC]", help="Only this topic, with every copy of its partitions."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Show every partition, not only the ten held back for longest.")
    ] = False,
    admin: Admin = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Show up to where deletions (tombstones) and markers may go, and which copies hold that back.

    A tombstone is removed once every replica and level one are clean past it (MTRO), and
    delete.retention.ms later (RIPE). Exits with status 1 if a node does not answer, or a local log fails.

    \b
    Examples:
      strandline compaction status
      strandline compaction status users --json
    """
    answers = ask(target(admin=admin, folder=cluster).admin, topic)
    found = partitions(answers)
    wrong = problems(answers, found)
    if topic is not None and not found and not wrong:
        raise CommandFailed(
            f"no node has a compacted replica of {topic}",
            "see `strandline topic list`, and that cleanup.policy of the topic has compact",
        )
    shown = found if every or topic is not None else found[:WORST]
    plain = {
        "partition_count": len(found),
        "partitions": [one.as_dict() for one in shown],
        "nodes": [
            {"address": answer.address, "problem": answer.problem, **answer.status} for answer in answers
        ],
        "problems": wrong,
    }
    text: list[Any] = [
        table(
            (*_SUMMARY, "TOMBSTONES HELD BY", "MARKERS HELD BY"),
            [_summary(one) for one in shown],
            right=range(1, len(_SUMMARY)),
        )
        if shown
        else "no compacted partitions"
    ]
    if topic is not None and shown:
        copies = table(
            ("PARTITION", "COPY", "CLEAN", "END", "MCCO", "MXFO", "BYTES", "RESETS"),
            [row for one in shown for row in _copies(one)],
            right=(2, 3, 4, 5, 6, 7),
        )
        text += ["", copies, *map(escaped, resets(shown))]
        holds = [row for one in shown for row in _holds(one)]
        if holds:
            text += ["", table(("PARTITION", "HELD BY READER", "FROM OFFSET", "UNTIL"), holds, right=(2,))]
    left = len(found) - len(shown)
    text += [f"and {plural(left, 'partition')} more: --all"] if left else []
    text += ["", *map(escaped, wrong)] if wrong else []
    show(as_json, plain, text)
    if wrong:
        raise typer.Exit(FAILED)


Reader = Annotated[str, typer.Argument(metavar="READER", help="The reader's name, of its own choice.")]
Topic = Annotated[str, typer.Argument(metavar="TOPIC")]


@app.command()
def hold(
    topic: Topic,
    reader: Reader,
    offset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PARTITION=OFFSET",
            help="Hold a partition from this offset on; may be repeated. Default: every partition, from "
            "where the reader holds it already, else from its present end.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option("--for", metavar="SECONDS", min=1, max=604_800, help="When the hold runs out.")
    ] = 3600.0,
    admin: Admin = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Keep records from being cleaned away, from an offset on, for a reader that may read them again.

    Cleaning stops at the lowest hold of a partition. Renew it while the reader lives, with the offset of
    the reader's last checkpoint. An offset below which records may be gone is refused: the hold was lost.
    Retention and deletions are not held back. Exits with status 1 if a partition is not held.

    \b
    Examples:
      strandline compaction hold users my-table --for 86400
      strandline compaction hold users my-table --offset 0=1200 --offset 1=980
    """
    body: dict[str, Any] = {"topic": topic, "reader": reader, "lease_seconds": seconds}
    if offset:
        body["offsets"] = dict(map(_offset, offset))
    where = target(admin=admin, folder=cluster)
    _show_holds(first_answer(where.admin, "POST", "/api/compaction/holds", body, timeout=30.0), as_json)


@app.command()
def release(
    topic: Topic, reader: Reader, admin: Admin = None, cluster: Cluster = None, as_json: Json = False
) -> None:
    """End a reader's holds of all partitions of a topic."""
    body = {"topic": topic, "reader": reader}
    where = target(admin=admin, folder=cluster)
    report = first_answer(where.admin, "POST", "/api/compaction/holds/release", body, timeout=30.0)
    _show_holds(report, as_json)


def _offset(text: str) -> tuple[str, int]:
    partition, _, offset = text.partition("=")
    if not (partition.isdecimal() and offset.isdecimal()):
        raise CommandFailed(f"--offset {text} is no PARTITION=OFFSET", "write it like 0=1200", MISUSED)
    return partition, int(offset)


def _show_holds(report: Any, as_json: bool) -> None:
    rows = [
        (f"{report['topic']}-{one['partition']}", _number(one["offset"]), _when(one["until_ms"]), _why(one))
        for one in report["partitions"]
    ]
    show(as_json, report, table(("PARTITION", "FROM OFFSET", "UNTIL", "PROBLEM"), rows, right=(1,)))
    if not report["complete"]:
        raise typer.Exit(FAILED)


def _why(one: dict[str, Any]) -> str | None:
    if one["lowest"] is not None:
        return f"lost: below {one['lowest']:,} records may be gone"
    reason: str | None = one["error"]
    return reason


def _when(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _holds(one: CompactedPartition) -> list[tuple[object, ...]]:
    return [
        (f"{one.topic}-{one.number}", held["reader"], _number(held["offset"]), _when(held["until_ms"]))
        for held in one.state["holds"]
    ]


def _summary(one: CompactedPartition) -> tuple[object, ...]:
    leader, state = one.leader, one.state
    numbers = (state["mtro"], state["ripe_tombstones"], state["mxro"], state["ripe_markers"])
    held = ["no leader answers"] * 2
    if leader is not None:
        held = [held_by(one, what) for what in ("tombstones", "markers")]
    name, holds = f"{one.topic}-{one.number}", len(state["holds"])
    return (name, one.leads, *(f"{number:,}" for number in numbers), holds, *held)


def _copies(one: CompactedPartition) -> list[tuple[object, ...]]:
    """One row for level one, and one for each replica: as its leader knows it, with its own node's log."""
    name = f"{one.topic}-{one.number}"
    told = {} if one.leader is None else {copy["node"]: copy for copy in one.leader["copies"]}
    rows: list[tuple[object, ...]] = []
    if None in told:
        rows.append((name, "level one", None, None, *_ends(told.pop(None)), None, None))
    for node in sorted({*told, *one.locals}):
        local = one.locals.get(node)
        log: tuple[object, ...] = (None,) * 4
        if local is not None:
            log = (
                _number(local["clean_end"]),
                _number(local["log_end"]),
                f"{local['bytes']:,}",
                local["resets"],
            )
        ends = _ends(told.get(node) or local or {})
        rows.append((name, f"node {node}", *log[:2], *ends, *log[2:]))
    return rows


def _ends(copy: dict[str, Any]) -> tuple[str | None, str | None]:
    return _number(copy.get("mcco")), _number(copy.get("mxfo"))


def _number(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"
