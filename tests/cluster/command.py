"""The `strandline` command, run in the process of a test."""

from __future__ import annotations

import json
import signal
import sys
from typing import Any, NamedTuple

import pytest

from strandline.cluster import cli


class Done(NamedTuple):
    """How it ended, and what it printed."""

    status: int
    out: str
    err: str


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
    return Done(int(ended.value.code or 0), out, err)


def as_json(done: Done) -> Any:
    assert done.status == 0, done.err
    return json.loads(done.out)
