"""Spark on state at rest: topics as data frames, audits, and their report.

Importing anything below raises ExtraMissing where the extra `spark` is not installed.
"""

from __future__ import annotations

from strandline.snapshot.extras import require

require("spark")
