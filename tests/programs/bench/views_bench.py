"""Views: what a step costs by the size of its state, and on three nodes filling, latency, a cutover, a death.

`scripts/bench views`: first one process without a cluster, for states of more and more keys (a group-by with
COUNT and SUM; JSON in and out). Beside it DuckDB works the same view out from columns in memory, once: what
stands in the place of a step where nothing is kept. Then a cluster: rows are filled into a view, then flow
at a rate while another view is added, and changed as often as is wanted, and at last the view's process is
killed, and then its node. Then a group-by and a join take the same rows there, without Kafka, and in Pathway,
Bytewax, DuckDB and Spark (`views_peers.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from tests.programs.bench import views_peers
from tests.programs.bench.report import shown, table
from tests.programs.bench.views_cluster import Report, Run, Size
from tests.programs.bench.views_rows import RATE
from tests.programs.folder_option import existing_folder

SIZES: Final = {"full": (10_000, 100_000, 1_000_000, 10_000_000), "quick": (10_000, 100_000, 1_000_000)}
ROWS: Final = {"full": 2_000_000, "quick": 100_000}
"""Of the view on a cluster, a tenth as many keys."""
PEER_ROWS: Final = {"full": 1_000_000, "quick": 100_000}
STEPS: Final = 20
LEAST_OF_P99: Final = 100
"""Values below which a p99 says no more than the longest."""
WANTED_PAUSE: Final = 0.5
WANTED_FAILOVER: Final = 15.0
UV: Final = Path(".tools/uv/bin/uv")
"""As `scripts/setup` puts it there."""


def size(keys: int, folder: Path) -> dict[str, float]:
    """The figures of one size, from a process of its own."""
    command = [sys.executable, "-m", "tests.programs.bench.views_state", str(keys), str(STEPS), str(folder)]
    print(f"{keys:,} keys ...", file=sys.stderr, flush=True)
    environment = {**os.environ, "POLARS_MAX_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def lines(sizes: Sequence[dict[str, float]]) -> list[list[str]]:
    """The curve: a row for each figure, a column for each size."""
    figures = (
        ("filled", "rows a second of processor", "fill", "/s"),
        ("steps of 10,000 rows", "rows a second of processor", "steps", "/s"),
        ("", "a step, median", "step", "s"),
        ("", "a step, longest", "longest", "s"),
        ("state", "runs", "state", "B"),
        ("", "stored", "stored", "B"),
        ("memory of the process", "without mapped files", "memory", "B"),
        ("", "at most", "peak", "B"),
        ("a stored state", "the whole", "save", "s"),
        ("", "after those steps, as in a cutover's pause", "again", "s"),
        ("a start", "files that are here are mapped", "map", "s"),
        ("", "on another machine: fetched", "fetch", "s"),
        ("DuckDB", "the view worked out once, processor", "recompute", "s"),
    )
    return [[title, what, *(shown(one[name], unit) for one in sizes)] for title, what, name, unit in figures]


def cluster_lines(report: Report) -> list[list[str]]:
    """Of the run on a cluster."""
    found = report.cluster
    before = (
        (f"{found.get('rows', 0):,.0f} rows", "filled, with apply and start", "filled", "/s"),
        (f"{found.get('keys', 0):,.0f} keys", "runs of the state", "state", "B"),
        ("memory of the process", "without mapped files", "own", "B"),
        ("", "with them", "all", "B"),
        ("", "without mapped files, at most of one process", "most_own", "B"),
        ("", "with them, at most of one process", "most_all", "B"),
        (f"{RATE:,.0f} rows a second", "produced to seen, p50", "p50", "s"),
        ("", "p99", "p99", "s"),
        ("while another view is filled", "p50", "p50_filling", "s"),
        ("", "p99", "p99_filling", "s"),
    )
    after = (
        ("", "processes started for the version that is live", "starts", ""),
        ("its process killed", "longest time without a change", "failover", "s"),
        ("", "until the next one is the version's producer", "start_join", "s"),
        ("", "until its state is mapped", "start_state", "s"),
        ("", "until it has replayed what came after that", "start_replay", "s"),
        ("its node killed", "longest time without a change", "node_failover", "s"),
    )
    each = report.cutovers
    pauses = quantile_lines("pause as the process tells it", [one["pause"] for one in each])
    gaps = quantile_lines("longest time without a change, to a reader", [one["gap"] for one in each])
    return [
        *([title, what, shown(found.get(name), unit)] for title, what, name, unit in before),
        *(["" if at else "the cutover", *line] for at, line in enumerate([*pauses, *gaps])),
        *([title, what, shown(found.get(name), unit)] for title, what, name, unit in after),
    ]


def quantile_lines(what: str, values: Sequence[float]) -> list[list[str]]:
    """Quantiles of seconds, as far as there are values for them."""
    if len(values) < 2:
        return [[what, shown(values[0] if values else None, "s")]]
    lines = [[f"{what}, p50 of {len(values)}", shown(median(values), "s")]]
    if len(values) >= LEAST_OF_P99:
        lines.append(["p99", shown(quantiles(values, n=100)[98], "s")])
    return [*lines, [f"the longest of {len(values)}", shown(max(values), "s")]]


def cutover_lines(cutovers: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A row for each cutover, with the parts of its pause."""
    return [
        [
            f"{number}",
            ", ".join(f"{part} {shown(seconds, 's')}" for part, seconds in one["parts"].items()),
            shown(one["pause"], "s"),
            shown(one["gap"], "s"),
        ]
        for number, one in enumerate(cutovers, 1)
    ]


