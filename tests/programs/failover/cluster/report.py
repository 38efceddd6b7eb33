"""What a run of the whole cluster showed: gaps by kind of fault, what was compared, and every finding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.programs.bench.report import shown, table
from tests.programs.failover.cluster.faults import FAULTS, Class
from tests.programs.failover.verdict import percentile

LIMIT_SECONDS = 1.5
"""The 95th percentile of the gaps after a leader was lost must stay below it."""


class Round(NamedTuple):
    """One fault. Seconds: the longest that any partition had no acknowledgement, and that a record waited."""

    kind: str
    gap: float
    wait: float
    epoch_seconds: float


@dataclass
class Report:
    """Filled in as the run goes; what it says at any moment is true so far."""

    seed: int
    storage: str
    rounds: list[Round] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Kinds of faults that were not done, and why not."""
    acknowledged: int = 0
    read_back: int = 0
    lost: int = 0
    doubled: int = 0
    checks: int = 0
    """How often everything was read back and compared."""
    audited: int = 0
    """How often all audits were green."""
    restaged: int = 0
    """Uploads that were repeated because the window had passed their epoch, on nodes while they ran."""
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0
    folder: str | None = None
    """Where logs, configurations and objects are, if they were kept."""

    def gaps(self, kind: Class | str) -> list[float]:
        return [each.gap for each in self.rounds if kind in (each.kind, FAULTS[each.kind].kind)]

    def failures(self) -> list[str]:
        """Why the run did not hold; empty when it did."""
        p95 = percentile(self.gaps(Class.LEADER), 0.95)
        found = [
            (bool(self.lost), f"{self.lost} acknowledged records were lost"),
            (bool(self.doubled), f"{self.doubled} records are there twice"),
            (p95 >= LIMIT_SECONDS, f"the 95th percentile of the gaps after a leader was lost is {p95:.2f} s"),
            (not self.acknowledged, "nothing was acknowledged"),
            (not self.checks, "nothing was read back"),
        ]
        return [text for wrong, text in found if wrong] + self.findings


def figures(rounds: list[Round]) -> dict[str, Any]:
    gaps, waits = [each.gap for each in rounds], [each.wait for each in rounds]
    return {
        "rounds": len(gaps),
        "p50": round(percentile(gaps, 0.5), 3),
        "p95": round(percentile(gaps, 0.95), 3),
        "max": round(max(gaps), 3),
        "longest_wait": round(max(waits), 3),
    }


def _rows(report: Report) -> dict[str, list[Round]]:
    """By kind, then by class, in the order of the faults; only what was done."""
    rows: dict[str, list[Round]] = {}
    for kind in FAULTS:
        rows[kind] = [each for each in report.rounds if each.kind == kind]
    for each in Class:
        rows[f"all: {each.value}"] = [done for done in report.rounds if FAULTS[done.kind].kind is each]
    return {name: done for name, done in rows.items() if done}


def show(report: Report) -> str:
    """The table, and one line that sums it up."""
    names = ("p50", "p95", "max", "longest_wait")
    cells = []
    for name, done in _rows(report).items():
        each = figures(done)
        cells.append([name, "", str(each["rounds"]), *(shown(each[figure], "s") for figure in names)])
    header = ["gap between acknowledgements", "", "rounds", "p50", "p95", "max", "longest wait"]
    lines = [table(header, cells), ""]
    lines += [f"left out: {kind}: {why}" for kind, why in report.left_out.items()]
    failures = report.failures()
    lines += found(failures, report.folder)
    lines.append(
        f"failover {word_for(failures)} {len(report.rounds)} rounds, "
        f"{report.acknowledged:,} records acknowledged, {report.lost} lost, {report.doubled} doubled, "
        f"{report.restaged:,} uploads repeated, "
        f"{report.checks} times read back, {report.audited} times audited, {report.seconds:.0f} s"
    )
    return "\n".join(lines)


def found(failures: Sequence[str], folder: str | None) -> list[str]:
    """A line for each finding, and where what is left of the run lies."""
    lines = [f"finding: {failure}" for failure in failures]
    if folder is not None:
        lines.append(f"logs, configurations and objects: {folder}")
    return lines


def word_for(failures: Sequence[str]) -> str:
    """How the last line begins."""
    return f"failed: {len(failures)} findings;" if failures else "ok:"


def plain(report: Report) -> dict[str, Any]:
    failures = report.failures()
    return {
        "ok": not failures,
        "failures": failures,
        "seed": report.seed,
        "storage": report.storage,
        "seconds": round(report.seconds, 1),
        "gaps": {name: figures(done) for name, done in _rows(report).items()},
        "rounds": [each._asdict() for each in report.rounds],
        "left_out": report.left_out,
        "acknowledged": report.acknowledged,
        "read_back": report.read_back,
        "lost": report.lost,
        "doubled": report.doubled,
        "restaged": report.restaged,
        "checks": report.checks,
        "audited": report.audited,
        "folder": report.folder,
    }
