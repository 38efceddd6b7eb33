"""The simulator can fail: with any of the rules taken out, seeds that are known to find it do find it."""

from __future__ import annotations

import pytest

from tests.simulation.log.sabotages import SABOTAGES, Sabotage, reopened
from tests.simulation.log.scenario import run_seed


@pytest.mark.parametrize("sabotage", SABOTAGES.values(), ids=SABOTAGES)
def test_the_simulation_finds(sabotage: Sabotage) -> None:
    for seed in sabotage.found_with:
        with reopened(sabotage.name) as host_class:
            if run_seed(seed, host_class).findings:
                return
    pytest.fail(f"{sabotage.name} ({sabotage.hole}) was not found with seeds {sabotage.found_with}")
