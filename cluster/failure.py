"""Failure of a command: one line with the cause and the cure, and an exit status.

A stack trace helps a reader of the code; a user of a command needs to know what to do.
"""

from __future__ import annotations

from typing import Final

FAILED: Final = 1
"""The command was understood, and something is wrong: a node is down, an audit found something."""
MISUSED: Final = 2
"""The command or a file it was given makes no sense."""


class CommandFailed(Exception):
    """Ends the command with one line on stderr, `strandline: <cause>; <cure>`, and `status`."""

    def __init__(self, cause: str, cure: str, status: int = FAILED) -> None:
        super().__init__(f"{one_line(cause)}; {one_line(cure)}")
        self.cause = one_line(cause)
        self.cure = one_line(cure)
        self.status = status


class ReaderGone(Exception):
    """The reader of the command's output is gone, as with `| head`.

    Not an OSError: Typer takes EPIPE for a failure and ends with status 1.
    """


def one_line(text: str) -> str:
    """Text from elsewhere (a library's error, a log) without its line breaks and its last full stop."""
    return " ".join(text.split()).rstrip(".")
