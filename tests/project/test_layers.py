"""What import-linter does not say: libraries of `statemachine`, circles, names of modules in strings.

The contract in pyproject.toml forbids libraries one by one; here every library that is not allowed fails. The
contracts hold the order of packages; here the modules of one package may form no circle either, nor may the
folders and modules that lie beside each other in one folder. import-linter sees import statements alone; here
nothing else may import a module, and a module that a string names is one that a process is started with.
Nor do tests import one another.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterator
from functools import cache
from itertools import takewhile

from tests import ROOT
from tests.project.product import modules

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


def product() -> dict[str, str]:
    """The source of every product module, by its dotted name."""
    found = {}
    for path in modules():
        parts = path.relative_to(ROOT).with_suffix("").parts
        above = () if parts[0] in ("pyspark_strandline", "strandline") else ("strandline",)
        found[".".join((*above, *parts)).removesuffix(".__init__")] = path.read_text()
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


@cache
def product_graph() -> dict[str, set[str]]:
    """Which modules of the product each one names."""
    return import_graph(product())


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
    graph = product_graph()
    assert len(graph) > 300
    assert in_circles(graph) == set()


def test_a_circle_is_found_for_the_type_checker_too() -> None:
    checking = "if TYPE_CHECKING:\n    from strandline.node.a import A\n"
    sources = {"strandline.node.a": "from strandline.node import b\n", "strandline.node.b": checking}
    assert in_circles(import_graph(sources)) == {"strandline.node.a", "strandline.node.b"}
    assert in_circles(import_graph(sources | {"strandline.node.b": ""})) == set()


TRANSPARENT = frozenset({"strandline.node.kafka"})
"""Folders whose parts are layers of their own (CONTRIBUTING.md): they count as parts of the folder above."""


def place(module: str) -> tuple[str, ...]:
    """The folders that a module lies in, and its own name; what is transparent is one step with its part."""
    steps: list[str] = []
    for name in module.split("."):
        if steps and ".".join(steps) in TRANSPARENT:
            steps[-1] += f".{name}"
        else:
            steps.append(name)
    return tuple(steps)


def ties(graph: dict[str, set[str]]) -> dict[tuple[str, ...], dict[str, set[str]]]:
    """By folder, which of its folders and modules name which others of it, by anything below them."""
    found: dict[tuple[str, ...], dict[str, set[str]]] = {}
    for module, named in graph.items():
        for other in named:
            ours, theirs = place(module), place(other)
            common = sum(
                1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False))
            )
            if common < min(len(ours), len(theirs)):  # Else one is the package that the other lies in.
                beside = found.setdefault(ours[:common], {})
                beside.setdefault(ours[common], set()).add(theirs[common])
                beside.setdefault(theirs[common], set())
    return found


def test_folders_and_modules_beside_each_other_form_no_circle() -> None:
    beside = ties(product_graph())
    assert len(beside) > 20
    assert {
        ".".join(folder): circle for folder, graph in beside.items() if (circle := in_circles(graph))
    } == {}


def test_folders_that_need_each_other_are_found_though_no_modules_do() -> None:
    sources = {
        "strandline.a.b.one": "from strandline.a.c.one import One\n",
        "strandline.a.b.two": "",
        "strandline.a.c.one": "",
        "strandline.a.c.two": "def f():\n    from strandline.a.b import two\n",
    }
    graph = import_graph(sources)
    assert in_circles(graph) == set()
    assert {folder: in_circles(beside) for folder, beside in ties(graph).items()} == {
        ("strandline", "a"): {"b", "c"}
    }


# Names of modules in strings.

PROGRAMS = {
    "strandline.cluster.local": "strandline.node.process",
    "strandline.node.compaction.worker_compactor": "strandline.node.compaction.worker",
    "strandline.node.level_one.worker_builder": "strandline.node.level_one.worker",
    "strandline.node.views.view_process": "strandline.cluster.view_worker.process",
}
"""The processes that the product starts, by the module that does. The last one alone is of a higher layer: a
node starts it, and imports none of it."""
IMPORTERS = frozenset(
    {"__import__", "find_module", "import_module", "resolve_name", "run_module", "run_path"}
)

IMPORTING = re.compile(rf"{'|'.join(sorted(IMPORTERS))}|sys\.modules|^ *from +\.", re.MULTILINE)


def named_in_strings(source: str, known: Collection[str]) -> set[str]:
    """The modules of the product that are named by strings of their own."""
    if '"strandline.' not in source:  # Few have one, and only these are taken apart.
        return set()
    strings = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return {text for text in strings if isinstance(text, str) and text in known}


def importers(source: str) -> set[str]:
    """What a source imports with other than by an import statement, and modules that it takes without one."""
    found: set[str] = set()
    if not IMPORTING.search(source):
        return found
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name) if name in IMPORTERS:
                found.add(name)
            case ast.Attribute(value=ast.Name(id="sys"), attr="modules"):
                found.add("sys.modules")
            case ast.ImportFrom(level=level) if level:
                found.add("a relative import")
    return found


def test_modules_are_imported_by_import_statements_alone() -> None:
    sources = product()
    found = {module: names for module, source in sources.items() if (names := importers(source))}
    assert found == {
        "strandline.node.process": {"sys.modules"},  # it keeps two libraries from being imported
        "strandline.snapshot.spark.fork_server": {"run_module"},  # it is `python -m` for what Spark starts
        "strandline.snapshot.spark.python_worker": {"import_module"},  # the module that Spark names
    }


def test_the_modules_that_strings_name_are_processes() -> None:
    sources = product()
    packages = {module.rpartition(".")[0] for module in sources}
    found = {
        module: names
        for module, source in sources.items()
        if (names := named_in_strings(source, sources.keys() - packages))
    }
    assert found == {module: {name} for module, name in PROGRAMS.items()}


def test_an_import_without_a_statement_is_found() -> None:
    assert importers('import importlib\nX = importlib.import_module("strandline.node.rpc")\n')
    assert importers("from importlib import import_module\n") == {"import_module"}
    assert importers('X = __import__("strandline.node.rpc")\n') == {"__import__"}
    assert importers('import sys\nX = sys.modules["strandline.node.rpc"]\n') == {"sys.modules"}
    assert importers("from ..broker import parts\n") == {"a relative import"}
    assert importers("from strandline.node import rpc\n") == set()
    assert named_in_strings('X = "strandline.node.rpc"\n', {"strandline.node.rpc"}) == {"strandline.node.rpc"}


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
