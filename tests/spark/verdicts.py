"""What tests ask of the audits' answers."""

from __future__ import annotations

from typing import Final

from strandline.snapshot.spark.audits import AuditResult, AuditRun

NO_COMPACTION: Final = frozenset(
    {
        "removal_offsets_monotone",
        "level_one_is_clean",
        "latest_value_survives",
        "nothing_resurrected",
        "local_logs_agree",
    }
)
"""The audits that have nothing to look at where no topic is compacted."""


def result(run: AuditRun, name: str) -> AuditResult:
    """The answer of one audit."""
    (found,) = [result for result in run.results if result.name == name]
    return found
