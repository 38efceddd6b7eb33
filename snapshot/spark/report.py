"""The audits' answers written down: JSON for programs, and one HTML page for people.

The page needs nothing else: plots are SVG inside it, there are no scripts and no fonts to fetch, so it can be
mailed, archived and opened in ten years.
"""

from __future__ import annotations

import io
import json as json_text
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from strandline.snapshot.spark.audits.result import AuditResult, AuditRun, Figures, Row, Verdict

MAX_BARS = 30
"""Partitions that a plot shows by name; the largest, and the rest together."""
MAX_LINES = 12

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1c2733; }
body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid #d7dde3; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
td.long { overflow-wrap: anywhere; }
.passed { color: #14713d; } .finding { color: #b3261e; font-weight: 600; } .nothing { color: #6b7680; }
figure { margin: 1.5rem 0; } figcaption { color: #4b5763; font-size: .9rem; }
svg { max-width: 100%; height: auto; }
"""
_WORDS = {Verdict.PASSED: "passed", Verdict.FINDING: "finding", Verdict.NOTHING: "nothing to look at"}


def write_report(run: AuditRun, *, json: Path | None = None, html: Path | None = None) -> None:
    """Write either file or both; raises OSError."""
    if json is not None:
        json.write_text(json_text.dumps(run.as_dict(), indent=2) + "\n", encoding="utf-8")
    if html is not None:
        html.write_text(as_html(run), encoding="utf-8")


def as_html(run: AuditRun) -> str:
    """One self-contained page. The same run gives the same bytes."""
    found = [result for result in run.results if result.verdict is Verdict.FINDING]
    headline = (
        f"{len(found)} of {len(run.results)} audits found something"
        if found
        else f"No finding in {len(run.results)} audits"
    )
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Audit of {escape(run.cluster)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Audit of cluster {escape(run.cluster)}</h1>",
        f'<p class="{"finding" if found else "passed"}">{headline}.</p>',
        f"<p>Storage {escape(run.url)}, read in {run.seconds:.1f} seconds.</p>",
        _verdicts(run.results),
        *(_details(result) for result in run.results if result.evidence or result.remarks),
        "<h2>What is stored</h2>",
        *_plots(run.figures),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _verdicts(results: Sequence[AuditResult]) -> str:
    rows = [
        f"<tr><td>{escape(result.name)}<br><small>{escape(result.question)}</small></td>"
        f'<td class="{result.verdict.value}">{_WORDS[result.verdict]}</td>'
        f'<td class="number">{result.findings:,}</td>'
        f"<td>{escape(', '.join(f'{count:,} {what}' for what, count in result.counts.items()))}</td></tr>"
        for result in results
    ]
    head = "<tr><th>Audit</th><th>Verdict</th><th>Findings</th><th>Looked at</th></tr>"
    return f"<h2>Verdicts</h2><table>{head}{''.join(rows)}</table>"


def _details(result: AuditResult) -> str:
    parts = []
    if result.evidence:
        shown = f"the first {len(result.evidence)} of " if result.findings > len(result.evidence) else ""
        parts.append(f"<h2>{escape(result.name)}: {shown}{result.findings:,} findings</h2>")
        parts.append(_table(result.evidence))
    if result.remarks:
        parts.append(f"<h2>{escape(result.name)}: remarks</h2>{_table(result.remarks)}")
    return "\n".join(parts)


def _table(rows: Sequence[Row]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in columns)
    body = "".join("<tr>" + "".join(_cell(row.get(name)) for name in columns) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: str | int | None) -> str:
    if value is None:
        return "<td></td>"
    if isinstance(value, int):
        return f'<td class="number">{value}</td>'
    return f'<td class="long">{escape(value)}</td>'


# Plots.


def _plots(figures: Figures) -> list[str]:
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
