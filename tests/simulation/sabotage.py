"""A rule that is taken out on purpose: every simulation must find each of its own.

Nothing here is ever imported by the product; docs/simulation.md tells what each takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from tests.simulation.all_of import all_of
from tests.simulation.report import Finding, Report

Broken = AbstractContextManager[Any]


@dataclass(frozen=True, slots=True)
class Sabotage:
    """One hole, how it is opened for each run, and seeds that are known to find it, the lowest first."""

    name: str
    hole: str
    open: Callable[[], tuple[Broken, ...]]
    found_with: tuple[int, ...] = ()
    found_by: tuple[str, ...] = ()
    """Checks that the hole violates. A finding of another check is not its."""

    def opened(self) -> AbstractContextManager[None]:
        """To run with the hole open."""
        return all_of(self.open())

    def is_found(self, run_seed: Callable[[int], Report]) -> bool:
        """Whether one of those seeds finds it, by a check that it violates."""
        for seed in self.found_with:
            with self.opened():
                if self.findings(run_seed(seed)):
                    return True
        return False

    def findings(self, report: Report) -> list[Finding]:
        """The findings of a run with the hole open that are this hole's."""
        return [finding for finding in report.findings if finding.check in self.found_by]


def by_name(holes: Iterable[Sabotage], found_with: Mapping[str, tuple[int, ...]]) -> dict[str, Sabotage]:
    """Each hole with the seeds that find it. Raises KeyError for one without any."""
    return {hole.name: replace(hole, found_with=found_with[hole.name]) for hole in holes}


def expecting(holes: Iterable[Sabotage], found_by: Mapping[str, tuple[str, ...]]) -> dict[str, Sabotage]:
    """Each hole with the checks that it violates; raises KeyError for one without any."""
    return {hole.name: replace(hole, found_by=found_by[hole.name]) for hole in holes}
