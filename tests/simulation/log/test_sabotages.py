"""The simulator can fail: with any of the rules taken out, seeds that are known to find it do find it."""

from __future__ import annotations

import pytest

from tests.simulation.log.sabotages import SABOTAGES
from tests.simulation.log.scenario import run_seed
from tests.simulation.sabotage import Sabotage


@pytest.mark.parametrize("sabotage", SABOTAGES.values(), ids=SABOTAGES)
def test_the_simulation_finds(sabotage: Sabotage) -> None:
    assert sabotage.is_found(run_seed), f"{sabotage.hole}: not found with seeds {sabotage.found_with}"
