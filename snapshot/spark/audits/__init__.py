"""Audits of what a cluster published: each a question about its storage, answered by a Spark job.

`run_audits` asks them all, `write_report` writes the answers down, and
`python -m strandline.audit` does both. docs/audits.md tells what each of them looks at
and what a finding means.
"""

from __future__ import annotations

from strandline.snapshot.spark.audits.report import write_report
from strandline.snapshot.spark.audits.result import AuditResult, AuditRun, Verdict
from strandline.snapshot.spark.audits.run import NothingToAudit, audit_storages, run_audits
from strandline.snapshot.spark.audits.work import ClusterStorage

__all__ = [
    "AuditResult",
    "AuditRun",
    "ClusterStorage",
    "NothingToAudit",
    "Verdict",
    "audit_storages",
    "run_audits",
    "write_report",
]
