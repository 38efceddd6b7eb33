"""The table a person reads, and the same as plain values for a program."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tests.programs.bench.measures import Result


@dataclass(frozen=True, slots=True)
class Row:
    """One line: what was measured, in which unit, and whether more of it is better."""

    section: str
    what: str
    figure: str
    unit: str
    more_is_better: bool = False


def shown(value: float | None, unit: str) -> str:
    """A value with three digits that count: 0.00152 s as 1.52 ms."""
    if value is None or math.isnan(value):
        return "-"
    match unit:
        case "/s":
            return f"{value:,.0f} /s" if value >= 100 else f"{value:.1f} /s"
        case "s":
            for factor, name in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
                if value * factor >= 1:
                    return f"{_three(value * factor)} {name}"
            return f"{_three(value * 1e6)} µs"
        case "B" | "B/s":
            for factor, name in ((1e6, "MB"), (1e3, "kB")):
                if value >= factor:
                    return f"{_three(value / factor)} {name}{unit[1:]}"
            return f"{value:.0f} {unit}"
        case "":
            return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        case "$":
            return f"${value:.2f}" if value >= 0.01 or not value else f"${value:.2g}"
        case "core":
            return f"{_three(value * 100)} %"
    raise ValueError(f"no such unit: {unit}")


def _three(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def ratio(row: Row, stock: float | None, ours: float | None) -> str:
    """How many times better ours is than stock."""
    if not stock or not ours:
        return "-"
    times = ours / stock if row.more_is_better else stock / ours
    return f"{_three(times)} x"


def lines(rows: Sequence[Row], stock: Mapping[str, Result], ours: Mapping[str, Result]) -> list[list[str]]:
    """The cells of the table; a section's title stands beside its first row only."""
    cells, section = [], ""
    for row in rows:
        theirs = stock[row.section].figures.get(row.figure) if row.section in stock else None
        own = ours[row.section].figures.get(row.figure) if row.section in ours else None
        if theirs is None and own is None:
            continue
        title = row.section if row.section != section else ""
        section = row.section
        cells.append(
            [title, row.what, shown(theirs, row.unit), shown(own, row.unit), ratio(row, theirs, own)]
        )
    return cells


def table(header: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """Columns of text, the figures to the right."""
    widths = [max(len(line[column]) for line in [header, *cells]) for column in range(len(header))]
    text = []
    for line in [header, ["-" * width for width in widths], *cells]:
        left = [cell.ljust(width) for cell, width in zip(line[:2], widths[:2], strict=True)]
        right = [cell.rjust(width) for cell, width in zip(line[2:], widths[2:], strict=True)]
        text.append("  ".join([*left, *right]).rstrip())
    return "\n".join(text)


def plain(results: Mapping[str, Result]) -> dict[str, Any]:
    """For JSON, which has no nan."""
    return {
        section: {
            **asdict(result),
            "figures": {name: None if math.isnan(value) else value for name, value in result.figures.items()},
        }
        for section, result in results.items()
    }
