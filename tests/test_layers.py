"""What import-linter cannot say: `statemachine` imports nothing but itself, msgpack and the standard library.

The contract in pyproject.toml forbids names one by one; here every library that nobody allowed fails.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
OWN = "strandline.statemachine"
LIBRARIES = frozenset({"msgpack"})


def imported(source: str) -> Iterator[str]:
    """Yield the dotted name of every import in a module, wherever in the module it stands."""
    for statement in ast.walk(ast.parse(source)):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.level == 0:
            assert statement.module is not None
            yield statement.module


def foreign(source: str) -> set[str]:
    """The imports that are neither the package's own, nor allowed, nor the standard library's."""
    names = {name for name in imported(source) if not f"{name}.".startswith(f"{OWN}.")}
    return {name.partition(".")[0] for name in names} - LIBRARIES - sys.stdlib_module_names


def test_statemachine_imports_only_the_standard_library_and_msgpack() -> None:
    modules = sorted((ROOT / "statemachine").rglob("*.py"))
    assert modules
    assert {path.name: names for path in modules if (names := foreign(path.read_text()))} == {}


def test_a_foreign_import_is_found_even_inside_a_function() -> None:
    assert foreign("import msgpack, heapq\ndef f():\n    from numpy import array\n") == {"numpy"}
    assert foreign("from strandline.node.raft.host import RaftHost\n") == {"strandline"}
    assert foreign("from strandline.statemachine.machine import StateMachine\n") == set()
