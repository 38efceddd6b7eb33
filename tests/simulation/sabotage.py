"""A rule that is taken out on purpose: every simulation must find each of its own.

Nothing here is ever imported by the product; docs/simulation.md tells what each takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from tests.simulation.all_of import all_of
from tests.simulation.report import Report

Broken = AbstractContextManager[Any]


@dataclass(frozen=True, slots=True)
class Sabotage:
    """One hole, how it is opened (anew each time), and seeds that are known to find it, the lowest first."""

    name: str
    hole: str
    open: Callable[[], tuple[Broken, ...]]
    found_with: tuple[int, ...] = ()

    def opened(self) -> AbstractContextManager[None]:
        """To run with the hole open."""
        return all_of(self.open())

    def is_found(self, run_seed: Callable[[int], Report]) -> bool:
        """Whether one of those seeds finds it."""
        for seed in self.found_with:
            with self.opened():
                if run_seed(seed).findings:
                    return True
        return False


def by_name(holes: Iterable[Sabotage], found_with: Mapping[str, tuple[int, ...]]) -> dict[str, Sabotage]:
    """Each hole with the seeds that find it. Raises KeyError for one without any."""
    return {hole.name: replace(hole, found_with=found_with[hole.name]) for hole in holes}
