"""What many seeds of the whole node came to together, for the command line."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.simulation.whole.scenario import Report

WHOLE = (
    "batches", "acknowledged", "consumed", "entries", "terms", "slides", "restaged", "refused epochs",
    "topics", "documents", "reconciled", "merged", "collected", "level-one deleted", "snapshots deleted",
    "expired", "records deleted",
)  # fmt: skip
"""Figures of a run, in the order in which they are told."""
TRANSACTIONS = (
    "committed", "aborted", "unknown", "copied", "generations joined", "ids used up", "batches",
    "acknowledged", "consumed", "entries", "terms", "documents", "reconciled",
)  # fmt: skip
"""The same where clients write and consume in transactions."""


@dataclass(slots=True)
class Totals:
    """The sum over all seeds of a run, of which these figures are told."""

    named: tuple[str, ...] = WHOLE
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

    @property
    def option(self) -> str:
        """Of the command that runs such seeds."""
        return "--transactions" if self.named is TRANSACTIONS else "--whole"

    def count(self, check: str) -> int:
        return sum(finding.check == check for report in self.failed for finding in report.findings)

    @property
    def lost(self) -> int:
        """Acknowledged, or committed, and not there at the end."""
        return self.count("acknowledged and lost") + self.count("lost_writes")

    @property
    def doubled(self) -> int:
        """There more than once."""
        return self.count("once") + self.count("duplicates")

    def told(self) -> str:
        """The middle of the summary line."""
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items()))
        figures = ", ".join(f"{self.outcomes[name]} {name}" for name in self.named)
        return (
            f"{self.seeds} seeds, {self.virtual_seconds:.0f} virtual s,"
            f" {self.faults.total()} faults ({faults}),"
            f" lost {self.lost}, doubled {self.doubled}, {figures}"
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "seeds": self.seeds,
            "virtual_seconds": round(self.virtual_seconds, 1),
            "faults": dict(sorted(self.faults.items())),
            "lost": self.lost,
            "doubled": self.doubled,
            "outcomes": dict(sorted(self.outcomes.items())),
            "findings": [
                {"seed": report.seed, **asdict(finding)}
                for report in self.failed
                for finding in report.findings
            ],
        }
