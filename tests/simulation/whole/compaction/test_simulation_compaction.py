"""Compacted topics on simulated nodes: some seeds, the same run each time, every sabotage found."""

from __future__ import annotations

import pytest

from tests.simulation.run import main
from tests.simulation.sabotage import Sabotage
from tests.simulation.whole.compaction.plan import KINDS, STEPS, compaction_plan, kinds_of
from tests.simulation.whole.compaction.sabotages import SABOTAGES
from tests.simulation.whole.compaction.scenario import run_seed
from tests.simulation.whole.transactions.plan import STEPS as TRANSACTION_STEPS

SEED = 1


# 1,000,080 applies a checkpoint once more in a new folder, with another local log than the
# first time. In 3,000,010 a node loses the log of a topic that was deleted while it was away. In
# 3,001,429 an entry comes into force while a node whose folder was wiped is down. In 6,000,008 partitions
# move.
@pytest.mark.parametrize("seed", [0, 3, 7, 12, 61, 1_000_080, 3_000_010, 3_001_429, 6_000_008])
def test_a_seed_finds_nothing(seed: int) -> None:
    report = run_seed(seed)
    assert report.findings == []
    for figure in ("acknowledged", "consumed", "publications", "removals", "dropped records"):
        assert report.outcomes[figure] > 0, figure
    assert report.faults.total() > 0
    assert (report.outcomes["moved"] > 0) == ("moving partitions" in kinds_of(seed))


def test_the_same_seed_gives_the_same_run() -> None:
    assert run_seed(SEED).digest == run_seed(SEED).digest


def test_plans_cover_every_fault() -> None:
    plans = [compaction_plan(seed) for seed in range(100)]
    assert {kind for plan in plans for kind in plan.faults} >= {*STEPS, *TRANSACTION_STEPS}
    assert {plan.lost_folders for plan in plans} == {"none", "one"}
    assert {plan.table.old_files for plan in plans if plan.table} == {False, True}
    assert set[str]().union(*map(kinds_of, range(100))) == set(KINDS)


@pytest.mark.parametrize("sabotage", SABOTAGES.values(), ids=SABOTAGES)
def test_the_simulation_finds(sabotage: Sabotage) -> None:
    assert sabotage.is_found(run_seed), f"{sabotage.hole}: not found with seeds {sabotage.found_with}"


def test_the_command_runs_compacted_topics(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--compaction", "--seeds", "1", "--from", str(SEED), "--jobs", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("simulate --compaction ok: 1 seeds")
