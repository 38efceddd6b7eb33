"""Audit one cluster's storage: `python -m strandline.audit`.

Exits 1 on a finding, 2 on bad input.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from strandline.snapshot.extras import ExtraMissing, require
from strandline.snapshot.spark.audits.collecting import GRACE_MS, Grace
from strandline.snapshot.spark.audits.report import write_report
from strandline.snapshot.spark.audits.result import AuditRun, Verdict
from strandline.snapshot.spark.audits.run import NothingToAudit, check_input, run_audits
from strandline.snapshot.spark.no_spark import NoSpark
from strandline.snapshot.spark.session import session


def main(arguments: Sequence[str] | None = None) -> int:
    """Audit, print a line for each audit, write the reports asked for. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m strandline.audit", description=__doc__)
    parser.add_argument("--url", required=True, help="the cluster's storage: a folder or a bucket's URL")
    parser.add_argument("--cluster", required=True, help="the cluster's id")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="of the store; may be repeated"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the answers as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page for people")
    parser.add_argument(
        "--grace-seconds", type=float, default=GRACE_MS / 1000, metavar="S",
        help="collectable objects younger than this are not reported (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument(
        "--grace-epochs", type=int, metavar="N",
        help="for level zero in epochs below M, in place of a time",
    )  # fmt: skip
    parser.add_argument(
        "--full",
        action="store_true",
        help="read all objects again, also those that an earlier audit has proven",
    )
    parser.add_argument("--master", default="local[*]", help="Spark's master (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    options = dict(option.partition("=")[::2] for option in chosen.option)
    try:
        if chosen.html is not None:
            require("report")
        check_input(chosen.url, options, chosen.cluster)
        running = SparkSession.getActiveSession()
        spark = running or session("strandline audit", chosen.master, short_jobs=True)
        try:
            grace = Grace(round(chosen.grace_seconds * 1000), chosen.grace_epochs)
            run = run_audits(chosen.url, options, chosen.cluster, spark=spark, grace=grace, full=chosen.full)
        finally:
            if running is None:
                spark.stop()
        write_report(run, json=chosen.json, html=chosen.html)
    except (NothingToAudit, NoSpark, ExtraMissing, OSError) as error:
        print(f"audit: {error}", file=sys.stderr)
        return 2
    for line in lines(run):
        print(line)
    return 1 if run.finding else 0


def lines(run: AuditRun) -> list[str]:
    """The verdicts as text, with the first findings of each audit."""
    said = []
    for result in run.results:
        said.append(f"{result.verdict.value:8} {result.name}: {result.looked_at}")
        if result.verdict is Verdict.FINDING:
            said += ["         " + line for line in result.shown]
            if result.not_shown:
                said.append(f"         and {result.not_shown:,} more")
    return [*said, *([run.proof_line] if run.proof_line else [])]


if __name__ == "__main__":
    sys.exit(main())
