"""A checkpoint of the whole cluster, and what Spark's audits say about the storage then."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from strandline.snapshot.spark.audits import NothingToAudit, Verdict, run_audits, write_report
from strandline.snapshot.spark.session import session
from tests.programs.failover.cluster.nodes import Nodes

CHECKPOINT_SECONDS = 60.0


async def audit(nodes: Nodes, folder: Path, *, lease_seconds: float = 600.0) -> tuple[list[str], str]:
    """Findings, and a line that says what was looked at; the reports go into `folder`."""
    body = {"timeout_seconds": CHECKPOINT_SECONDS, "lease_seconds": lease_seconds}
    taken = await nodes.ask("/api/checkpoints", "POST", body, seconds=CHECKPOINT_SECONDS + 10)
    if not taken["complete"]:
        return [f"the checkpoint is not complete: {json.dumps(taken)[:2_000]}"], "no audits"
    try:
        found = await asyncio.to_thread(
            lambda: run_audits(
                nodes.storage.url,
                nodes.storage.options,
                nodes.cluster_id,
                spark=session("strandline-failover", "local[2]"),
                full=True,
            )
        )
    except NothingToAudit as error:
        return [f"audits: {error}"], "no audits"
    write_report(found, json=folder / "audits.json", html=folder / "audits.html")
    findings = [
        f"audit {result.name}: {result.findings} findings: {result.evidence[:2]}"
        for result in found.results
        if result.verdict is Verdict.FINDING
    ]
    verdicts = ", ".join(f"{result.name} {result.verdict.value}" for result in found.results)
    return findings, f"audits in {found.seconds:.1f} s: {verdicts}"
