"""Take the leader away again and again under load, and show what clients notice and what the nodes keep.

`scripts/failover raft --rounds 50`: three real processes on the loopback and a real disk. Each round one
fault hits the node that leads, by kill -9, SIGSTOP or cut links, while clients send commands with ids of
their own. It reports the longest gap between acknowledgements of each round, and in the end compares what was
acknowledged with what each node holds. Exits 1 when a command was lost or applied twice, or the 95th
percentile of the gaps is a second or more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.programs.bench.report import shown, table
from tests.programs.failover.client import Clients
from tests.programs.failover.faults import FAULTS, Cluster, schedule
from tests.programs.failover.verdict import Fate, NodeState, Verdict, judge, longest_gap, percentile
from tests.programs.folder_option import existing_folder
from tests.programs.processes.control import NodeDied, NodeFailed, running

LIMIT_SECONDS = 1.0
"""The 95th percentile of the gaps must stay below it."""

_FAULT_SECONDS = (1.0, 2.5)
_CALM_SECONDS = (0.3, 0.7)
_ROUND_SECONDS = 30.0
_END_SECONDS = 10.0


@dataclass(slots=True)
class Report:
    """What a run showed. Gaps are seconds, by kind of fault."""

    gaps: dict[str, list[float]] = field(default_factory=dict)
    fates: dict[Fate, int] = field(default_factory=dict)
    rejections: int = 0
    verdict: Verdict = field(default_factory=Verdict)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def all_gaps(self) -> list[float]:
        return [gap for gaps in self.gaps.values() for gap in gaps]

    def failures(self) -> list[str]:
        """Why the run did not hold; empty when it did."""
        p95 = percentile(self.all_gaps, 0.95)
        verdict = self.verdict
        found = [
            (bool(verdict.lost), f"{len(verdict.lost)} acknowledged commands were lost"),
            (bool(verdict.doubled), f"{len(verdict.doubled)} commands were applied twice"),
            (bool(verdict.unbidden), f"{len(verdict.unbidden)} commands were applied though rejected"),
            (verdict.differing, "the nodes do not hold the same state"),
            (p95 >= LIMIT_SECONDS, f"the 95th percentile of the gaps is {p95:.2f} s"),
            (not self.fates.get(Fate.ACKNOWLEDGED), "nothing was acknowledged"),
        ]
        return [text for wrong, text in found if wrong] + self.problems


async def drive(folder: Path, rounds: int, seed: int, rate: float) -> Report:
    """Run the rounds and judge what came of them."""
    rng = random.Random(seed)
    report = Report()
    cluster = Cluster(folder)
    clients = Clients(cluster.nodes, rate)
    try:
        for link in cluster.links:
            await link.open()
        async with running(cluster.nodes):
            await cluster.connect(0, 1, 2)
            await cluster.leader()
            sending = asyncio.create_task(clients.run())
            try:
                await asyncio.sleep(1.0)
                for number, kind in enumerate(schedule(rounds, rng), 1):
                    gap = await asyncio.wait_for(_round(cluster, clients, kind, rng), _ROUND_SECONDS)
                    report.gaps.setdefault(kind, []).append(gap)
                    print(f"[{number}/{rounds}] {kind}: gap {gap * 1e3:.0f} ms", file=sys.stderr, flush=True)
            except (NodeDied, NodeFailed, TimeoutError) as error:
                report.problems.append(f"a round did not end: {error!r}")
            await clients.stop(_END_SECONDS)
            await sending
            report.rejections = clients.rejections
            report.fates = {fate: list(clients.fates.values()).count(fate) for fate in Fate}
            if not report.problems:
                report.verdict = judge(clients.fates, await _states(cluster))
    except (NodeDied, NodeFailed, ExceptionGroup) as error:
        report.problems.append(repr(error))
    finally:
        for link in cluster.links:
            await link.close()
    if report.problems:
        for node in cluster.nodes:
            print(f"--- {node.log}\n{node.last_words(20)}", file=sys.stderr)
    return report


async def _round(cluster: Cluster, clients: Clients, kind: str, rng: random.Random) -> float:
    """One fault on the leader, its end, and everything well again; the longest gap meanwhile, in seconds."""
    place = await cluster.leader()
    began = time.monotonic()
    await FAULTS[kind](cluster, place, rng.uniform(*_FAULT_SECONDS))
    await cluster.leader()
    await asyncio.sleep(rng.uniform(*_CALM_SECONDS))
    return longest_gap(clients.acknowledged_at, began, time.monotonic())


async def _states(cluster: Cluster) -> list[NodeState]:
    """What the nodes hold, once all have applied the same entries."""
    deadline = time.monotonic() + _END_SECONDS
    while True:
        answers = await asyncio.gather(*(node.ask("state", within=20.0, group=0) for node in cluster.nodes))
        if len({answer["applied"] for answer in answers}) == 1 or time.monotonic() > deadline:
            return [
                NodeState(frozenset(answer["ids"]), tuple(answer["doubled"]), answer["digest"])
                for answer in answers
            ]
        await asyncio.sleep(0.2)


def figures(gaps: list[float]) -> dict[str, Any]:
    return {
        "rounds": len(gaps),
        "p50": percentile(gaps, 0.5),
        "p95": percentile(gaps, 0.95),
        "max": max(gaps, default=float("nan")),
    }


def show(report: Report) -> str:
    """The table, and one line that sums it up."""
    kinds = {kind: report.gaps[kind] for kind in FAULTS if kind in report.gaps}
    kinds["all"] = report.all_gaps
    cells = []
    for kind, gaps in kinds.items():
        each = figures(gaps)
        cells.append(
            [kind, "", str(each["rounds"])] + [shown(each[name], "s") for name in ("p50", "p95", "max")]
        )
    header = ["gap between acknowledgements", "", "rounds", "p50", "p95", "max"]
    failures = report.failures()
    counts = (
        f"{report.fates.get(Fate.ACKNOWLEDGED, 0):,} commands acknowledged,"
        f" {len(report.verdict.lost)} lost, {len(report.verdict.doubled)} doubled,"
        f" {report.fates.get(Fate.UNKNOWN, 0):,} unknown, {report.rejections:,} rejections"
    )
    word = f"failed: {'; '.join(failures)};" if failures else "ok:"
    rounds = len(report.all_gaps)
    return table(header, cells) + f"\n\nfailover {word} {rounds} rounds, {counts}, {report.seconds:.0f} s"


def plain(report: Report, seed: int) -> dict[str, Any]:
    failures = report.failures()
    return {
        "ok": not failures,
        "failures": failures,
        "seed": seed,
        "seconds": round(report.seconds, 1),
        "gaps": {kind: figures(gaps) for kind, gaps in report.gaps.items()},
        "all": figures(report.all_gaps) if report.all_gaps else None,
        "commands": {fate.value: count for fate, count in report.fates.items()},
        "rejections": report.rejections,
        "lost": len(report.verdict.lost),
        "doubled": len(report.verdict.doubled),
        "unbidden": len(report.verdict.unbidden),
    }


def main(arguments: list[str]) -> int:
    """Exit status: 0 when all held, 1 when something did not."""
    parser = argparse.ArgumentParser(prog="scripts/failover raft", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=50, help="faults, one after another (default: 50)")
    parser.add_argument("--seed", type=int, default=1, help="of kinds and times of the faults (default: 1)")
    parser.add_argument("--rate", type=float, default=300.0, help="commands a second (default: 300)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument(
        "--folder",
        type=existing_folder,
        default="/var/tmp",
        help="where the data goes, on a real disk (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    if options.rounds < 1 or not 1 <= options.rate <= 2000:
        parser.error("give at least one round, and 1 to 2000 commands a second")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="strandline-failover-", dir=options.folder) as scratch:
        report = asyncio.run(drive(Path(scratch), options.rounds, options.seed, options.rate))
    report.seconds = time.monotonic() - began
    print(json.dumps(plain(report, options.seed)) if options.json else show(report))
    return 1 if report.failures() else 0
