"""Compaction takes a fortieth of a processor, and up to half of one the longer it has been behind."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import patch

import pytest

from strandline.node.compaction.compaction_upkeep import CompactionUpkeep
from strandline.node.compaction.compactor import CompactorMeasures
from strandline.node.compaction.pace import DOUBLED_AFTER_SECONDS, LEAST_SHARE, MAX_REST_SECONDS, Pace
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


def test_a_second_of_processor_takes_forty_in_all() -> None:
    work = Work()
    assert work.step(0.1, processor=0.05) == pytest.approx(1.9, rel=0.01)
    assert work.pace.job_rests == pytest.approx(39, rel=0.01)
    assert work.step(0.1, processor=0.0) == pytest.approx(0.1), "each second is rested for once"


def test_what_a_job_rested_within_itself_counts() -> None:
    work = Work()
    assert work.step(1.9, processor=0.05) == pytest.approx(0.0, abs=0.1)
    assert work.step(2.5, processor=0.05) == 0.0


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


def test_its_share_doubles_while_it_is_behind_up_to_half_of_a_processor() -> None:
    work = Work()
    for twenties in range(8):
        work.now = twenties * DOUBLED_AFTER_SECONDS
        rest = work.step(0.002, processor=0.002)
        assert 0.002 + rest == pytest.approx(0.002 / min(0.5, LEAST_SHARE * 2**twenties), rel=0.01)
        assert work.pace.job_rests == pytest.approx(rest / 0.002, rel=0.01)
    assert work.pace.job_rests == 1.0
    work.now = 1e6
    assert work.step(0.1, processor=0.1) == pytest.approx(0.1)
    work.pace.idle()
    assert work.pace.job_rests == pytest.approx(39)
    assert work.step(0.002, processor=0.002) == pytest.approx(0.078, rel=0.01), "no longer behind"


def test_what_waits_for_the_store_neither_ends_its_share_nor_lets_it_grow() -> None:
    work = Work()
    work.step(0.002, processor=0.002)
    work.now = 2 * DOUBLED_AFTER_SECONDS
    work.step(0.002, processor=0.002)
    share = work.pace.job_rests
    assert share == pytest.approx(9, rel=0.01)
    work.pace.stalled()
    assert work.pace.job_rests == share
    work.now += 3_600
    work.step(0.002, processor=0.002)
    assert work.pace.job_rests == pytest.approx(share, rel=0.01)
    work.now += DOUBLED_AFTER_SECONDS
    work.step(0.002, processor=0.002)
    assert work.pace.job_rests == pytest.approx(4, rel=0.01), "it has something to do again"


def test_the_upkeep_rests_by_its_pace() -> None:
    """Six steps of a twentieth of a second of processor rest; an idle one waits for the usual look."""
    with compaction_node() as node:
        world, steps = node.world, list[float]()

        async def step(upkeep: CompactionUpkeep) -> bool:
            steps.append(world.now)
            worked = len(steps) % 7 != 0
            node.compactor.measures.cpu_seconds["clean"] += 0.05 * worked
            return worked

        with patch.object(CompactionUpkeep, "step", step):
            node.upkeep.start()
            world.run(world.now + 90.0)
        gaps = [later - one for one, later in pairwise(steps)]
        # The share grows by a third in the ten seconds of six steps.
        first = [0.05 / (LEAST_SHARE * 2 ** (sum(gaps[:at]) / DOUBLED_AFTER_SECONDS)) for at in range(6)]
        assert gaps[:6] == pytest.approx(first, rel=0.01)
        assert 0.5 < gaps[6] <= 1.0
        assert gaps[7:13] == pytest.approx(first, rel=0.01)
        assert min(gaps) > 0.5, "it was never behind"
