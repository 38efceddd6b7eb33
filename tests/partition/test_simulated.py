"""Producers against three simulated nodes with faults; and that this, and the model, find what is broken."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from strandline.node.partition.fence import Fence
from tests.partition import sabotages
from tests.partition.scenario import simulate
from tests.partition.test_fence_model import FenceRule

pytestmark = pytest.mark.usefixtures("no_logs")

SEEDS = range(1, 9)
FOUND_WITHIN = range(1, 9)
RARE = {"unknown-is-refusal": (24, 28)}
"""Seeds known to find what few do."""


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_acknowledged_is_lost_or_doubled(seed: int) -> None:
    assert simulate(seed).problems == []


def test_runs_meet_what_they_are_for() -> None:
    runs = [simulate(seed) for seed in range(11, 14)]
    for run in runs:
        assert run.problems == []
        assert (run.acked > 250, run.terms > 4, run.slides > 20) == (True, True, True)
    assert sum(run.rejections for run in runs) > 20
    assert sum(run.restaged for run in runs) > 20


def test_a_seed_gives_the_same_run_again() -> None:
    assert simulate(3) == simulate(3)


@pytest.mark.parametrize("name", sorted(sabotages.CLUSTER))
def test_the_cluster_finds(name: str) -> None:
    with sabotages.CLUSTER[name]:
        assert any(simulate(seed).problems for seed in RARE.get(name, FOUND_WITHIN))


def model_passes(tested: type[Fence]) -> bool:
    rule = type("Sabotaged", (FenceRule,), {"fence_class": tested})
    quick = settings(
        max_examples=300, stateful_step_count=20, deadline=None, database=None, derandomize=True,
        phases=[Phase.generate], print_blob=False,
    )  # fmt: skip
    try:
        run_state_machine_as_test(rule, settings=quick)
    except (Exception, ExceptionGroup):
        return False
    return True


@pytest.mark.parametrize("name", sorted(sabotages.FENCE))
def test_the_model_finds(name: str) -> None:
    with sabotages.FENCE[name]:
        assert not model_passes(Fence)


@pytest.mark.parametrize("name", sorted(sabotages.FENCE_CLASSES))
def test_the_model_finds_a_fence_that(name: str) -> None:
    assert not model_passes(sabotages.FENCE_CLASSES[name])
