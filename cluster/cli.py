"""Entry point of the `strandline` command: handles Ctrl-C before any slow import.

The command line itself is `command_line.py`. An interrupt within an import would end in a stack trace, or be
lost in a library that catches it, so until a command runs it ends the process where it is.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

_INTERRUPTED = 128 + signal.SIGINT


def main() -> NoReturn:
    """Run the command line; ends as `command_line.run` says, and on Ctrl-C with status 130 and no word."""
    signal.signal(signal.SIGINT, _interrupted)
    try:
        if sys.argv[1:] == ["--version"]:
            from importlib import metadata

            print("strandline", metadata.version("strandline"))
            status = 0
        else:
            try:
                from strandline.cluster.command_line import run
            except ModuleNotFoundError:
                from strandline.snapshot.extras import end_without

                end_without("node")
                raise

            status = run()
    except KeyboardInterrupt:
        status = _INTERRUPTED
    # From here on there is nothing that an interrupt could still save.
    signal.signal(signal.SIGINT, _leave)
    sys.exit(status)


def _interrupted(number: int, frame: FrameType | None) -> None:
    """KeyboardInterrupt, so that a command can tidy up; within an import, the end of the process."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            _leave(number, frame)
        frame = frame.f_back
    raise KeyboardInterrupt


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(128 + number)
