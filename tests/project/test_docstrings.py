"""The first words of docstrings, as CONTRIBUTING.md asks for them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests import ROOT

PACKAGES = ("cluster", "node", "snapshot", "statemachine", "strandline")
OPENING = re.compile(r"(Who|Whoever|What|Which|Whose|How|Where|Why)\b")
"""A docstring that opens so is a clause and no statement."""
NAMELESS = re.compile(r"\b(anew|nobody|whoever|somebody)\b", re.IGNORECASE)
"""The actor has a name."""


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of every string that stands alone, those below attributes and constants too."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.lineno, text


def faults(source: str) -> list[tuple[int, str]]:
    return [(line, text) for line, text in docstrings(source) if OPENING.match(text) or NAMELESS.search(text)]


def test_docstrings_begin_with_a_statement_and_name_the_actor() -> None:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).glob("**/*.py"))]
    assert len(paths) > 300
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in paths
        for line, text in faults(path.read_text())
    ]
    assert found == []


def test_a_clause_and_an_actor_without_a_name_are_found() -> None:
    assert faults('"""What a node keeps."""\n') == [(1, "What a node keeps.")]
    assert faults('def f():\n    """Whoever asks gets it."""\n') == [(2, "Whoever asks gets it.")]
    assert faults('LIMIT = 1\n"""Rows that nobody reads."""\n') == [(2, "Rows that nobody reads.")]
    assert faults('"""Whatever is left: the state of a node."""\nx = lambda: 1\n') == []
