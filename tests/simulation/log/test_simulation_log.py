"""The simulation of the replicated log: some seeds, the same trace every time, and what the command says."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests import ROOT
from tests.simulation.log.plan import DRILLS, FAULTS, WIPED, plan_of
from tests.simulation.log.scenario import run_seed
from tests.simulation.run import main

SEED = 21


@pytest.mark.parametrize("seed", range(len(DRILLS)))
def test_a_seed_finds_nothing(seed: int) -> None:
    report = run_seed(seed)
    assert report.findings == []
    assert report.outcomes["applied"] > 0
    assert report.faults.total() > 0


def test_the_same_seed_gives_the_same_trace_in_every_process() -> None:
    digests = set()
    for hash_seed in ("0", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        program = f"from tests.simulation.log.scenario import run_seed; print(run_seed({SEED}).digest)"
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout.strip())
    digests.add(run_seed(SEED).digest)
    digests.add(run_seed(SEED, tracing=True).digest)
    assert len(digests) == 1


def test_seeds_differ() -> None:
    assert run_seed(SEED).digest != run_seed(SEED + 1).digest


def test_plans_cover_every_fault_and_drill() -> None:
    plans = [plan_of(seed) for seed in range(60)]
    assert {kind for plan in plans for kind in plan.faults} == {*FAULTS, WIPED}
    assert {plan.drill for plan in plans} == set(DRILLS)
    assert {len(plan.voters) for plan in plans} == {3, 4, 5}


def test_the_command_sums_up_and_exits_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2", "--jobs", "1"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("simulate ok: 2 seeds")
    assert "lost 0, doubled 0" in line


def test_the_command_finds_a_sabotage_and_says_how_to_see_it_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--seeds", "6", "--jobs", "1", "--sabotage", "commits-on-heartbeat"]) == 0
    out = capsys.readouterr().out
    assert "again: scripts/simulate --seed 0 --trace --sabotage commits-on-heartbeat" in out
    assert out.splitlines()[-1].startswith(
        "simulate ok: sabotage commits-on-heartbeat found after 1 seeds by:"
    )


def test_a_sabotage_that_is_not_found_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "1", "--from", "1", "--jobs", "1", "--sabotage", "next-moves-back"]) == 1
    assert "was not found" in capsys.readouterr().out


def test_json_has_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["ok"] is True
    assert figures["lost"] == figures["doubled"] == 0
    assert figures["seeds"] == 1


def test_a_trace_needs_a_seed() -> None:
    with pytest.raises(SystemExit):
        main(["--trace"])
