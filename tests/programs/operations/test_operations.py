"""`scripts/operations` without nodes: what it calls a fault, and how it counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, cast

import pytest

from tests.programs.operations.load import Load
from tests.programs.operations.run import Found, judge

WELL = Found(acknowledged=9, read=9, gaps={"a": 1.4, "b": 0.2}, audit="ok")


def test_a_run_without_faults_has_none() -> None:
    assert WELL.faults == []


@pytest.mark.parametrize("name", ["lost", "doubled", "strange", "failed", "unread"])
def test_what_is_wrong_with_records_is_counted(name: str) -> None:
    found = replace(WELL)
    setattr(found, name, 2)
    assert found.faults == [f"2 {name}"]


def test_gaps_that_are_too_long_are_a_fault_and_none_at_all_too() -> None:
    assert replace(WELL, gaps={"a": 1.5}).faults == ["the 95th percentile of the gaps is 1.50 s"]
    assert replace(WELL, gaps={}).faults == ["the 95th percentile of the gaps is nan s"]


def test_an_audit_that_finds_something_is_a_fault_and_none_at_all_too() -> None:
    assert replace(WELL, audit="a reference leads nowhere").faults == ["audit: a reference leads nowhere"]
    assert replace(WELL, audit="").faults == ["audit: "]


def test_what_was_acknowledged_is_compared_with_what_is_there() -> None:
    load: Any = Load.__new__(Load)
    load.acked, load.failed = {b"1", b"2", b"3"}, 0
    found = Found()
    judge(cast(Load, load), Counter({b"1": 1, b"2": 3, b"4": 1, b"x": 1}), found)
    assert (found.acknowledged, found.read, found.lost, found.doubled, found.strange) == (3, 6, 1, 2, 1)


def test_a_gap_is_that_of_the_partition_with_the_longest() -> None:
    load: Any = Load.__new__(Load)
    load._at = [[0.0, 1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 3.5, 4.0]]
    assert load.gap(0.5, 4.0) == 2.5
    assert load.gap(3.6, 4.0) == 1.0
