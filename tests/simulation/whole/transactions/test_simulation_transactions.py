"""Transactions and groups on simulated nodes: some seeds, the same run each time, every sabotage found."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests import ROOT
from tests.simulation.run import main
from tests.simulation.sabotage import Sabotage
from tests.simulation.whole.transactions.plan import STEPS, transactional_plan
from tests.simulation.whole.transactions.sabotages import SABOTAGES
from tests.simulation.whole.transactions.scenario import run_seed

SEED = 10


@pytest.mark.parametrize("seed", [1, 5, 12, 18, 104])
def test_a_seed_finds_nothing(seed: int) -> None:
    report = run_seed(seed)
    assert report.findings == []
    assert report.outcomes["committed"] > 0
    assert report.outcomes["aborted"] > 0
    assert report.outcomes["consumed"] > 0
    assert report.faults.total() > 0


@pytest.mark.parametrize("seed", [13, 15])
def test_transactions_whose_batches_go_inline_lose_nothing(seed: int) -> None:
    assert transactional_plan(seed).inline.max_batch_bytes > 0
    report = run_seed(seed)
    assert report.findings == []
    assert report.outcomes["inline"] > 0
    assert report.outcomes["stored inline"] > 0
    assert report.outcomes["committed"] > 0


@pytest.mark.parametrize("seed", [1, 2])
def test_folders_that_are_wiped_cost_nothing(seed: int) -> None:
    report = run_seed(seed)
    assert report.findings == []
    assert report.faults["wiped folder"] == report.faults["folder replaced"] > 0
    assert report.outcomes["committed"] > 0


@pytest.mark.parametrize("seed", [2014])
def test_transactions_of_a_restored_cluster_are_whole_and_groups_go_on_no_later(seed: int) -> None:
    assert transactional_plan(seed).lost_folders == "restored"
    report = run_seed(seed)
    assert report.findings == []
    assert report.faults["restored"] == 1
    for what in ("transactions restored", "transactions lost", "offsets restored"):
        assert report.faults[what] > 0
    assert report.outcomes["copied"] > 0


@pytest.mark.timeout(240)
def test_the_same_seed_gives_the_same_run_in_every_process() -> None:
    program = (
        f"from tests.simulation.whole.transactions.scenario import run_seed; print(run_seed({SEED}).digest)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == run_seed(SEED).digest


def test_plans_cover_every_fault_and_kind_of_client() -> None:
    plans = [transactional_plan(seed) for seed in range(100)]
    loads = [plan.load for plan in plans if plan.load is not None]
    assert set(STEPS) <= {kind for plan in plans for kind in plan.faults}
    assert {load.protocol for load in loads if load.workers} == {"classic", "consumer", "both"}
    assert {plan.coordinators for plan in plans} == {1, 2}
    assert {plan.lost_folders for plan in plans} == {"none", "one"}
    assert {plan.full_disks[0] for plan in plans if plan.full_disks is not None} == {"one", "majority"}


@pytest.mark.parametrize("sabotage", SABOTAGES.values(), ids=SABOTAGES)
def test_the_simulation_finds(sabotage: Sabotage) -> None:
    assert sabotage.is_found(run_seed), f"{sabotage.hole}: not found with seeds {sabotage.found_with}"


def test_the_command_runs_transactions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--transactions", "--seed", str(SEED), "--jobs", "1"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("simulate --transactions ok: 1 seeds")
    assert "lost 0, doubled 0" in line
