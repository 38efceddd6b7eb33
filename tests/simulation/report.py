"""What a run comes to, whatever it simulates: findings, the report of a seed, the sum over many seeds."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken rule: which, when (virtual seconds), and what was seen."""

    check: str
    time: float
    text: str

    def __str__(self) -> str:
        return f"t={self.time:.3f} {self.check}: {self.text}"


@dataclass(slots=True)
class Report:
    """What one seed's run came to. `seconds` is processor time, `virtual` simulated time."""

    seed: int
    findings: list[Finding] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    """How often what was tried ended how, and what else a run counts."""
    virtual: float = 0.0
    seconds: float = 0.0
    digest: str = ""
    """Of all events of the run, in their order."""
    trace: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Totals:
    """The sum over all seeds of a run; `figures` names the outcomes that the summary tells, in order."""

    figures: tuple[str, ...]
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

    def count(self, *checks: str) -> int:
        """How many findings there are of some checks."""
        return sum(finding.check in checks for report in self.failed for finding in report.findings)

    @property
    def lost(self) -> int:
        """What was acknowledged, or committed, and is not there at the end."""
        return self.count("acknowledged and lost", "lost_writes")

    @property
    def doubled(self) -> int:
        """What is there more than once."""
        return self.count("applied twice", "once", "duplicates")

    def told(self) -> str:
        """The middle of the summary line."""
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items()))
        figures = ", ".join(f"{self.outcomes[name]} {name}" for name in self.figures)
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
