"""Output of commands: tables and sentences for a person, one JSON object for a program.

Results go to stdout, progress to stderr and only to a terminal, so that a pipe never sees it. Rich is
imported where it prints: it is a third of what the start of a short command costs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cluster.failure import ReaderGone

if TYPE_CHECKING:
    from rich.table import Table

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def show(as_json: bool, plain: Any, text: str | Table | Sequence[str | Table]) -> None:
    """Print a result in one of the two forms; raises ReaderGone if the output's reader is gone.

    A string alone is printed as it is; among others of a sequence it is in Rich's markup (see `escaped`).
    """
    try:
        if as_json:
            sys.stdout.write(json.dumps(plain) + "\n")
        elif isinstance(text, str):
            sys.stdout.write(text + "\n")
        else:
            from rich.console import Console

            # A pipe has no width; cells cut to 80 columns would be of no use to what reads them.
            console = Console(width=None if sys.stdout.isatty() else 10_000, highlight=False)
            for each in text if isinstance(text, Sequence) else [text]:
                console.print(each)
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderGone from None


def table(header: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[int] = ()) -> Table:
    """Plain columns; those whose numbers are in `right` are aligned to the right."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(header):
        made.add_column(name, justify="right" if number in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*("-" if cell is None else escaped(str(cell)) for cell in row))
    return made


@contextmanager
def progress(as_json: bool) -> Iterator[Callable[[str], None]]:
    """A line that says what is going on for as long as the block lasts."""
    if as_json or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True, highlight=False).status("") as status:
        yield status.update


def warn(line: str) -> None:
    """Print a warning, which does not stop the command, to stderr at once."""
    print(f"strandline: {line}", file=sys.stderr, flush=True)


def escaped(line: str) -> str:
    """A line that Rich prints as it is."""
    return line.replace("[", r"\[")


def plural(count: int, what: str) -> str:
    """ "1 record", "2 records"."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
