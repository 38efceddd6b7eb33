"""The audits of what the scenes of tests/simulation/three_fences left in storage, with each fence missing.

They know nothing of the run: where a latecomer came in they turn red by what is stored, and nowhere else.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from strandline.snapshot.spark.audits import AuditRun, ClusterStorage, Verdict
from strandline.snapshot.storage import open_storage
from tests.simulation.three_fences.matrix import CELLS, NAMES, expected, facts
from tests.simulation.three_fences.scenes import play
from tests.simulation.three_fences.stage import CLUSTER
from tests.spark.verdicts import NO_COMPACTION

# All twelve are played and audited by the test that comes first.
pytestmark = pytest.mark.timeout(300)


def storages(root: Path) -> dict[str, ClusterStorage]:
    """What each of the twelve left, to be audited together."""
    stored = {}
    logging.disable(logging.CRITICAL)
    try:
        for cell, name in zip(CELLS, NAMES, strict=True):
            outcome = play(*cell, root / name)
            assert facts(outcome) == expected(*cell).facts
            stored[name] = ClusterStorage(open_storage(str(root / name)), CLUSTER)
    finally:
        logging.disable(logging.NOTSET)
    return stored


@pytest.fixture(scope="module")
def runs(audited: dict[str, dict[str, AuditRun]]) -> dict[tuple[str, str | None], AuditRun]:
    return {cell: audited[__name__][name] for cell, name in zip(CELLS, NAMES, strict=True)}


@pytest.mark.parametrize(("scene", "missing"), CELLS, ids=NAMES)
def test_what_was_let_in_is_found_in_storage_and_nothing_else(
    scene: str, missing: str | None, runs: dict[tuple[str, str | None], AuditRun]
) -> None:
    wanted, run = expected(scene, missing), runs[scene, missing]
    found = {result.name: result.evidence for result in run.results if result.verdict is Verdict.FINDING}
    assert set(found) == wanted.audits, found
    for audit, says in wanted.findings.items():
        assert any(says in str(row["problem"]) for row in found[audit]), found[audit]
    # Level one has no part in these scenes, nor have views, and none lasts as long as a grace.
    nothing = {result.name for result in run.results if result.verdict is Verdict.NOTHING}
    without = {"level_one_holds_level_zero", "nothing_collectable_left"}
    without |= {"views_equal_their_sql", "operators_equal_their_replay"}
    assert nothing == without | NO_COMPACTION
