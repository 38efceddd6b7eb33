"""What commands print: tables and sentences for a person, one JSON object for a program.

Results go to stdout, progress to stderr and only to a terminal, so that a pipe never sees it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.table import Table

from cluster.failure import ReaderGone

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def show(as_json: bool, plain: Any, text: str | Table | Group) -> None:
    """Print a result in the one form or the other; ReaderGone when nobody takes it."""
    try:
        if as_json:
            sys.stdout.write(json.dumps(plain) + "\n")
        elif isinstance(text, str):
            sys.stdout.write(text + "\n")
        else:
            # A pipe has no width; cells cut to 80 columns would be of no use to what reads them.
            Console(width=None if sys.stdout.isatty() else 500, highlight=False).print(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderGone from None


def table(header: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[int] = ()) -> Table:
    """Plain columns; those whose numbers are in `right` are aligned to the right."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(header):
        made.add_column(name, justify="right" if number in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*("-" if cell is None else escaped(str(cell)) for cell in row))
    return made


@contextmanager
def progress(as_json: bool) -> Iterator[Callable[[str], None]]:
    """A line that says what is going on for as long as the block lasts."""
    console = Console(stderr=True, quiet=as_json, highlight=False)
    if as_json or not console.is_terminal:
        yield lambda _: None
        return
    with console.status("") as status:
        yield status.update


def escaped(line: str) -> str:
    """A line that Rich prints as it is."""
    return line.replace("[", r"\[")


def plural(count: int, what: str) -> str:
    """ "1 record", "2 records"."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
