"""Output of `strandline export`: the sum of a run, and the findings of a check."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from strandline.cluster.failure import FAILED
from strandline.cluster.output import escaped, plural, show, warn

if TYPE_CHECKING:
    from strandline.snapshot.spark.export.check import Checked
    from strandline.snapshot.spark.export.running import Exported


def show_export(done: Exported, to: str, as_json: bool, compacted: int = 0) -> None:
    """The sum of a run; `compacted` are small files that became large ones after it."""
    for line in done.lost[:10]:
        warn(f"{line} before they were exported")
    if done.rounds:
        resumed = ", the first of them begun by a run that did not end it" if done.resumed else ""
        text = (
            f"exported {plural(done.records, 'record')} to {to}: {plural(done.files, 'file')}, "
            f"{plural(done.bytes, 'byte')}, in {plural(done.rounds, 'round')}{resumed}"
        )
    else:
        text = f"nothing new: {to} has all that the newest checkpoint has"
    plain = {
        "to": to,
        "records": done.records,
        "files": done.files,
        "bytes": done.bytes,
        "rounds": done.rounds,
        "resumed": done.resumed,
        "unfit": done.unfit,
        "lost": done.lost,
    }
    if done.unfit:
        text += f"; {plural(done.unfit, 'value')} not wholly in columns, and kept in the column value"
    if compacted:
        plain["compacted"] = compacted
        text += f"; {plural(compacted, 'small file')} compacted"
    show(as_json, plain, text)


def show_check(found: Checked, to: str, as_json: bool) -> None:
    """The findings of a check; raises typer.Exit with status 1 if it has some."""
    plain = {
        "to": to,
        "rounds": found.rounds,
        "files": found.files,
        "records": found.records,
        "bytes": found.bytes,
        "unfinished_round": found.unfinished,
        "lost": found.lost,
        "problems": found.problems,
    }
    lines = [escaped(line) for line in found.problems[:20]]
    if len(found.problems) > len(lines):
        lines.append(f"and {len(found.problems) - len(lines):,} more; --json lists more of them")
    lines += [escaped(f"deleted before it could be exported: {line}") for line in found.lost[:20]]
    if found.unfinished is not None:
        lines.append(f"round {found.unfinished} is not whole: export again to end it")
    verdict = plural(len(found.problems), "problem") if found.problems else "each record once"
    lines.append(
        f"{plural(found.records, 'record')} in {plural(found.files, 'file')} of "
        f"{plural(found.rounds, 'round')}: {verdict}"
    )
    show(as_json, plain, lines)
    if found.problems:
        raise typer.Exit(FAILED)
