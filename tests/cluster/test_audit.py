"""`strandline audit`: what it makes of what the audits say, and of a storage that has nothing to audit."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from strandline.snapshot.spark import session
from strandline.snapshot.spark.audits import run as audits
from strandline.snapshot.spark.audits.result import AuditResult, AuditRun, Figures, Row, Verdict
from tests.cluster.command import Done, strandline

Audit = Callable[..., Done]


class Session:
    """Stands in for Spark, which these tests need not start."""

    def stop(self) -> None:
        pass


def result(name: str, *evidence: Row, more: int = 0) -> AuditResult:
    verdict = Verdict.FINDING if evidence else Verdict.PASSED
    return AuditResult(name, "?", verdict, {"batches": 7}, [*evidence], len(evidence) + more, [])


@pytest.fixture
def audit(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Audit:
    return partial(strandline, capfd, monkeypatch, "audit")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[AuditResult]:
    """What the audits say from now on."""
    results: list[AuditResult] = []

    def played(url: str, options: Any, cluster: str, **more: Any) -> AuditRun:
        return AuditRun(url, cluster, results, Figures([], [], []), 1.0)

    monkeypatch.setattr(audits, "check_input", lambda *given: None)
    monkeypatch.setattr(audits, "run_audits", played)
    monkeypatch.setattr(session, "session", lambda *given, **more: Session())
    return results


WHERE = ("--storage", "/objects", "--cluster-id", "orders")


def test_a_finding_is_told_with_its_place_and_ends_with_1(audit: Audit, said: list[AuditResult]) -> None:
    rows: list[Row] = [{"topic": "orders[x]", "offset": at, "problem": "it is torn"} for at in range(6)]
    said += [result("replicas_agree"), result("transactions_are_whole", *rows, more=2)]
    done = audit(*WHERE)
    assert done.status == 1
    assert "\n\ntransactions_are_whole:\n  topic orders[x], offset 0, problem it is torn\n" in done.out
    assert "offset 4" in done.out
    assert "offset 5" not in done.out
    assert "  and 3 more" in done.out
    told = json.loads(audit(*WHERE, "--json").out)
    assert len(told["audits"][1]["evidence"]) == 6


def test_without_a_finding_it_ends_with_0(audit: Audit, said: list[AuditResult]) -> None:
    said.append(result("replicas_agree"))
    done = audit(*WHERE)
    assert done.status == 0
    assert done.out.splitlines()[-1].split() == ["replicas_agree", "passed", "7", "batches"]


def test_nothing_to_audit_is_no_finding(audit: Audit, tmp_path: Path) -> None:
    done = audit("--storage", str(tmp_path), "--cluster-id", "orders")
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("strandline: ")
    assert "strandline checkpoint" in done.err
    assert done.err.count("\n") == 1
