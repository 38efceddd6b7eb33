"""`strandline view plan`, and the reading of programs for all commands of `strandline view`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from strandline.cluster.commands.view_inputs import check_compacted, estimate, live_text
from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.output import Json, plural, show, table
from strandline.cluster.target import Admin, Bootstrap, Cluster, target
from strandline.snapshot.extras import ExtraMissing, require

if TYPE_CHECKING:
    from strandline.statemachine.views.program import Difference, Program

PROGRAM_BYTES: Final = 1 << 20
"""The size up to which a program is read: thousands of views. It keeps a file that is no program out."""
_SHOWN_DIGITS: Final = 12


def plan(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A program: a file of CREATE TABLE and CREATE VIEW statements."),
    ],
    against: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The program that it would replace.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The program on a cluster that it would replace, or begin; tells what is to be read there.",
        ),
    ] = None,
    bootstrap: Bootstrap = None,
    admin: Admin = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Show the operators of a program, and which of them another one has. Changes nothing.

    An operator that both programs have keeps its state; a new one has to be filled from the topics. Exits
    with status 2 if a program is refused. With --name it asks a cluster, and says how many records a filling
    would read, and about how long that would take.

    \b
    Examples:
      strandline view plan views.sql
      strandline view plan views.sql --name views
      strandline view plan views.sql --against views-before.sql --json
    """
    require_views()
    from strandline.statemachine.views.program import Fate, Program, difference

    new = _program(file, as_json)
    if name is None:
        if (bootstrap or admin or cluster) is not None:
            raise CommandFailed("no program of the cluster is named", "add --name NAME", MISUSED)
        old = Program(()) if against is None else _program(against, as_json)
        compared = difference(old, new)
        show(as_json, _as_dict(old, new, compared), _tables(old, new, compared))
        return
    if against is not None:
        raise CommandFailed("--against and --name both say what is replaced", "leave one out", MISUSED)
    where = target(bootstrap=bootstrap, admin=admin, folder=cluster)
    check_compacted(where.admin, new)
    old = _live(where.admin, name)
    compared = difference(old, new)
    needed = any(each.fate is not Fate.UNCHANGED for each in compared.views)
    reads = estimate(where, new, needed=needed)
    told = {
        **_as_dict(old, new, compared),
        "records": reads.records if needed else 0,
        "seconds": round(reads.seconds, 1) if needed else 0,
    }
    show(as_json, told, [*_tables(old, new, compared), reads.shown])


def require_views() -> None:
    """Raise CommandFailed where the packages for views are missing."""
    try:
        require("views")
    except ExtraMissing as error:
        raise CommandFailed(error.cause, error.cure, MISUSED) from None


def _live(addresses: tuple[str, ...], name: str) -> Program:
    """The live version of a program, an empty one where there is none."""
    from strandline.snapshot.views.sql.programs import program_of
    from strandline.statemachine.views.program import Program
    from strandline.statemachine.views.refusals import Refused

    text = live_text(addresses, name)
    try:
        return Program(()) if text is None else program_of(text)
    except Refused as refused:
        cure = "apply it again: all of it would be filled"
        raise CommandFailed(f"this release refuses the text that is live: {refused}", cure, MISUSED) from None


def _program(file: Path, as_json: bool) -> Program:
    return read_program(file, as_json)[1]


def read_program(file: Path, as_json: bool) -> tuple[str, Program]:
    """A program's text and what it means; CommandFailed for a file that is none."""
    # sqlglot takes a third of a second to import, which no other command should pay for.
    from strandline.snapshot.views.sql.programs import program_of
    from strandline.statemachine.views.refusals import Refused

    with file.open("rb") as opened:
        content = opened.read(PROGRAM_BYTES + 1)
    if len(content) > PROGRAM_BYTES:
        raise CommandFailed(
            f"{file} is larger than {PROGRAM_BYTES:,} bytes", "name a program of views", MISUSED
        )
    try:
        # Some editors begin a file with a mark of its encoding, which is no part of the text.
        text = content.decode("utf-8-sig")
        return text, program_of(text)
    except UnicodeDecodeError as error:
        raise CommandFailed(f"{file} is not text: byte {error.start}", "write it in UTF-8", MISUSED) from None
    except Refused as refused:
        if as_json:
            show(True, {"file": str(file), "refused": refused.as_dict()}, "")
            raise typer.Exit(MISUSED) from None
        raise CommandFailed(f"{file}: {refused}", refused.cure, MISUSED) from None


def _as_dict(old: Program, new: Program, compared: Difference) -> dict[str, Any]:
    return {
        "views": [
            {
                "name": each.name,
                "fate": each.fate.value,
                "was": each.was,
                "operators_kept": list(each.kept),
                "operators_new": list(each.new),
            }
            for each in compared.views
        ],
        "operators": [
            {"digest": digest, "kind": kind, "fate": fate, "does": does}
            for digest, kind, fate, does in _operators(old, new, compared)
        ],
    }


def _tables(old: Program, new: Program, compared: Difference) -> list[Any]:
    views = [
        (
            each.name,
            each.fate.value if each.was is None else f"renamed from {each.was}",
            len(each.kept),
            len(each.new),
        )
        for each in compared.views
    ]
    operators = [(digest[:_SHOWN_DIGITS], *rest) for digest, *rest in _operators(old, new, compared)]
    kept = plural(len(compared.kept), "operator")
    counts = f"{kept} kept, {len(compared.new)} new, {len(compared.dropped)} dropped"
    return [
        table(("VIEW", "FATE", "KEPT", "NEW"), views, right=(2, 3)),
        "",
        table(("OPERATOR", "KIND", "FATE", "DOES"), operators),
        "",
        counts,
    ]


def _operators(old: Program, new: Program, compared: Difference) -> list[tuple[str, str, str, str]]:
    """Digest, kind, fate and parameters of each operator: the new program's, then those that go."""
    from strandline.statemachine.views.identity import parameters

    plans = {**old.operators(), **new.operators()}
    kept = set(compared.kept)
    there = [(digest, "kept" if digest in kept else "new") for digest in new.operators()]
    return [
        (digest, type(plans[digest]).__name__, fate, parameters(plans[digest]))
        for digest, fate in [*there, *((digest, "dropped") for digest in compared.dropped)]
    ]
