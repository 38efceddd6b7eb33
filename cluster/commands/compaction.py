"""`strandline compaction`: how far compacted topics are cleaned, and what holds deletions back."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from strandline.cluster.compaction import Partition, ask, held_by, partitions, problems
from strandline.cluster.failure import FAILED, CommandFailed
from strandline.cluster.output import Json, escaped, plural, show, table
from strandline.cluster.target import Admin, Cluster, target

app = typer.Typer(help="Show how far compacted topics are cleaned.")

WORST = 10
"""Partitions that are shown without --all."""


@app.callback()
def compaction() -> None:
    """Show how far compacted topics are cleaned."""


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
            ("PARTITION", "LEADER", "MTRO", "RIPE", "MXRO", "RIPE", "TOMBSTONES HELD BY", "MARKERS HELD BY"),
            [_summary(one) for one in shown],
            right=(1, 2, 3, 4, 5),
        )
        if shown
        else "no compacted partitions"
    ]
    if topic is not None and shown:
        copies = table(
            ("PARTITION", "COPY", "CLEAN", "END", "MCCO", "MXFO", "BYTES", "RESETS", "LAST RESET FOR"),
            [row for one in shown for row in _copies(one)],
            right=(2, 3, 4, 5, 6, 7),
        )
        text += ["", copies]
    left = len(found) - len(shown)
    text += [f"and {plural(left, 'partition')} more: --all"] if left else []
    text += ["", *map(escaped, wrong)] if wrong else []
    show(as_json, plain, text)
    if wrong:
        raise typer.Exit(FAILED)


def _summary(one: Partition) -> tuple[object, ...]:
    leader, state = one.leader, one.state
    numbers = (state["mtro"], state["ripe_tombstones"], state["mxro"], state["ripe_markers"])
    held = ["no leader answers"] * 2
    if leader is not None:
        held = [held_by(leader[f"{what}_held"], leader["copies"]) for what in ("tombstones", "markers")]
    return (f"{one.topic}-{one.number}", one.leads, *(f"{number:,}" for number in numbers), *held)


def _copies(one: Partition) -> list[tuple[object, ...]]:
    """One row for level one, and one for each replica: as its leader knows it, with its own node's log."""
    name = f"{one.topic}-{one.number}"
    told = {} if one.leader is None else {copy["node"]: copy for copy in one.leader["copies"]}
    rows: list[tuple[object, ...]] = []
    if None in told:
        rows.append((name, "level one", None, None, *_ends(told.pop(None)), None, None, None))
    for node in sorted({*told, *one.locals}):
        local = one.locals.get(node)
        log: tuple[object, ...] = (None,) * 5
        if local is not None:
            log = (
                _number(local["clean_end"]),
                _number(local["log_end"]),
                f"{local['bytes']:,}",
                local["resets"],
                # The first is how a log begins.
                local["reset_for"] if local["resets"] > 1 else None,
            )
        ends = _ends(told.get(node) or local or {})
        rows.append((name, f"node {node}", *log[:2], *ends, *log[2:]))
    return rows


def _ends(copy: dict[str, Any]) -> tuple[str | None, str | None]:
    return _number(copy.get("mcco")), _number(copy.get("mxfo"))


def _number(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"
