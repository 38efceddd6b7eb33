"""Audits of what a cluster has stored: `run_audits` asks them all, `write_report` writes the answers down.

The extra `spark` brings PySpark, `report` what a page with plots needs besides; where one is missing,
ImportError names the command that installs it. No library of a node's is needed. `python -m strandline.audit`
does both in one command. See docs/audits.md.
"""

from __future__ import annotations

if __name__ == "__main__":
    from strandline.snapshot.extras import end_without

    end_without("spark")

from strandline.snapshot.spark.audits import (
    AuditResult,
    AuditRun,
    ClusterStorage,
    NothingToAudit,
    Verdict,
    audit_storages,
    run_audits,
    write_report,
)
from strandline.snapshot.spark.audits.collecting import Grace
from strandline.snapshot.storage import StorageError, open_storage

__all__ = [
    "AuditResult",
    "AuditRun",
    "ClusterStorage",
    "Grace",
    "NothingToAudit",
    "StorageError",
    "Verdict",
    "audit_storages",
    "open_storage",
    "run_audits",
    "write_report",
]

if __name__ == "__main__":
    import sys

    from strandline.snapshot.spark.audits.__main__ import main

    sys.exit(main())
