"""What tests are shared out by, and how long each took."""

from __future__ import annotations

import ast
import json
from functools import cache
from pathlib import Path
from typing import Final

from tests import ROOT

SECONDS: Final = Path(__file__).with_name("seconds.json")
SET_UP: Final = "set-up "
"""Before the name of a fixture, in pytest's report of the test that was the first to need it."""
_FOLDERS: Final = ("tests/clients/", "tests/ecosystem/", "tests/spark/")
"""Folders whose fixtures several files share. A file that asks for none of them is a unit by itself."""
_SHARED_OUT: Final = (
    "test_carrying.py",
    "test_sabotages.py",
    "test_simulation_compaction.py",
    "test_simulation_transactions.py",
    "test_simulation_whole.py",
)
"""Files with many long tests that share nothing: any worker takes any of them."""


def is_shared_out(nodeid: str) -> bool:
    """Whether the tests of a test's file go one by one to the worker that has nothing else to do."""
    return nodeid.partition("::")[0].endswith(_SHARED_OUT)


def unit_of(nodeid: str) -> str:
    """The unit that a test is run with: its folder, if that shares a fixture, or its file, or itself."""
    if is_shared_out(nodeid):
        return nodeid
    path = nodeid.partition("::")[0]
    folder = next((folder for folder in _FOLDERS if path.startswith(folder)), None)
    return path if folder is None or not _shares(path, folder) else folder


@cache
def _shares(path: str, folder: str) -> bool:
    """Whether a file uses what its folder has one of: a fixture of its `conftest.py`, or the pass of audits,
    which looks for `storages`."""
    conftest = f"{folder}conftest.py"
    if path == conftest:  # what a set-up took
        return True
    own, theirs = _functions(path), _functions(conftest)
    asked = {one.arg for function in own.values() if _is_called(function) for one in function.args.args}
    return "storages" in own or bool(asked & (theirs.keys() - own.keys()))


def _functions(path: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    if not ROOT.joinpath(path).exists():
        return {}  # it was recorded, and is gone
    parsed = ast.walk(ast.parse(ROOT.joinpath(path).read_text()))
    return {one.name: one for one in parsed if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}


def _is_called(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether pytest calls it: a test, or a fixture."""
    return function.name.startswith("test_") or any(
        "fixture" in ast.unparse(one) for one in function.decorator_list
    )


def recorded_seconds() -> dict[str, float]:
    """What was measured in a whole run on two cores.

    By path, what a file of tests took without the set-ups that it shares; by `folder/conftest.py::name`,
    such a set-up; by pytest's id, a test of a file that is shared out test by test, counted in its file too.
    Set-ups and tests of less than a second are left out.
    """
    recorded: dict[str, float] = json.loads(SECONDS.read_text())
    return recorded
