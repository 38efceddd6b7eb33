"""The first words of docstrings, and words that no text of the product has (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests import ROOT
from tests.project.product import modules

OPENING = re.compile(r"(Who|Whoever|What|Which|Whose|How|Where|Why|Raises)\b")
"""A docstring that opens so is a clause and no statement, or does not say what the call does."""
NAMELESS = re.compile(
    r"(?<!\{)\b(who|whom|whoever|(any|every|no|some)body|(any|every|some)one|no one|anew|thrice)\b"
    r"|\bleave (\w+ ){1,5}away\b",
    re.IGNORECASE,
)
"""The actor has a name, and a word is a plain one: in docstrings, comments, log lines, errors, help, pages.

A name in braces is a variable's.
"""


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of every string that stands alone, those below attributes and constants too."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.lineno, text


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of every string and comment."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            yield token.start[0], token.string


def faults(source: str) -> list[tuple[int, str]]:
    found = [(line, text) for line, text in docstrings(source) if OPENING.match(text)]
    if NAMELESS.search(source):  # Few files have such a word, and only these are taken apart.
        found += [(line, text) for line, text in texts(source) if NAMELESS.search(text)]
    return found


def test_docstrings_begin_with_a_statement_and_name_the_actor() -> None:
    paths = modules()
    assert len(paths) > 300
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in paths
        for line, text in faults(path.read_text())
    ]
    assert found == []


def documents() -> list[Path]:
    """Return what a user or a developer reads beside the code: pages, alerts and what the scripts say."""
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return [
        *pages,
        *(path for path in sorted((ROOT / "docs").glob("**/*")) if path.suffix in (".md", ".yaml")),
    ]


def lines_without_actor(text: str) -> list[int]:
    return [number for number, line in enumerate(text.splitlines(), 1) if NAMELESS.search(line)]


def test_documents_name_the_actor() -> None:
    pages = documents()
    assert len(pages) > 30
    found = [
        f"{page.relative_to(ROOT)}:{number}"
        for page in pages
        for number in lines_without_actor(page.read_text())
    ]
    assert found == []


def test_a_line_without_an_actor_is_found() -> None:
    assert lines_without_actor("The leader votes.\nNobody votes.\n## Who leads\n") == [2, 3]
    assert lines_without_actor("Leave one of them away.\nThe node leaves; go away.\n") == [1]
    assert lines_without_actor("`test_anyone_who_asks`, whose log it is\nA log is made anew.\n") == [2]


def test_a_clause_and_an_actor_without_a_name_are_found() -> None:
    assert faults('"""What a node keeps."""\n') == [(1, "What a node keeps.")]
    assert faults('def f():\n    """Raises OSError."""\n') == [(2, "Raises OSError.")]
    assert faults('def f():\n    """Which of them it is."""\n') == [(2, "Which of them it is.")]
    assert faults('LIMIT = 1\n"""Rows that nobody reads."""\n') == [(2, '"""Rows that nobody reads."""')]
    assert faults('log.info("begin %s anew", name)  # Fine.\n') == [(1, '"begin %s anew"')]
    assert faults("NOBODY = 0  # Not that of a node\n# but nobody's\n") == [(2, "# but nobody's")]
    assert faults('"""Whatever is left: the state of a node."""\nx = lambda: 1\n') == []
