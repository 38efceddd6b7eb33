"""The prompt of `strandline sql`: queries one after the other, in one session of Spark."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from strandline.cluster.failure import CommandFailed

FIRST: Final = "strandline> "
NEXT: Final = "       ...> "
ENDS: Final = frozenset(("exit", "quit", "\\q"))
MAX_QUERY: Final = 1 << 20
"""Characters of one query: more were pasted by mistake."""


def prompt(run: Callable[[str], None]) -> None:
    """Read queries from the terminal, each up to a semicolon at the end of a line, and run them.

    What is wrong with one is told in a line, and the next one is asked for. Control-C gives a query up,
    control-D, `exit` or `quit` ends.
    """
    with suppress(ImportError):
        import readline  # noqa: F401  lines can be edited, and come again
    print("Spark SQL, topics are tables; a query ends with ; and `exit` ends.", file=sys.stderr)
    for query in queries(_line):
        try:
            run(query)
        except CommandFailed as error:
            print(f"strandline: {error.cause}; {error.cure}", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            print("strandline: the query was given up", file=sys.stderr, flush=True)


def queries(line: Callable[[str], str]) -> Iterator[str]:
    """The queries that lines make, without their semicolons, until `line` raises EOFError."""
    held: list[str] = []
    while True:
        try:
            held.append(line(NEXT if held else FIRST))
        except KeyboardInterrupt:
            print(file=sys.stderr)
            held = []
            continue
        except EOFError:
            print(file=sys.stderr)  # the terminal's own prompt comes in a line of its own
            return
        text = "\n".join(held).strip()
        if text.rstrip(";").strip().lower() in ENDS:
            return
        if not text or len(text) > MAX_QUERY:
            held = []
        elif text.endswith(";"):
            held = []
            if query := text.rstrip(";").strip():
                yield query


def _line(shown: str) -> str:
    return input(shown)  # it goes to stderr, as all but results does meanwhile: see own_output
