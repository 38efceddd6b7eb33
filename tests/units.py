"""What tests are shared out by, and how long each took."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

SECONDS: Final = Path(__file__).with_name("seconds.json")
SET_UP: Final = "set-up "
"""Before the name of a fixture, in pytest's report of the test that was the first to need it."""
_FOLDERS: Final = ("tests/clients/", "tests/ecosystem/", "tests/spark/")
"""Folders whose fixtures are shared by several files."""
_ALONE: Final = ("tests/spark/test_spark_cluster.py",)
"""Files in such a folder that share nothing with it: units of their own."""
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
    if path in _ALONE:
        return path
    return next((folder for folder in _FOLDERS if path.startswith(folder)), path)


def recorded_seconds() -> dict[str, float]:
    """What was measured in a whole run on two cores.

    By path, what a file of tests took without the set-ups that it shares; by `folder/conftest.py::name`,
    such a set-up; by pytest's id, a test of a file that is shared out test by test, counted in its file too.
    Set-ups and tests of less than a second are left out.
    """
    recorded: dict[str, float] = json.loads(SECONDS.read_text())
    return recorded
