"""Deltas that hypothesis draws, and plain recomputations of what operators make of them."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, Final

import polars as pl
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from strandline.snapshot.views.zset import Schema, ZSet, canonical, zset

FEW: Final = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""For tests that step circuits: an example costs up to 100 ms where the machine is busy."""
SEARCH: Final = settings(FEW, max_examples=300, phases=[Phase.generate], derandomize=True, database=None)
"""For a search that must find something: it ends with the first example."""

Row = tuple[Any, ...]
Change = tuple[Row, int]
"""A row and its weight."""

FACTS: Final[Schema] = (pl.Int64(), pl.String(), pl.Float64())
"""A small whole number for groups and joins, a text, and a DOUBLE."""
GROUP_VALUES: Final = st.one_of(st.none(), st.integers(-2, 6))
TEXTS: Final = st.sampled_from([None, "", "a", "b", "a longer text that is not held in the column itself"])
DOUBLES: Final = st.one_of(
    st.none(),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e20, -1e20, 1e-300, 5e-324, math.inf, -math.inf, math.nan]),
    st.floats(-1e6, 1e6),
)
FACT_ROWS: Final = st.tuples(GROUP_VALUES, TEXTS, DOUBLES)


@st.composite
def histories(draw: st.DrawFn, most: int = 40) -> list[Change]:
    """Draw rows that are added, some of them retracted later: never more often than they were added."""
    there: list[Row] = []
    changes: list[Change] = []
    for _ in range(draw(st.integers(0, most))):
        if there and draw(st.integers(0, 3)) == 0:
            changes.append((there.pop(draw(st.integers(0, len(there) - 1))), -1))
        else:
            row = draw(FACT_ROWS)
            there.append(row)
            changes.append((row, 1))
    return changes


@st.composite
def logs(draw: st.DrawFn, most: int = 40) -> list[Change]:
    """Draw a log of keys that are set (weight 1) and deleted (-1)."""
    changes: list[Change] = []
    for _ in range(draw(st.integers(0, most))):
        if draw(st.integers(0, 3)) == 0:
            changes.append(((draw(GROUP_VALUES), None, None), -1))
        else:
            changes.append((draw(FACT_ROWS), 1))
    return changes


CUTS: Final = st.lists(st.integers(0, 40), max_size=6).map(sorted)
"""Places where a history is cut into steps; some steps are empty."""


def steps(changes: Sequence[Change], cuts: Sequence[int], schema: Schema = FACTS) -> Iterator[ZSet]:
    """Yield a history in steps."""
    bounds = [0, *(min(cut, len(changes)) for cut in cuts), len(changes)]
    for start, stop in itertools.pairwise(bounds):
        yield of(changes[start:stop], schema)


def of(changes: Sequence[Change], schema: Schema = FACTS) -> ZSet:
    """Make one delta of changes."""
    return canonical(zset(schema, [row for row, _ in changes], [weight for _, weight in changes]))


def plain(value: Any) -> Any:
    """Give a value that is equal to itself, NaN too, and 0.0 for -0.0."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def counted(delta: ZSet) -> Counter[Row]:
    """Give the weight of each row that has one."""
    total: Counter[Row] = Counter()
    for row, weight in zip(delta.rows.rows(), delta.weights.tolist(), strict=True):
        total[tuple(map(plain, row))] += weight
    return Counter({row: weight for row, weight in total.items() if weight})


def rows_there(changes: Sequence[Change]) -> Counter[Row]:
    """Give the rows that are left after a history."""
    return counted(of(changes))


def last_of_log(changes: Sequence[Change]) -> Counter[Row]:
    """Give the last row of each key of a log."""
    table: dict[Any, Row] = {}
    for row, weight in changes:
        table.pop(row[0], None)
        if weight > 0:
            table[row[0]] = tuple(map(plain, row))
    return Counter(table.values())


def exact_sum(values: Sequence[float]) -> float:
    """Give the sum as DOUBLE, rounded once, with IEEE's rules for NaN and infinities."""
    special = [value for value in values if not math.isfinite(value)]
    if special:
        return sum(special)
    total = sum(map(Fraction, values), Fraction(0))
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def exact_average(values: Sequence[float]) -> float:
    """Give the average as DOUBLE, rounded once."""
    if all(map(math.isfinite, values)):
        return float(sum(map(Fraction, values), Fraction(0)) / len(values))
    return exact_sum(values)
