"""The demonstration of views from its cluster to its report."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from strandline.cluster.demo import views_report, views_run
from strandline.cluster.demo.stage import Stage, new_cluster, table

NODES = 3


def show_views(out: Path, records: int | None, keep: bool, console: Console) -> int:
    """Run it; the exit status. Raises CommandFailed, ExtraMissing, FlightsMissing."""
    started = time.perf_counter()
    with new_cluster(out, NODES, keep, console) as cluster:
        outcome = views_run.run(cluster, out, records, Stage(console))
    outcome.seconds = time.perf_counter() - started
    title = f"Strandline: views over {outcome.flights:,} flights, while a version takes another's place"
    views_report.write(out / "views.html", title, outcome)
    Console(highlight=False).print(table(outcome.rows()))
    for problem in (*outcome.audit.shown, *(str(remark) for remark in outcome.audit.remarks)):
        print(f"  {problem}")
    print(f"report {out / 'views.html'}")
    print(f"demo {'ok' if outcome.good else 'FAILED'}: {outcome.seconds:.1f} s")
    return 0 if outcome.good else 1
