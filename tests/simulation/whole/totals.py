"""What many seeds of the whole node came to together, for the command line."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.simulation.whole.scenario import Report

_NAMED = (
    "batches", "acknowledged", "consumed", "entries", "terms", "slides", "restaged", "refused epochs",
    "topics", "documents", "reconciled", "merged", "collected", "level-one deleted", "snapshots deleted",
    "expired", "records deleted",
)  # fmt: skip
"""Figures of a run, in the order in which they are told."""


@dataclass(slots=True)
class Totals:
    """The sum over all seeds of a run."""

    seeds: int = 0
    virtual_seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    failed: list[Report] = field(default_factory=list)

    def add(self, report: Report) -> None:
        self.seeds += 1
        self.virtual_seconds += report.virtual
        self.faults.update(report.faults)
        self.outcomes.update(report.outcomes)
        if report.findings:
            self.failed.append(report)

    def count(self, check: str) -> int:
        return sum(finding.check == check for report in self.failed for finding in report.findings)

    def told(self) -> str:
        """The middle of the summary line."""
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items()))
        figures = ", ".join(f"{self.outcomes[name]} {name}" for name in _NAMED)
        return (
            f"{self.seeds} seeds, {self.virtual_seconds:.0f} virtual s,"
            f" {self.faults.total()} faults ({faults}),"
            f" lost {self.count('acknowledged and lost')}, doubled {self.count('once')}, {figures}"
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "seeds": self.seeds,
            "virtual_seconds": round(self.virtual_seconds, 1),
            "faults": dict(sorted(self.faults.items())),
            "lost": self.count("acknowledged and lost"),
            "doubled": self.count("once"),
            "outcomes": dict(sorted(self.outcomes.items())),
            "findings": [
                {"seed": report.seed, **asdict(finding)}
                for report in self.failed
                for finding in report.findings
            ],
        }
