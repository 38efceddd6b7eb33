"""The near end of a driver says what became of a process that is lost."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients import driver
from tests.clients.driver import Lines, Lost

ENDS = "import sys; input(); print('no more', file=sys.stderr); sys.exit(3)"
STAYS = "import os, time; input(); os.close(1); time.sleep(600)"


@pytest.fixture
def lines(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Lines]:
    """A process that runs the test's program, and has its first line."""
    started = Lines("one", [sys.executable, "-c", request.param], tmp_path / "log")
    started.write("go")
    yield started
    started.kill()


@pytest.mark.parametrize("lines", [ENDS], indirect=True)
def test_a_process_that_ends_is_lost_with_its_status_and_what_it_said(lines: Lines) -> None:
    with pytest.raises(Lost, match="one ended at poll, status 3; it said: no more"):
        lines.read("poll")


@pytest.mark.parametrize("lines", [STAYS], indirect=True)
def test_a_process_that_gives_no_more_answers_and_does_not_end_is_lost(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "END_SECONDS", 0.1)
    with pytest.raises(Lost, match=r"one answers no more at poll, and is still there 0\.1 s later"):
        lines.read("poll")
