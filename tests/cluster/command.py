"""The `strandline` command, run in the process of a test."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
from typing import Any, NamedTuple

import pytest

from strandline.cluster import cli


class Done(NamedTuple):
    """How it ended, and what it printed."""

    status: int
    out: str
    err: str


_CLIENTS_LINE = re.compile(r"^%\d\|.*\n", re.MULTILINE)
"""By librdkafka, about a broker that is gone: a client of an earlier test may write it at any time."""


def strandline(capfd: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch, *arguments: str) -> Done:
    """Run it to its end."""
    patch.setattr(sys, "argv", ["strandline", *arguments])
    capfd.readouterr()
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit) as ended:
            cli.main()
    finally:
        signal.signal(signal.SIGINT, before)
    out, err = capfd.readouterr()
    return Done(int(ended.value.code or 0), out, _CLIENTS_LINE.sub("", err))


def as_json(done: Done) -> Any:
    assert done.status == 0, done.err
    return json.loads(done.out)


def nowhere() -> str:
    """An address on this machine at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"
