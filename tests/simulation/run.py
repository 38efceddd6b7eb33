"""`scripts/simulate`: run many seeds on all cores, report what was found, and how to see it again.

With `--sabotage NAME` a rule of the production code is broken on purpose, and the run ends with the seed that
found it: see sabotages.py and docs/simulation.md. With `--whole` all of a node runs, and not its log alone;
with `--transactions` all of a node, under clients that write and consume in transactions; with `--compaction`
all of a node, with compacted topics; with `--views` programs of views.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

from tests.simulation.log import sabotages as log_sabotages
from tests.simulation.log import scenario as log
from tests.simulation.report import Finding, Report, Totals
from tests.simulation.sabotage import Sabotage
from tests.simulation.views import sabotages as view_sabotages
from tests.simulation.views import scenario as views
from tests.simulation.whole import sabotages as whole_sabotages
from tests.simulation.whole import scenario as whole
from tests.simulation.whole.compaction import sabotages as compaction_sabotages
from tests.simulation.whole.compaction import scenario as compaction
from tests.simulation.whole.transactions import sabotages as transaction_sabotages
from tests.simulation.whole.transactions import scenario as transactions

_COLLECT_EVERY = 20
_SHOWN = 20
"""Failed seeds that are printed; the rest are counted."""


class Simulation(NamedTuple):
    """One kind of run; a seed is another run in each."""

    option: str
    """Chooses it on the command line."""
    run_seed: Callable[..., Report]
    sabotages: Mapping[str, Sabotage]
    figures: tuple[str, ...]


SIMULATIONS = {
    "log": Simulation("", log.run_seed, log_sabotages.SABOTAGES, log.FIGURES),
    "whole": Simulation(" --whole", whole.run_seed, whole_sabotages.SABOTAGES, whole.FIGURES),
    "transactions": Simulation(
        " --transactions", transactions.run_seed, transaction_sabotages.SABOTAGES, transactions.FIGURES
    ),
    "compaction": Simulation(
        " --compaction", compaction.run_seed, compaction_sabotages.SABOTAGES, compaction.FIGURES
    ),
    "views": Simulation(" --views", views.run_seed, view_sabotages.SABOTAGES, views.FIGURES),
}
Job = tuple[int, str | None, str]
"""A seed, the sabotage if any, the kind of simulation."""


def _run(job: Job, *, tracing: bool = False) -> Report:
    seed, sabotage, kind = job
    simulation = SIMULATIONS[kind]
    with nullcontext() if sabotage is None else simulation.sabotages[sabotage].opened():
        try:
            return simulation.run_seed(seed, tracing=tracing)
        except Exception as error:
            if tracing:
                raise
            # A check that raises is a fault of the check. The other seeds of a long series run all the same.
            text = "".join(traceback.format_exception(error)[-2:])
            return Report(seed, findings=[Finding("the simulator itself", 0.0, text)])


def _simulate(job: Job) -> Report:
    report = _run(job)
    if job[0] % _COLLECT_EVERY == 0:
        _collect()
    return report


def _collect() -> None:
    """Collect the garbage of all runs, also what a replica has set aside with a large state (`gc.freeze`)."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _prepare() -> None:
    logging.disable(logging.CRITICAL)
    # Loops and futures form cycles by the thousand; collecting them seldom is a fifth faster.
    gc.disable()
    gc.freeze()


def simulate(seeds: range, sabotage: str | None, jobs: int, kind: str) -> Iterator[Report]:
    """Reports of all seeds in order, each from a process of its own choosing."""
    work = [(seed, sabotage, kind) for seed in seeds]
    if jobs == 1 or len(work) == 1:
        logs = logging.root.manager.disable
        _prepare()
        try:
            yield from map(_simulate, work)
        finally:  # this process has other work, such as the next tests
            gc.unfreeze()
            gc.enable()
            logging.disable(logs)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, _prepare) as pool:
        yield from pool.imap(_simulate, work, chunksize=1 if sabotage else 4)


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/simulate", description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=300, help="how many seeds (default: %(default)s)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first of them (default: 0)")
    parser.add_argument("--seed", type=int, help="run this one seed")
    parser.add_argument("--whole", action="store_true", help="whole nodes with a store and Kafka clients")
    parser.add_argument(
        "--transactions", action="store_true", help="whole nodes, transactions and consumer groups"
    )
    parser.add_argument("--compaction", action="store_true", help="whole nodes, compacted topics")
    parser.add_argument("--views", action="store_true", help="programs of views")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every event of the run")
    parser.add_argument("--json", action="store_true", help="end with one JSON object, not a summary line")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)"
    )
    parser.add_argument("--sabotage", metavar="NAME", help="break this rule, and stop once that is found")
    parser.add_argument("--list-sabotages", action="store_true", help="list the rules that can be broken")
    arguments = parser.parse_args(given)
    if arguments.sabotage is not None and arguments.sabotage not in _simulation(arguments).sabotages:
        parser.error(f"there is no sabotage {arguments.sabotage!r}: --list-sabotages names them")
    if arguments.trace and arguments.seed is None:
        parser.error("--trace needs --seed: it prints every event of one run")
    if arguments.whole + arguments.transactions + arguments.compaction + arguments.views > 1:
        parser.error("--whole, --transactions, --compaction and --views are different runs: choose one")
    if arguments.seeds < 1 or arguments.jobs < 1:
        parser.error("--seeds and --jobs must be at least 1")
    return arguments


