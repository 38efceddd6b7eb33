"""What import-linter does not say: libraries of `statemachine`, circles, tests that import one another.

The contract in pyproject.toml forbids libraries one by one; here every library that is not allowed fails. The
contracts hold the order of packages; here the modules of one package may form no circle either.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator

from tests import ROOT

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


# Circles.

PRODUCT = ("cluster", "node", "snapshot", "statemachine")


def product() -> dict[str, str]:
    """The source of every product module, by its dotted name."""
    found = {}
    for package in PRODUCT:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(("strandline", *parts)).removesuffix(".__init__")] = path.read_text()
    return found


def import_graph(sources: dict[str, str]) -> dict[str, set[str]]:
    """Which modules each one names, those for the type checker only included."""
    graph: dict[str, set[str]] = {}
    for module, source in sources.items():
        named = graph[module] = set()
        for statement in ast.walk(ast.parse(source)):
            if isinstance(statement, ast.Import):
                named.update(alias.name for alias in statement.names)
            elif isinstance(statement, ast.ImportFrom) and statement.module is not None:
                inner = {f"{statement.module}.{alias.name}" for alias in statement.names}
                named.update(one if one in sources else statement.module for one in inner)
        named &= sources.keys() - {module}
    return graph


def in_circles(graph: dict[str, set[str]]) -> set[str]:
    """The modules left once those that name none of the others are taken away, and those that none names."""
    left = {module: set(named) for module, named in graph.items()}
    while True:
        named_by_some = set().union(*left.values()) if left else set()
        ends = {module for module, named in left.items() if not named or module not in named_by_some}
        if not ends:
            return set(left)
        left = {module: named - ends for module, named in left.items() if module not in ends}


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = import_graph(product())
    assert len(graph) > 300
    assert in_circles(graph) == set()


def test_a_circle_is_found_for_the_type_checker_too() -> None:
    checking = "if TYPE_CHECKING:\n    from strandline.node.a import A\n"
    sources = {"strandline.node.a": "from strandline.node import b\n", "strandline.node.b": checking}
    assert in_circles(import_graph(sources)) == {"strandline.node.a", "strandline.node.b"}
    assert in_circles(import_graph(sources | {"strandline.node.b": ""})) == set()


def test_no_test_imports_another_test_s_module() -> None:
    """What several share lies beside them, under the name of what it is (docs/testing.md)."""
    foreign = re.compile(r"^ *(?:from|import) (tests\.(?:\w+\.)*test_\w+)", re.MULTILINE)
    found = [
        f"{path.relative_to(ROOT)}: {module}"
        for path in sorted((ROOT / "tests").glob("**/*.py"))
        for module in foreign.findall(path.read_text())
        if module != ".".join(path.relative_to(ROOT).with_suffix("").parts)
    ]
    assert found == []
