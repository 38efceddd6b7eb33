"""Rows of a view against those of another engine: DOUBLEs that were added in another order are close."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from typing import Any

from tests.snapshot.views.deltas import Row


def in_order(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: [str(value)[:19] for value in row if not isinstance(value, float)])


def close(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(one, dt.datetime) and isinstance(other, dt.datetime):
        return one == other.replace(tzinfo=dt.UTC)
    return bool(one == other)


def check(found: Sequence[Row], wanted: Sequence[Row]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(in_order(found), in_order(wanted), strict=True):
        assert all(map(close, one, other)), (one, other)
