"""The simulation of views: each schedule as it stands, the same run every time, and every sabotage found."""

from __future__ import annotations

import pytest

from tests.simulation.sabotage import Sabotage
from tests.simulation.views.sabotages import SABOTAGES
from tests.simulation.views.scenario import run_seed, schedule_of
from tests.simulation.views.schedules import SCHEDULES


@pytest.mark.parametrize(
    "seed", range(len(SCHEDULES)), ids=[schedule_of(seed) for seed in range(len(SCHEDULES))]
)
def test_a_schedule_breaks_no_rule(seed: int) -> None:
    report = run_seed(seed)
    assert report.findings == []
    assert report.outcomes["cutovers"] > 0
    assert report.outcomes["compared"] > 0
    assert report.outcomes["changes"] > 0


@pytest.mark.parametrize("sabotage", SABOTAGES.values(), ids=SABOTAGES)
def test_the_simulation_finds(sabotage: Sabotage) -> None:
    assert sabotage.is_found(run_seed), f"{sabotage.hole}: not found with seeds {sabotage.found_with}"


def test_the_process_that_cuts_over_goes_on_as_the_live_one() -> None:
    outcomes = run_seed([*SCHEDULES].index("S8")).outcomes
    assert (outcomes["cutovers"], outcomes["processes"]) == (2, 2)


def test_every_schedule_has_its_sabotage() -> None:
    taken_out = {sabotage.hole.partition(":")[0] for sabotage in SABOTAGES.values()}
    assert {*SCHEDULES} - taken_out == {"S21"}, "S21 is anything at any time, and has none of its own"


def test_a_seed_is_the_same_run_every_time() -> None:
    seed = [*SCHEDULES].index("S9")
    assert run_seed(seed).digest == run_seed(seed).digest
