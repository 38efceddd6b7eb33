"""One command at a time is at work on a folder, and the others say that they wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.cluster import folder_lock
from strandline.cluster.failure import CommandFailed
from strandline.cluster.folder_lock import alone


def test_a_command_says_that_it_waits_and_gives_up_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(folder_lock, "_TOLD_SECONDS", 0.05)
    monkeypatch.setattr(folder_lock, "_LOCK_SECONDS", 0.3)
    with (
        alone(tmp_path),
        pytest.raises(CommandFailed, match=f"another command has been at work on {tmp_path} for 0.3 s"),
        alone(tmp_path),
    ):
        pass
    told = capsys.readouterr().err
    assert (
        told == f"strandline: another command is at work on {tmp_path}: waiting for it, for 0.3 s at most\n"
    )
    with alone(tmp_path):
        assert capsys.readouterr().err == ""
