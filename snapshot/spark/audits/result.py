"""Result of an audit: a verdict, counts, and the place of each finding."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Final

Row = dict[str, str | int | None]
SHOWN: Final = 5
"""Most findings of each audit that are reported as text."""


class Verdict(Enum):
    """Verdict of an audit about a cluster's storage."""

    PASSED = "passed"
    """It looked at something, and all of it was right."""
    FINDING = "finding"
    """Something is wrong; `evidence` says where."""
    NOTHING = "nothing"
    """There was nothing to look at: no statement either way."""


@dataclass(frozen=True, slots=True)
class AuditResult:
    """One audit's answer. Evidence and remarks are rows for people; there may be more than are listed."""

    name: str
    question: str
    verdict: Verdict
    counts: dict[str, int]
    """Counts of examined things and findings, by a plain name."""
    evidence: list[Row]
    findings: int
    """Rows of evidence there are, listed or not."""
    remarks: list[Row]
    """Remarks, which are no findings: a replica without a document, a log that was not kept."""

    @property
    def looked_at(self) -> str:
        """The counts as text."""
        return ", ".join(f"{count:,} {what}" for what, count in self.counts.items())

    @property
    def shown(self) -> list[str]:
        """The first findings as text, a line each."""
        return [", ".join(f"{name} {value}" for name, value in row.items()) for row in self.evidence[:SHOWN]]

    @property
    def not_shown(self) -> int:
        """Findings behind these."""
        return max(self.findings - SHOWN, 0)

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "question": self.question,
            "verdict": self.verdict.value,
            "counts": self.counts,
            "findings": self.findings,
            "evidence": self.evidence,
            "remarks": self.remarks,
        }


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of the report; rows in the order of topics and partitions."""

    records: list[Row]
    """topic, partition, records, bytes, batches."""
    batch_bytes: list[Row]
    """bytes (upper bound of a bucket, a power of two), batches."""
    offsets: list[Row]
    """topic, partition, epoch, end_offset: the offset after the last record written in that epoch."""


@dataclass(frozen=True, slots=True)
class ProofUse:
    """Numbers of the proof whose objects were not read, and of the one that was published; None for none."""

    used: int | None = None
    published: int | None = None
    refused: str | None = None
    """The reason why none could be published of a run without findings."""
    left: str | None = None
    """The reason why files of older proofs are still there."""


@dataclass(frozen=True, slots=True)
class AuditRun:
    """All audits' answers about one cluster's storage."""

    url: str
    cluster: str
    results: list[AuditResult]
    figures: Figures
    seconds: float
    proof: ProofUse = ProofUse()

    @property
    def proof_line(self) -> str | None:
        """The use and the publishing of proofs as text; None where there was neither."""
        told = []
        if self.proof.used is not None:
            told.append(f"objects that proof {self.proof.used} has were not read, but for spot checks")
        if self.proof.published is not None:
            told.append(f"published proof {self.proof.published}")
        if self.proof.left is not None:
            told.append(f"older proofs could not be removed, and add up: {self.proof.left}")
        if self.proof.refused is not None:
            told.append(f"published no proof, so the next audit reads the same again: {self.proof.refused}")
        return "; ".join(told) or None

    @property
    def finding(self) -> bool:
        """Whether any audit found something."""
        return any(result.verdict is Verdict.FINDING for result in self.results)

    def as_dict(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "cluster": self.cluster,
            "finding": self.finding,
            "seconds": round(self.seconds, 2),
            "proof": asdict(self.proof),
            "audits": [result.as_dict() for result in self.results],
        }
