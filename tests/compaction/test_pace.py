"""Compaction takes a twentieth of a processor, and half of one when it has been behind for a minute."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import patch

import pytest

from strandline.node.compaction.compaction_upkeep import CompactionUpkeep
from strandline.node.compaction.compactor import CompactorMeasures
from strandline.node.compaction.pace import IN_A_HURRY_SECONDS, MAX_REST_SECONDS, PROCESSOR_RESTS, Pace
from tests.compaction.upkeep_harness import compaction_node


class Work:
    """Steps, one after the other, and how long each is followed by a rest."""

    def __init__(self) -> None:
        self.measures = CompactorMeasures()
        self.pace = Pace(self.measures)
        self.now = 0.0

    def step(self, took: float, processor: float = 0.0) -> float:
        began, self.now = self.now, self.now + took
        self.measures.cpu_seconds["clean"] += processor
        rest = self.pace.rest(began, self.now)
        self.now += rest
        return rest


def test_a_second_of_processor_takes_twenty_in_all() -> None:
    work = Work()
    assert work.step(0.2, processor=0.1) == pytest.approx(1.8)
    assert work.step(0.2, processor=0.1) == pytest.approx(1.8), "each second is rested for once"


def test_what_a_job_rested_within_itself_counts() -> None:
    work = Work()
    assert work.step(1.9, processor=0.1) == pytest.approx(0.1)
    assert work.step(2.5, processor=0.1) == 0.0


def test_a_step_without_a_worker_is_followed_by_as_long_a_rest() -> None:
    assert Work().step(0.5) == 0.5


def test_no_rest_is_longer_than_its_bound() -> None:
    work = Work()
    assert work.step(2.0, processor=1.9) == MAX_REST_SECONDS


def test_what_was_worked_for_before_is_not_rested_for() -> None:
    """Such as by a process before the upkeep began again."""
    measures = CompactorMeasures()
    measures.cpu_seconds["clean"] = 1000.0
    assert Pace(measures).rest(0.0, 0.25) == 0.25


def test_behind_for_a_minute_it_rests_for_as_long_as_it_worked() -> None:
    work = Work()
    while work.now < IN_A_HURRY_SECONDS - 2:
        assert work.step(0.1, processor=0.1) > 0.8
        assert work.pace.job_rests == PROCESSOR_RESTS
    work.now = IN_A_HURRY_SECONDS
    assert work.step(0.1, processor=0.1) == pytest.approx(0.1)
    assert work.pace.job_rests == 0.0, "the step itself rests for as long"
    work.pace.idle()
    assert work.pace.job_rests == PROCESSOR_RESTS
    assert work.step(0.1, processor=0.1) > 0.8, "it is not behind any more"


def test_the_upkeep_rests_by_its_pace() -> None:
    """Six steps of a tenth of a second of processor take two each; an idle one waits for the usual look."""
    with compaction_node() as node:
        world, steps = node.world, list[float]()

        async def step(upkeep: CompactionUpkeep) -> bool:
            steps.append(world.now)
            worked = len(steps) % 7 != 0
            node.compactor.measures.cpu_seconds["clean"] += 0.1 * worked
            return worked

        with patch.object(CompactionUpkeep, "step", step):
            node.upkeep.start()
            world.run(world.now + IN_A_HURRY_SECONDS + 30.0)
        gaps = [round(later - one, 2) for one, later in pairwise(steps)]
        assert gaps[:6] == [2.0] * 6
        assert 0.5 < gaps[6] <= 1.0
        assert gaps[7:13] == [2.0] * 6
        assert min(gaps) > 0.5, "it was never behind"
