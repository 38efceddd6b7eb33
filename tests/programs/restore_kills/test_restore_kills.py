"""The verdict of `scripts/restore-kills`; a run of it takes minutes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.programs.restore_kills.run import Found, Rows, judge

LEDGER: list[list[Any]] = [
    ["transaction", "0-t1:0", 10.0],
    ["transaction", "0-t1:1", 20.0],
    ["record", "first", 1, "0-r:0", 10.0],
    ["record", "first", 2, "0-r:1", 20.0],
    ["offset", "first", 2],
]
ENDS = {"first": 2, "last": 1}


def rows() -> Rows:
    return {"first": {0: "0-t1:0", 1: "0-r:0"}, "last": {0: "0-t1:0"}}


def counts(found_rows: Rows, offset: int = 2, taken_at: float = 15.0) -> Found:
    found = Found()
    judge(found, LEDGER, found_rows, ENDS, {"first": offset}, set(), taken_at)
    return found


def test_what_is_beyond_the_point_is_no_fault() -> None:
    found = counts(rows())
    assert not found.is_bad
    assert (found.transactions, found.kept, found.records, found.beyond) == (2, 1, 2, 1)


@pytest.mark.parametrize("fault", ["torn", "doubled", "missing", "late_offsets"])
def test_each_fault_is_seen(fault: str) -> None:
    wrong = rows()
    if fault == "torn":
        wrong["last"] = {}
    elif fault == "doubled":
        wrong["first"][7] = "0-r:0"
    elif fault == "missing":
        del wrong["first"][1]
    found = counts(wrong, offset=3 if fault == "late_offsets" else 2)
    assert found.is_bad
    assert getattr(found, fault) == 1


def test_what_was_acknowledged_before_the_point_is_missed() -> None:
    found = counts(rows(), taken_at=21.0)
    assert found.is_bad
    assert found.lost_early == 2


def test_a_transaction_that_was_torn_before_counts_once() -> None:
    found, judged = Found(), {"0-t1:0"}
    judge(found, LEDGER, {"first": {0: "0-t1:0", 1: "0-r:0"}, "last": {}}, ENDS, {}, judged, 15.0)
    assert found.torn == 0
