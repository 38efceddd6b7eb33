"""The audits of what the three scenes of tests/three_fences left in storage, with each of the fences missing.

They know nothing of the run: where a latecomer came in they turn red by what is stored, and nowhere else.
"""

from __future__ import annotations

import logging

import pytest
from pyspark.sql import SparkSession

from strandline.snapshot.spark.audits import AuditRun, ClusterStorage, Verdict, audit_storages
from strandline.snapshot.storage import open_storage
from tests.three_fences.matrix import CELLS, NAMES, expected, facts
from tests.three_fences.scenes import play
from tests.three_fences.stage import CLUSTER

# All twelve are played and audited by whichever test comes first.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def runs(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str | None], AuditRun]:
    root = tmp_path_factory.mktemp("three-fences")
    storages = []
    logging.disable(logging.CRITICAL)
    try:
        for cell, name in zip(CELLS, NAMES, strict=True):
            outcome = play(*cell, root / name)
            assert facts(outcome) == expected(*cell).facts
            storages.append(ClusterStorage(open_storage(str(root / name)), CLUSTER))
    finally:
        logging.disable(logging.NOTSET)
    return dict(zip(CELLS, audit_storages(spark, storages), strict=True))


@pytest.mark.parametrize(("scene", "missing"), CELLS, ids=NAMES)
def test_what_was_let_in_is_found_in_storage_and_nothing_else(
    scene: str, missing: str | None, runs: dict[tuple[str, str | None], AuditRun]
) -> None:
    wanted, run = expected(scene, missing), runs[scene, missing]
    found = {result.name: result.evidence for result in run.results if result.verdict is Verdict.FINDING}
    assert set(found) == wanted.audits, found
    for audit, says in wanted.findings.items():
        assert any(says in str(row["problem"]) for row in found[audit]), found[audit]
    # Level one has no part in these scenes, and none lasts as long as a grace; all else was looked at.
    nothing = {result.name for result in run.results if result.verdict is Verdict.NOTHING}
    assert nothing == {"level_one_holds_level_zero", "nothing_collectable_left"}