def _kind(arguments: argparse.Namespace) -> str:
    if arguments.transactions:
        return "transactions"
    if arguments.views:
        return "views"
    if arguments.compaction:
        return "compaction"
    return "whole" if arguments.whole else "log"


def _simulation(arguments: argparse.Namespace) -> Simulation:
    return SIMULATIONS[_kind(arguments)]


def main(given: list[str] | None = None) -> int:
    """Exit 0 when nothing was found; with --sabotage, when it was."""
    arguments = _arguments(given)
    if arguments.list_sabotages:
        for sabotage in _simulation(arguments).sabotages.values():
            print(f"{sabotage.name:32} {sabotage.hole}")
        return 0
    if arguments.seed is not None:
        seeds = range(arguments.seed, arguments.seed + 1)
    else:
        seeds = range(arguments.first, arguments.first + arguments.seeds)
    began = time.perf_counter()
    if arguments.trace:
        reports = iter([_traced((arguments.seed, arguments.sabotage, _kind(arguments)))])
    else:
        reports = simulate(seeds, arguments.sabotage, arguments.jobs, _kind(arguments))
    totals = Totals(_simulation(arguments).figures)
    _watch(reports, len(seeds), arguments, totals)
    seconds = time.perf_counter() - began
    if arguments.json:
        print(json.dumps(_as_json(totals, seconds, arguments.sabotage)))
    else:
        print(_summary(totals, _simulation(arguments).option, seconds, arguments.sabotage))
    return int(bool(totals.failed) == (arguments.sabotage is None))


def _traced(job: Job) -> Report:
    _prepare()
    report = _run(job, tracing=True)
    for line in report.trace:
        print(line)
    print(f"digest {report.digest}")
    return report


def _watch(reports: Iterator[Report], count: int, arguments: argparse.Namespace, totals: Totals) -> None:
    """Add up the reports and print findings, and progress every few seconds; a sabotage ends when found.

    It is found by a check that it violates. Findings of other checks are printed, and do not count.
    """
    out = sys.stderr if arguments.json else sys.stdout
    option = _simulation(arguments).option
    said = time.perf_counter()
    sabotage = _simulation(arguments).sabotages[arguments.sabotage] if arguments.sabotage else None
    for report in reports:
        if sabotage is not None:
            own = sabotage.findings(report)
            for finding in report.findings if not own else ():
                print(f"seed {report.seed}, not expected: {finding}", file=out, flush=True)
            report.findings = own
        totals.add(report)
        for finding in report.findings[:3] if len(totals.failed) <= _SHOWN else ():
            print(f"seed {report.seed}: {finding}", file=out, flush=True)
        if report.findings and len(totals.failed) <= _SHOWN:
            extra = f" --sabotage {arguments.sabotage}" if arguments.sabotage else ""
            print(
                f"  again: scripts/simulate{option} --seed {report.seed} --trace{extra}", file=out, flush=True
            )
            if arguments.sabotage:
                break
        if time.perf_counter() - said > 5.0:
            said = time.perf_counter()
            print(f"{totals.seeds} of {count} seeds, {len(totals.failed)} failed", file=out, flush=True)


def _summary(totals: Totals, option: str, seconds: float, sabotage: str | None) -> str:
    rate = f"{totals.seeds / seconds:.1f} seeds/s"
    if sabotage is not None:
        if not totals.failed:
            return f"simulate FAILED: sabotage {sabotage} was not found in {totals.seeds} seeds, {rate}"
        found = totals.failed[0].findings[0].check
        return f"simulate ok: sabotage {sabotage} found after {totals.seeds} seeds by: {found}, {rate}"
    verdict = f"FAILED on {len(totals.failed)}" if totals.failed else "ok"
    return f"simulate{option} {verdict}: {totals.told()}, {rate}"


def _as_json(totals: Totals, seconds: float, sabotage: str | None) -> dict[str, Any]:
    return {
        "ok": bool(totals.failed) != (sabotage is None),
        "sabotage": sabotage,
        "seconds": round(seconds, 2),
        "seeds_per_second": round(totals.seeds / seconds, 2),
        **totals.as_json(),
    }


if __name__ == "__main__":
    sys.exit(main())
