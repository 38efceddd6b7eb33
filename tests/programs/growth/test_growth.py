"""`scripts/growth` without nodes: what it calls a fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.programs.growth.run import Found

WELL = Found(acknowledged=9, read=9, longest_gap_seconds=3.0, audit="ok")


def test_a_run_without_faults_has_none() -> None:
    assert WELL.faults == []


@pytest.mark.parametrize("name", ["lost", "doubled", "strange", "failed"])
def test_what_is_wrong_with_records_is_counted(name: str) -> None:
    found = replace(WELL)
    setattr(found, name, 2)
    assert found.faults == [f"2 {name}"]


def test_an_audit_that_finds_something_is_a_fault_and_none_at_all_too() -> None:
    assert replace(WELL, audit="a reference leads nowhere").faults == ["audit: a reference leads nowhere"]
    assert replace(WELL, audit="").faults == ["audit: "]
