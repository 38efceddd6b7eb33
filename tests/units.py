"""What tests are shared out by, and how long each took."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

SECONDS: Final = Path(__file__).with_name("seconds.json")
_FOLDERS: Final = ("tests/clients/", "tests/ecosystem/", "tests/spark/")
"""Folders whose fixtures are shared by several files."""
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
    return next((folder for folder in _FOLDERS if path.startswith(folder)), path)


def recorded_seconds() -> dict[str, float]:
    """What each file of tests took in a whole run on two cores; files of less than a second are left out."""
    recorded: dict[str, float] = json.loads(SECONDS.read_text())
    return recorded
