"""The verdict of `scripts/spark-kills`, and the moments of its kills; a run of it takes minutes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.programs.spark_kills import moments
from tests.programs.spark_kills.moments import await_writing, under_way
from tests.programs.spark_kills.run import Kills, judged

RIGHT = {"all": 10, "distinct": 10, "first": 0, "last": 9, "checksum": 77}


def kills(in_batches: int) -> Kills:
    made = Kills()
    made.in_batches = in_batches
    return made


@pytest.mark.parametrize(
    ("counted", "failed", "code"),
    [
        ({}, 0, 0),
        ({"all": 11}, 0, 1),  # doubled
        ({"all": 9, "distinct": 9}, 0, 1),  # lost
        ({"distinct": 9}, 0, 1),  # one lost, another doubled
        ({"last": 10}, 0, 1),  # foreign
        ({"checksum": 78}, 0, 1),  # another flight under its number
        ({}, 1, 1),  # what was not acknowledged may be there or not
    ],
)
def test_each_value_is_there_once_or_the_run_fails(counted: dict[str, int], failed: int, code: int) -> None:
    load = SimpleNamespace(acknowledged=10, failed=failed, checksum=77)
    told = {"counted": {**RIGHT, **counted}, "lying": {"all": 15}}
    assert judged(told, load, kills(1)) == code
    doubled = code and (told["counted"]["all"], told["counted"]["distinct"], failed) == (11, 10, 0)
    assert judged(told, load, kills(1), once=False) == (0 if doubled else code), "at least once"


def test_a_batch_is_under_way_between_two_files_of_spark(tmp_path: Path) -> None:
    assert not under_way(tmp_path)
    for name, now in (("offsets/9", True), ("offsets/10", True), ("commits/9", True), ("commits/10", False)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        assert under_way(tmp_path) is now


def looks(tmp_path: Path, *steps: tuple[str, int | None]) -> Iterator[int | None]:
    """The ends of a topic, one for each look, and before it a file that Spark has written."""
    for name, end in steps:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        yield end


def test_writing_is_met_when_a_batch_that_is_under_way_has_sent_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moments, "LONGEST_WAIT_FOR_WRITING", 2.0)
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "1").touch()
    seen = looks(tmp_path, ("offsets/1", None), ("offsets/1", 5), ("offsets/1", None), ("offsets/1", 6))
    assert await_writing(tmp_path, lambda: next(seen))
    assert next(seen, "all looked at") == "all looked at"


def test_writing_of_a_batch_that_is_done_is_not_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "LONGEST_WAIT_FOR_WRITING", 0.2)
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "1").touch()
    seen = looks(tmp_path, ("offsets/1", 5), ("commits/1", 6))
    assert not await_writing(tmp_path, lambda: next(seen))


def test_a_run_that_shows_nothing_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    load = SimpleNamespace(acknowledged=10, failed=0, checksum=77)
    told = {"counted": RIGHT, "lying": {"all": 10}}
    assert judged(told, load, kills(0)) == 0
    assert "no kill met a batch" in capsys.readouterr().out
    assert judged(told, load, kills(1), once=False) == 0
    said = capsys.readouterr().out
    assert "no kill met what makes records come twice" in said
    assert "no kill met a batch" not in said
