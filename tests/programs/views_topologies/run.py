"""Each topology of views on three real nodes, with real processes: what must hold beside a filling?

    scripts/views-topologies

One cluster for all. For each topology rows come, change and go, a program is live, and another version of it
is filled beside it. Then:

- Each transaction of each view, from its first on, has just the rows by which DuckDB's answers at the cuts of
  two successive transactions differ. Processes note the cuts that they commit; nothing else of them differs.
- No client is told the names of new views before the cutover, nor hidden names at any time.
- When all rows are taken back, all views are empty, and all that operators keep has the digest 0.
- Nothing is held for the filling after the cutover, and nothing at all for a program that was dropped; no
  topic of it is left.
- The pause is told.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from strandline.cluster.local import LocalCluster
from strandline.cluster.ports import free_ports
from tests.programs.views_topologies import noting
from tests.programs.views_topologies.play import Outcome, Play
from tests.programs.views_topologies.topologies import TOPOLOGIES

NODE: Final = (sys.executable, "-P", "-m", "tests.programs.views_topologies.node")
SETTINGS: Final = (
    "topics.auto_create=false",
    "level_one.reconcile_seconds=500ms",
    "compaction.ingest_seconds=500ms",
)


def main(arguments: list[str]) -> int:
    """Exits 1 when something did not hold, 2 for a name that there is not."""
    parser = argparse.ArgumentParser(prog="scripts/views-topologies", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="WORD", default=[""], help="topologies with such a word")
    given = parser.parse_args(arguments)
    chosen = [
        (number, one) for number, one in enumerate(TOPOLOGIES) if any(word in one.name for word in given.only)
    ]
    if not chosen:
        parser.error(f"no topology has one of {given.only} in its name")
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="views-topologies-") as folder:
        notes = Path(folder, "notes")
        notes.touch()
        os.environ[noting.NOTES] = str(notes)
        cluster = LocalCluster(Path(folder, "cluster"), program=NODE)
        cluster.up(3, choose_ports=free_ports, settings=SETTINGS)
        try:
            for number, topology in chosen:
                outcomes.append(Play(cluster, notes, number, topology).go())
                _print(outcomes[-1])
        finally:
            cluster.down()
    failed = sum(bool(one.problems) for one in outcomes)
    transactions = sum(one.transactions for one in outcomes)
    pauses = sorted(one.pause for one in outcomes if one.pause is not None)
    shown = f", pauses {pauses[0]:.2f} to {pauses[-1]:.2f} s" if pauses else ""
    word = "failed" if failed else "ok"
    print(
        f"views-topologies {word}: {len(outcomes)} topologies, {failed} failed, "
        f"{transactions:,} transactions compared{shown}, load average {os.getloadavg()[0]:.1f}"
    )
    return 1 if failed else 0


def _print(one: Outcome) -> None:
    pause = "no cutover" if one.pause is None else f"pause {one.pause:.2f} s {one.parts}"
    print(
        f"{'FAILED' if one.problems else 'ok'} {one.name}: {one.views} topics, {one.transactions} "
        f"transactions, {one.looks} looks, {pause}, {one.seconds:.1f} s",
        flush=True,
    )
    for problem in one.problems:
        print(f"  - {problem[:600]}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
