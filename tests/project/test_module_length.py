"""A module of the product fits on a few screens (CONTRIBUTING.md)."""

from __future__ import annotations

from tests import ROOT
from tests.project.product import modules

LINES = 350
TABLES = frozenset({
    "node/admin/metric_names.py",
    "node/admin/schemas.py",
    "node/config/node_config.py",
    "statemachine/controller/controller_commands.py",
    "statemachine/partition/partition_commands.py",
})  # fmt: skip
"""Modules that are looked up in and not read: rows of metrics, fields of the API, settings, commands."""


def lengths() -> dict[str, int]:
    """Return the number of lines of each module."""
    return {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in modules()}


def too_long(found: dict[str, int]) -> dict[str, int]:
    """Return the modules above the bound, with their lines."""
    return {name: lines for name, lines in found.items() if name not in TABLES and lines > LINES}


def test_no_module_is_too_long_to_read() -> None:
    found = lengths()
    assert len(found) > 300
    assert too_long(found) == {}


def test_no_table_is_an_exception_without_need() -> None:
    found = lengths()
    assert {name for name in TABLES if found.get(name, 0) <= LINES} == set()


def test_a_long_module_is_found() -> None:
    assert too_long({"node/a.py": 350, "node/b.py": 351, "node/admin/schemas.py": 999}) == {"node/b.py": 351}
