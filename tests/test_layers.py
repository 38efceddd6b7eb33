"""What import-linter cannot say: `statemachine` imports nothing but itself, msgpack and the standard library.

The contract in pyproject.toml forbids names one by one; here every library that nobody allowed fails.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIBRARIES = frozenset({"msgpack", "statemachine"})


def imported(source: str) -> Iterator[str]:
    """Yield the top-level package of every import in a module, wherever in the module it stands."""
    for statement in ast.walk(ast.parse(source)):
        if isinstance(statement, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.level == 0:
            assert statement.module is not None
            yield statement.module.partition(".")[0]


def foreign(source: str) -> set[str]:
    return set(imported(source)) - LIBRARIES - sys.stdlib_module_names


def test_statemachine_imports_only_the_standard_library_and_msgpack() -> None:
    modules = sorted((ROOT / "statemachine").rglob("*.py"))
    assert modules
    assert {path.name: names for path in modules if (names := foreign(path.read_text()))} == {}


def test_a_foreign_import_is_found_even_inside_a_function() -> None:
    assert foreign("import msgpack, heapq\ndef f():\n    from numpy import array\n") == {"numpy"}
