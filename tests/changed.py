"""Which tests a change touches: those whose modules import a changed module, directly or through others.

A module is also touched by a program it runs, one that it names in a string. The conftest.py of its folders
touches a test, and so does a page or another file that it names; every source file touches a test that looks
for them by a pattern, and so does every page. What decides how tests are run touches all of them.
"""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grimp

from tests import ROOT
from tests.budget import Budget
from tests.units import recorded_seconds

PACKAGES: Final = ("pyspark_strandline", "strandline", "tests")
EVERYTHING: Final = (
    ".ci/",
    "pyproject.toml",
    "scripts/",
    "tests/budget.py",
    "tests/changed.py",
    "tests/checks.py",
    "tests/conftest.py",
    "tests/units.py",
    "typings/",
    "uv.lock",
)
"""Files and folders that have to do with every test."""
SIMULATOR: Final = "tests/simulation/run.py"
_IS_TEST: Final = re.compile(r"(^|/)test_\w+\.py$")
_PROGRAM: Final = re.compile(r'"((?:strandline|tests)(?:\.\w+)+)"')
_LOOKS_AT_SOURCES: Final = re.compile(r'glob\("[^"]*\.py"\)')
_LOOKS_AT_PAGES: Final = re.compile(r'"docs"\)\.r?glob\(')


@dataclass(frozen=True, slots=True)
class Choice:
    """The files of tests to run, in the order of the shortest chain of imports to what changed."""

    why: tuple[str, ...]
    """Lines that tell what was compared with what, and what came of it."""
    tests: tuple[str, ...] | None = None
    """Paths below the project's folder, or None for everything."""
    simulations: bool = True
    """Whether the simulators run what changed."""
    left_out: tuple[str, ...] = ()
    """Touched as well, and not run for want of time: each with what it takes."""
    deselected: tuple[str, ...] = ()
    """Tests in the chosen files that are not run, by the ids that pytest has for them."""


WHOLE: Final = Choice(())


def changed_files() -> tuple[list[str], str]:
    """The paths that differ from a commit, those that git does not know included; and the commit's name.

    It is the one where main was left; where main has all that is here, or there is no main, it is the one
    before the last.
    """
    head, fork = _git("rev-parse", "HEAD").strip(), _git("merge-base", "HEAD", "main", check=False).strip()
    if fork in ("", head):
        base, said = "HEAD~1", "the commit before the last"
    else:
        base, said = fork, f"main at {fork[:10]}"
    named = _git("diff", "--name-only", "--no-renames", "-z", base)
    new = _git("ls-files", "--others", "--exclude-standard", "-z")
    return sorted({name for name in (named + new).split("\0") if name}), said


def choose(paths: Sequence[str], base: str, seconds: Mapping[str, float] | None = None) -> Choice:
    """Choose the tests that `paths` touch, the nearest first, until the budget is spent.

    Tests that were changed themselves are chosen whatever they take. `seconds`: what each file took; what is
    recorded, if not given.
    """
    compared = f"compared with {base}: {len(paths)} files changed"
    whole = [path for path in paths if path.startswith(EVERYTHING)]
    if whole:
        return Choice((f"{compared}, and {whole[0]} has to do with every test",))
    touched = _graph().distances(paths)
    distances = {path: distance for path, distance in touched.items() if _IS_TEST.search(path)}
    budget = Budget(recorded_seconds() if seconds is None else seconds)
    takes = {path: budget.seconds(path) for path in distances}
    chosen: list[str] = []
    left_out: list[str] = []
    deselected: list[str] = []
    for path in sorted(distances, key=lambda one: (distances[one], takes[one], one)):
        without = budget.take(path, whatever_it_takes=distances[path] == 0)
        if without is None:
            left_out.append(f"{path}, {takes[path]:.1f} s")
            continue
        chosen.append(path)
        if without:
            left_out.append(f"{path}, its {len(without)} longest tests of {takes[path]:.1f} s")
            deselected += without
    why = [compared, f"{len(distances)} files of tests are touched by imports, by programs or by name"]
    by_distance = [distances[path] for path in chosen]
    for distance in sorted(set(by_distance)):
        what = f"{distance} imports away" if distance else "changed themselves"
        why.append(f"{by_distance.count(distance)} files {what}")
    if left_out:
        why.append(f"left out for want of time, which only the whole run tries: {len(left_out)} files")
    return Choice(tuple(why), tuple(chosen), SIMULATOR in touched, tuple(left_out), tuple(deselected))


class _Graph:
    """Modules of the product and its tests, and which touch which."""

    def __init__(self) -> None:
        self._imports = grimp.build_graph(*PACKAGES, cache_dir=None)
        self._texts = {module: _source(module).read_text() for module in self._imports.modules}
        modules = self._imports.modules
        for importer, text in self._texts.items():
            for program in set(_PROGRAM.findall(text)) & modules - {importer}:
                self._imports.add_import(importer=importer, imported=program)
        for module in modules:
            for folder in _parents(module):
                if (shared := f"{folder}.conftest") in modules and shared != module:
                    self._imports.add_import(importer=module, imported=shared)

    def distances(self, paths: Iterable[str]) -> dict[str, int]:
        """Source files that are touched, each with the number of imports between it and what changed."""
        looking = {module for module, text in self._texts.items() if _LOOKS_AT_SOURCES.search(text)}
        found: dict[str, int] = {}
        for path in paths:
            if (module := self._module(path)) is not None:
                found[module] = 0
                touched = looking
            else:
                touched = self._readers(path)
            for reader in touched:
                found.setdefault(reader, 1)
        near = sorted(found, key=found.__getitem__)
        for module in near:  # breadth first: it grows while it is walked
            for importer in sorted(self._imports.find_modules_that_directly_import(module)):
                if importer not in found:
                    found[importer] = found[module] + 1
                    near.append(importer)
        return {_source(module).relative_to(ROOT).as_posix(): distance for module, distance in found.items()}

    def _module(self, path: str) -> str | None:
        """Of a source file; None of another file, and of one that is gone."""
        if not path.endswith(".py"):
            return None
        dotted = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        return next(
            (name for name in (dotted, f"strandline.{dotted}") if name in self._imports.modules), None
        )

    def _readers(self, path: str) -> set[str]:
        """Modules of tests that name a file, or its folder, in a string, or look at all pages."""
        names = {Path(path).name, Path(path).parent.name} - {"", "docs", "tests"}
        patterns = [re.compile(rf'["/]{re.escape(name)}"') for name in names]
        return {
            module
            for module, text in self._texts.items()
            if module.startswith("tests.")
            and (
                any(pattern.search(text) for pattern in patterns)
                or (path.startswith("docs/") and _LOOKS_AT_PAGES.search(text))
            )
        }


@functools.cache
def _graph() -> _Graph:
    return _Graph()


def _parents(module: str) -> list[str]:
    words = module.split(".")
    return [".".join(words[:length]) for length in range(1, len(words))]


def _source(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _git(*arguments: str, check: bool = True) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=check).stdout
