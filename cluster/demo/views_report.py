"""Report of the demonstration of views: its table, the ages that were seen, and what Spark says."""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.cluster.demo.report import STYLE, blank_figure, svg
from strandline.cluster.demo.views_run import ViewsOutcome
from strandline.cluster.demo.views_sql import SECOND, UNCHANGED

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write(path: Path, title: str, outcome: ViewsOutcome) -> None:
    """Write the page; raises ExtraMissing."""
    table = "".join(
        f"<tr><td>{html.escape(what)}</td>"
        f"<td class='n {'ok' if good else 'bad'}'>{html.escape(figure)}</td></tr>"
        for what, figure, good in outcome.rows()
    )
    found = "".join(f"<li>{html.escape(text)}</li>" for text in outcome.audit.shown)
    path.write_text(
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{html.escape(title)}</title><style>{STYLE}</style><h1>{html.escape(title)}</h1>"
        f"<table>{table}</table>"
        + (f"<h2>What Spark finds</h2><ul>{found}</ul>" if found else "")
        + f"<h2>Age of the newest flight in {UNCHANGED}, as a reader sees it</h2>{svg(_ages(outcome))}"
        f"<h2>The program</h2><pre>{html.escape(SECOND.strip())}</pre></html>",
        encoding="utf-8",
    )


def _ages(outcome: ViewsOutcome) -> Figure:
    figure = blank_figure(10, 3.6)
    axes = figure.add_subplot()
    moments = [one.moment - outcome.began for one in outcome.seen]
    axes.plot(moments, [one.age * 1000 for one in outcome.seen], ".", markersize=2, color="#2f6f9f")
    events = [(outcome.applied, "applied"), *outcome.phases, (outcome.live, "live")]
    for number, (moment, what) in enumerate(events):
        axes.axvline(moment - outcome.began, color="#b3261e", linewidth=1)
        axes.annotate(
            what,
            (moment - outcome.began, 0.98 - 0.08 * (number % 4)),
            xycoords=("data", "axes fraction"),
            xytext=(4, 0),
            textcoords="offset points",
            va="top",
            fontsize=9,
            color="#b3261e",
        )
    axes.set_yscale("log")
    axes.set_xlabel("seconds")
    axes.set_ylabel("ms from producer to reader")
    return figure
