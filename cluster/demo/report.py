"""Report of a run of the demonstration: one page with its table, its plots and its verdicts."""

from __future__ import annotations

import html
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.cluster.demo.produce import Produced
from strandline.cluster.demo.verify import Comparison
from strandline.snapshot.extras import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BIN_SECONDS = 0.25
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
body { color: #1b2733 }
table { border-collapse: collapse; margin: 1rem 0 }
td { padding: .25rem .9rem; text-align: left; border-bottom: 1px solid #d5dde5 }
td.n { text-align: right; font-variant-numeric: tabular-nums }
.ok { color: #1a7f4b; font-weight: 600 }
.bad { color: #b3261e; font-weight: 600 }
svg { max-width: 100%; height: auto }
"""


def write(
    path: Path,
    *,
    title: str,
    rows: Sequence[tuple[str, str, bool]],
    produced: Produced,
    events: Sequence[tuple[float, str]],
    comparison: Comparison,
    audits: Path,
) -> None:
    """Write the page.

    `rows` are (what, figure, whether it is as it should be); `events` (time, what happened) by the clock of
    `produced`; `audits` is the audits' own report, linked.
    """
    table = "".join(
        f"<tr><td>{html.escape(what)}</td>"
        f"<td class='n {'ok' if good else 'bad'}'>{html.escape(figure)}</td></tr>"
        for what, figure, good in rows
    )
    examples = "".join(f"<li>{html.escape(text)}</li>" for text in comparison.examples)
    path.write_text(
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{html.escape(title)}</title><style>{STYLE}</style><h1>{html.escape(title)}</h1>"
        f"<table>{table}</table>"
        + (f"<h2>What is wrong</h2><ul>{examples}</ul>" if examples else "")
        + f"<h2>Acknowledgements while a leader dies</h2>{svg(_acknowledgements(produced, events))}"
        f"<h2>Records read back</h2>{svg(_partitions(comparison))}"
        f"<p><a href='{html.escape(audits.name)}'>The audits, with their evidence</a></p></html>",
        encoding="utf-8",
    )


def blank_figure(width: float, height: float) -> Figure:
    """An empty figure, its size in inches; raises ExtraMissing."""
    require("report")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _acknowledgements(produced: Produced, events: Sequence[tuple[float, str]]) -> Figure:
    figure = blank_figure(10, 3.2)
    axes = figure.add_subplot()
    bins = Counter(int((moment - produced.started) / _BIN_SECONDS) for moment, _ in produced.times)
    last = max(bins, default=0)
    axes.stairs(
        [bins.get(number, 0) / _BIN_SECONDS for number in range(last + 1)],
        [number * _BIN_SECONDS for number in range(last + 2)],
        fill=True,
        color="#2f6f9f",
    )
    for moment, what in events:
        axes.axvline(moment - produced.started, color="#b3261e", linewidth=1)
        axes.annotate(
            what,
            (moment - produced.started, 0.98),
            xycoords=("data", "axes fraction"),
            xytext=(4, 0),
            textcoords="offset points",
            va="top",
            fontsize=9,
            color="#b3261e",
        )
    axes.set_xlabel("seconds")
    axes.set_ylabel("records acknowledged a second")
    return figure


def _partitions(comparison: Comparison) -> Figure:
    figure = blank_figure(10, 2.6)
    axes = figure.add_subplot()
    numbers = sorted(comparison.partitions)
    axes.bar([str(number) for number in numbers], [comparison.partitions[number] for number in numbers])
    axes.set_xlabel("partition")
    axes.set_ylabel("records")
    return figure


def svg(figure: Figure) -> str:
    """Draw a figure as an element of a page."""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg")
    text = drawn.getvalue()
    return text[text.index("<svg") :]
