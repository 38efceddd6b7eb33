"""Plays a set piece, as specified or with rules of the product taken out, and tells what was found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.report import Finding
from tests.simulation.sabotage import Broken
from tests.simulation.whole.compaction.scenario import compacts_often
from tests.simulation.whole.compaction.schedules.nodes import Enough, Stuck
from tests.simulation.whole.compaction.schedules.plan import plan_of
from tests.simulation.whole.compaction.schedules.stage import Stage
from tests.simulation.whole.pace import paced
from tests.simulation.world import World


@dataclass(frozen=True, slots=True)
class Hole:
    """Rules that are taken out together, and what a schedule must find then."""

    name: str
    hole: str
    open: Callable[[], tuple[Broken, ...]]
    shows: Mapping[str, str]
    """The checks that must fail, each with words of what they say."""

    def is_in(self, findings: Sequence[Finding]) -> bool:
        """Whether all of that was found."""
        return all(
            any(one.check == check and words in one.text for one in findings)
            for check, words in self.shows.items()
        )


@dataclass(frozen=True, slots=True)
class Schedule:
    """One dangerous schedule, by its number in docs/simulation.md."""

    number: int
    steps: Callable[[Stage], None]
    holes: tuple[Hole, ...]
    plan: Mapping[str, Any] = field(default_factory=dict)
    """Limits of the nodes that it needs."""

    @property
    def name(self) -> str:
        return f"{self.number} {self.steps.__name__.replace('_', ' ')}"


def played(schedule: Schedule, hole: Hole | None = None) -> list[Finding]:
    """All that is found while a schedule is played; also a step that does not come to its end."""
    plan = plan_of(**schedule.plan)
    with ExitStack() as open_now:
        for one in () if hole is None else hole.open():
            open_now.enter_context(one)
        open_now.enter_context(compacts_often())
        open_now.enter_context(paced(plan))
        world = open_now.enter_context(World(schedule.number))
        stage = Stage(world, plan)
        if hole is not None:
            stage.enough = lambda: hole.is_in(_findings(stage))
        try:
            stage.begin()
            schedule.steps(stage)
            stage.quiet()
        except Enough:
            pass
        except Stuck as error:
            stage.expect(False, "it goes on", str(error))
        return _findings(stage)


def _findings(stage: Stage) -> list[Finding]:
    exceptions = (Finding("exception", one.time, str(one)) for one in stage.world.failures)
    return [*stage.ledger.findings, *exceptions]
