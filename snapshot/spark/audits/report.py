"""The audits' answers written down: JSON for programs, and one HTML page for people.

The page needs nothing else: plots are SVG inside it, there are no scripts and no fonts to fetch, so it can be
mailed, archived and opened in ten years.
"""

from __future__ import annotations

import json as json_text
from collections.abc import Sequence
from html import escape
from pathlib import Path

from strandline.snapshot.extras import require
from strandline.snapshot.spark.audits.result import AuditResult, AuditRun, Row, Verdict

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
    """Write either file or both; raises OSError, and ExtraMissing for a page without the extra `report`."""
    if json is not None:
        json.write_text(json_text.dumps(run.as_dict(), indent=2) + "\n", encoding="utf-8")
    if html is not None:
        html.write_text(as_html(run), encoding="utf-8")


def as_html(run: AuditRun) -> str:
    """One self-contained page. The same run gives the same bytes. Raises ExtraMissing."""
    require("report")
    from strandline.snapshot.spark.audits.plots import plots

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
        *plots(run.figures),
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