def main(arguments: Sequence[str]) -> int:
    """Exits 1 when something went wrong; times above those wanted are only remarked."""
    parser = argparse.ArgumentParser(prog="scripts/bench views", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="smaller states, fewer rows")
    parser.add_argument("--keys", type=int, nargs="*", help="sizes of the state, in keys; no number: none")
    parser.add_argument(
        "--rows", type=int, help="of the view on a cluster, at least one for each key; 0: no cluster"
    )
    parser.add_argument("--view-keys", type=int, help="of the view on a cluster; a tenth of the rows")
    parser.add_argument("--cutovers", type=int, default=1, help="so often another version takes the place")
    parser.add_argument("--peer-rows", type=int, help="of the work beside peers; 0: none")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the tables")
    parser.add_argument(
        "--folder", type=existing_folder, default="/var/tmp", help="on a real disk (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    scale = "quick" if options.quick else "full"
    rows = ROWS[scale] if options.rows is None else options.rows
    view_keys = options.view_keys or max(1, rows // 10)
    beside = PEER_ROWS[scale] if options.peer_rows is None else options.peer_rows
    report, load = Report(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="strandline-bench-", dir=options.folder) as scratch:
        for keys in SIZES[scale] if options.keys is None else options.keys:
            report.sizes.append(size(keys, Path(scratch, f"{keys}")))
        if rows:
            wanted = Size(max(rows, view_keys), view_keys, max(1, options.cutovers), beside)
            Run(Path(scratch), report, wanted).go()
        if beside:
            report.rates, missing = views_peers.measure(Path(scratch, "peers"), beside, UV)
            report.problems += missing
    if options.json:
        print(json.dumps({"ok": not report.problems, "load_average": load, **asdict(report)}))
        return 1 if report.problems else 0
    if report.sizes:
        print(table(["", "", *(f"{one['keys']:,.0f} keys" for one in report.sizes)], lines(report.sizes)))
    if rows:
        print("\n" + table(["", "", "three nodes"], cluster_lines(report)))
    if len(report.cutovers) > 1:
        print("\n" + table(["cutover", "parts of the pause", "pause", "gap"], cutover_lines(report.cutovers)))
    if beside:
        head = [
            "",
            f"{beside:,} rows",
            "rows a second of processor",
            "times, whole",
            "without Kafka",
            "wanted",
        ]
        print("\n" + table(head, views_peers.lines(report.rates, report.cluster)))
    if (longest := max((one["pause"] for one in report.cutovers), default=0.0)) > WANTED_PAUSE:
        print(f"- the longest pause was {longest:.2f} s, wanted are {WANTED_PAUSE:g}")
    for name, what in (("failover", "process"), ("node_failover", "node")):
        if report.cluster.get(name, 0) > WANTED_FAILOVER:
            seconds = f"{report.cluster[name]:.2f} s, wanted are {WANTED_FAILOVER:g}"
            print(f"- the first output after the {what}'s death came after {seconds}")
    for one in report.problems:
        print(f"- FAILED: {one}")
    print(f"bench views {'failed' if report.problems else 'ok'}, load average before {load:.1f}")
    return 1 if report.problems else 0
