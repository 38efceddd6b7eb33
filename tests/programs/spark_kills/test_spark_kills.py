"""The verdict of `scripts/spark-kills`; a run of it takes minutes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.programs.spark_kills.run import judged, under_way

RIGHT = {"all": 10, "distinct": 10, "first": 0, "last": 9}


@pytest.mark.parametrize(
    ("counted", "failed", "code"),
    [
        ({}, 0, 0),
        ({"all": 11}, 0, 1),  # doubled
        ({"all": 9, "distinct": 9}, 0, 1),  # lost
        ({"distinct": 9}, 0, 1),  # one lost, another doubled
        ({"last": 10}, 0, 1),  # foreign
        ({}, 1, 1),  # what was not acknowledged may be there or not
    ],
)
def test_each_number_is_there_once_or_the_run_fails(counted: dict[str, int], failed: int, code: int) -> None:
    load = SimpleNamespace(acknowledged=10, failed=failed)
    told = {"counted": {**RIGHT, **counted}, "lying": {"all": 15}}
    assert judged(told, load, Counter(), 1) == code
    doubled = code and (told["counted"]["all"], told["counted"]["distinct"], failed) == (11, 10, 0)
    assert judged(told, load, Counter(), 1, once=False) == (0 if doubled else code), "at least once"


def test_a_batch_is_under_way_between_two_files_of_spark(tmp_path: Path) -> None:
    assert not under_way(tmp_path)
    for name, now in (("offsets/9", True), ("offsets/10", True), ("commits/9", True), ("commits/10", False)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        assert under_way(tmp_path) is now


def test_a_run_whose_kills_met_no_batch_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    load = SimpleNamespace(acknowledged=10, failed=0)
    judged({"counted": RIGHT, "lying": {"all": 10}}, load, Counter(), 0)
    assert "no kill met a batch" in capsys.readouterr().out
