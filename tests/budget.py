"""How many tests `scripts/test --changed` has time for: three minutes on two cores, all other steps included.

A whole run of three workers spends 2.8 recorded seconds in one of the clock, so the seconds of the budget
take about 90, and 163 if what one worker alone may run starts last. The rest is for the choice and the start
of the workers. The steps beside them, 25 seconds of processor, or 55 without mypy's cache, use what the tests
leave.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from tests import ROOT
from tests.units import is_shared_out, unit_of

BUDGET_SECONDS: Final = 240.0
"""Of tests, one after the other, with what they share made once."""
WORKER_SECONDS: Final = 120.0
"""Of a unit, which is one worker's: no other can take a part of it."""
CASES_SECONDS: Final = 40.0
"""Of a file whose tests are shared out one by one: a part of them tells nearly as much as all."""
_UNKNOWN_SECONDS: Final = 5.0
"""Of a file that is not recorded, because it is new: most take less, and some start a cluster."""


class Budget:
    """What is left for more tests; `known` has the seconds of files, set-ups and single tests, as recorded.

    A set-up is a fixture of a conftest.py for the whole session or folder. The first file that needs it pays
    for it, and those that come later find it made.
    """

    def __init__(self, known: Mapping[str, float]) -> None:
        self._known = known
        self._left = BUDGET_SECONDS
        self._of_units: defaultdict[str, float] = defaultdict(float)
        self._made: set[str] = set()
        self._folders = {one.partition("conftest.py::")[0] for one in known if "conftest.py::" in one}

    def seconds(self, path: str) -> float:
        """What a file takes when nothing that it shares is made yet."""
        return self._own(path) + self._sum(self._set_ups(path))

    def take(self, path: str, *, whatever_it_takes: bool = False) -> tuple[str, ...] | None:
        """Take a file; gives the tests of it that stay out for want of time, or None when all of it does."""
        set_ups, unit = self._set_ups(path), unit_of(path)
        takes = self._own(path) + self._sum(set_ups - self._made)
        without: list[str] = []
        if not whatever_it_takes:
            most = CASES_SECONDS if is_shared_out(path) else WORKER_SECONDS - self._of_units[unit]
            room = min(self._left, most)
            for test in sorted(self._tests(path), key=lambda one: (-self._known[one], one)):
                if takes <= room:
                    break
                without.append(test)
                takes -= self._known[test]
            if takes > room:
                return None
        self._left -= takes
        self._of_units[unit] += takes
        self._made |= set_ups
        return tuple(without)

    def _own(self, path: str) -> float:
        return self._known.get(path, _UNKNOWN_SECONDS)

    def _sum(self, names: Iterable[str]) -> float:
        return sum(self._known[name] for name in names)

    def _tests(self, path: str) -> list[str]:
        return [name for name in self._known if name.startswith(f"{path}::")]

    def _set_ups(self, path: str) -> set[str]:
        """Those recorded that a file asks for in the arguments of a function, directly or through others."""
        needed: set[str] = set()
        for folder in self._folders:
            if not path.startswith(folder):
                continue
            asked = set().union(*_arguments(ROOT / path).values())
            shared = _arguments(ROOT / folder / "conftest.py")
            while more := {name for one in asked for name in shared.get(one, ())} - asked:
                asked |= more
            needed |= {f"{folder}conftest.py::{one}" for one in asked} & self._known.keys()
        return needed


def _arguments(path: Path) -> dict[str, set[str]]:
    """The names of the arguments of each function in a file."""
    functions = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return {function.name: {one.arg for one in function.args.args} for function in functions}
