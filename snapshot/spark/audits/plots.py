"""The plots of the audits' report, SVG inside its page. The extra `report` brings what draws them."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from html import escape

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from strandline.snapshot.spark.audits.result import Figures, Row

MAX_BARS = 30
"""Partitions that a plot shows by name; the largest, and the rest together."""
MAX_LINES = 12


def plots(figures: Figures) -> list[str]:
    """Each a figure of HTML; one paragraph where nothing is stored."""
    if not figures.records:
        return ["<p>No partition holds a record.</p>"]
    bars = _largest(figures.records)
    return [
        _plot(
            "Records in each partition, from start offset to high watermark",
            lambda axes: _horizontal(axes, bars, "records"),
            height=1.2 + 0.28 * len(bars),
        ),
        _plot("Stored size of batches", lambda axes: _sizes(axes, figures.batch_bytes)),
        _plot(
            "Offset after the last record that was written in each cluster epoch",
            lambda axes: _offsets(axes, figures.offsets),
        ),
    ]


def _plot(caption: str, draw: Callable[[Axes], None], height: float = 3.6) -> str:
    """A figure as SVG text. Ids and date are fixed, so that equal figures are equal bytes."""
    with matplotlib.rc_context(
        {"svg.hashsalt": caption, "svg.fonttype": "none", "font.family": "sans-serif"}
    ):
        figure = Figure(figsize=(9, height), layout="constrained")
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        draw(axes)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    svg = out.getvalue()
    return f"<figure>{svg[svg.index('<svg') :]}<figcaption>{escape(caption)}</figcaption></figure>"


def _label(row: Row) -> str:
    return f"{row['topic']}-{row['partition']}" if row["topic"] is not None else f"group {row['group']}"


def _largest(rows: Sequence[Row]) -> list[tuple[str, int]]:
    """(partition, records), the largest first; those that do not fit together as one."""
    named = [(_label(row), int(row["records"] or 0)) for row in rows]
    if len(named) <= MAX_BARS:
        return named
    named.sort(key=lambda pair: (-pair[1], pair[0]))
    rest = named[MAX_BARS:]
    return [*named[:MAX_BARS], (f"{len(rest)} others", sum(count for _, count in rest))]


def _horizontal(axes: Axes, bars: Sequence[tuple[str, int]], unit: str) -> None:
    names, values = zip(*reversed(bars), strict=True)
    drawn = axes.barh(names, values, color="#2f6f9f")
    axes.bar_label(drawn, [f"{value:,}" for value in values], padding=3)
    axes.set_xlabel(unit)
    axes.set_xlim(0, max(*values, 1) * 1.12)


def _sizes(axes: Axes, rows: Sequence[Row]) -> None:
    names = [_bytes(int(row["bytes"] or 0)) for row in rows]
    axes.bar(names, [int(row["batches"] or 0) for row in rows], color="#2f6f9f")
    axes.set_xlabel("size up to")
    axes.set_ylabel("batches")


def _bytes(size: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size} {unit}"
        size //= 1024
    return f"{size} GiB"


def _offsets(axes: Axes, rows: Sequence[Row]) -> None:
    lines: dict[str, list[tuple[int, int]]] = {}
    for row in rows:
        lines.setdefault(_label(row), []).append((int(row["epoch"] or 0), int(row["end_offset"] or 0)))
    shown = sorted(lines, key=lambda name: -lines[name][-1][1])[:MAX_LINES]
    for name in sorted(shown, key=lambda name: (len(name), name)):
        epochs, offsets = zip(*lines[name], strict=True)
        axes.plot(epochs, offsets, marker="o", markersize=4, label=name)
    axes.set_xlabel("cluster epoch")
    axes.set_ylabel("offset")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(shown) < len(lines):
        axes.set_title(
            f"the {len(shown)} partitions with the most records of {len(lines)}", fontsize="medium"
        )
    if shown:
        axes.legend(fontsize="small")
