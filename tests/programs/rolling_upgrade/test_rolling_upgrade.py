"""What `scripts/rolling-upgrade` calls a fault, and what it says to a commit that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs.rolling_upgrade.load import Faults, Written, judge
from tests.programs.rolling_upgrade.run import main

WRITTEN = Written({"0", "1", "2", "3"}, {"0", "1"}, [1.0, 1.5, 4.0, 2.0])
READ = [["0", "3"], ["1"], ["2"]]
PAIR = [["0", "1"], ["0", "1"]]


@pytest.mark.parametrize(
    ("read", "pair", "found"),
    [
        (READ, PAIR, Faults(0, 0, 0, 0)),
        ([["0", "3"], ["1"], []], PAIR, Faults(1, 0, 0, 0)),
        ([["0", "3"], ["1", "1"], ["2"]], PAIR, Faults(0, 1, 0, 0)),
        ([["3", "0"], ["1"], ["2"]], PAIR, Faults(0, 0, 1, 0)),
        (READ, [["0"], ["0"]], Faults(1, 0, 0, 0)),
        (READ, [["0", "1", "2"], ["0", "1"]], Faults(0, 0, 0, 1)),
        (READ, [["0", "1", "2"], ["0", "1", "2"]], Faults(0, 0, 0, 0)),
    ],
)
def test_what_is_a_fault(read: list[list[str]], pair: list[list[str]], found: Faults) -> None:
    assert judge(WRITTEN, read, pair) == found


def test_the_longest_gap() -> None:
    assert WRITTEN.longest_gap() == 2.0
    assert Written().longest_gap() == 0.0


def test_a_commit_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--from", "no-such-commit", "--folder", str(tmp_path)]) == 1
    assert "no-such-commit is no commit of this repository" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_none_is_refused_with_its_cure(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--from", "HEAD", "--folder", "/no/such"])
    assert (
        "/no/such is no folder: make it (mkdir -p /no/such), or name another one" in capsys.readouterr().err
    )
