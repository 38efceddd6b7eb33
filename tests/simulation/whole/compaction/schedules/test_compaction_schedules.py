"""The dangerous schedules of compaction: each ends as specified, and finds each rule that is taken out."""

from __future__ import annotations

import pytest

from tests.simulation.whole.compaction.schedules import anything, away, ends, files, leaders, transactions
from tests.simulation.whole.compaction.schedules.play import Hole, Schedule, played

SCHEDULES = sorted(
    (
        *anything.SCHEDULES,
        *away.SCHEDULES,
        *ends.SCHEDULES,
        *files.SCHEDULES,
        *leaders.SCHEDULES,
        *transactions.SCHEDULES,
    ),
    key=lambda one: one.number,
)
HOLES = [(schedule, hole) for schedule in SCHEDULES for hole in schedule.holes]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=[one.name for one in SCHEDULES])
def test_it_ends_as_specified(schedule: Schedule) -> None:
    assert played(schedule) == []


@pytest.mark.parametrize(
    ("schedule", "hole"), HOLES, ids=[f"{one.number} {hole.name}" for one, hole in HOLES]
)
def test_it_finds(schedule: Schedule, hole: Hole) -> None:
    findings = played(schedule, hole)
    assert hole.is_in(findings), f"{hole.hole}: {[str(one) for one in findings]}"
