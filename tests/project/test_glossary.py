"""docs/glossary.md against the tree: the file of each term exists and defines the name it is given."""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

import pytest

from tests import ROOT
from tests.project.product import modules

GUESSES = {
    "epoch window": "epoch_window", "fence": "fence", "placeholder": "placeholder", "extent": "extent",
    "high watermark": "watermark", "last stable offset": "watermark", "aborted index": "aborted",
    "producer state": "producer_state", "generation": "generation", "M(p)": "collectable",
    "reconciler": "reconciler", "checkpoint": "checkpoint", "lease": "lease", "quiescence": "quiescence",
    "ACL (access control entry)": "acl", "authorizer": "authorizer", "credential": "credential",
    "departure": "departure", "hedging": "hedging", "inline batch": "extent", "listener": "listeners",
    "lost disk": "lost_disk", "move": "moves", "principal": "principal", "replacement": "replacement",
    "upload window": "upload_window",
}  # fmt: skip
"""Terms that a reader of the code needs first, and the word that the reader looks for in names of files."""
FEW = 4
"""Files with that word in their names, at most: they are looked at in one glance."""


class Row(NamedTuple):
    """One row of the glossary."""

    term: str
    meaning: str
    file: str
    name: str


def rows(text: str) -> list[Row]:
    """The rows of the glossary's table."""
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [Row(term, meaning, file.strip("`"), name.strip("`")) for term, meaning, file, name in cells]


def defined(source: str) -> set[str]:
    """The names of a module's classes, functions and methods."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {one.name for one in ast.walk(ast.parse(source)) if isinstance(one, kinds)}


GLOSSARY = rows((ROOT / "docs" / "glossary.md").read_text())


@pytest.mark.parametrize("row", GLOSSARY, ids=lambda row: row.term)
def test_a_terms_file_defines_it(row: Row) -> None:
    assert row.name in defined((ROOT / row.file).read_text())
    assert row.meaning.endswith("."), "a meaning is one sentence"
    assert ". " not in row.meaning


def steps(text: str) -> list[tuple[str, list[str]]]:
    """The files of a record's way in docs/architecture.md, and the functions named in each."""
    found = re.findall(r"^\| \d\. [^|]* \| `([^`]+)` \| ([^|]*) \|$", text, re.MULTILINE)
    return [(file, re.findall(r"`([^`]+)`", functions)) for file, functions in found]


def test_the_way_of_a_record_is_seven_files_with_these_functions() -> None:
    way = steps((ROOT / "docs" / "architecture.md").read_text())
    assert len(way) == 7
    for file, functions in way:
        assert functions
        assert set(functions) <= defined((ROOT / file).read_text()), file


def test_the_terms_are_there_once() -> None:
    terms = [row.term.partition(" (L")[0].partition(" (H")[0] for row in GLOSSARY]
    assert len(set(terms)) == len(terms)
    assert GUESSES.keys() <= set(terms)


@pytest.mark.parametrize("term", GUESSES)
def test_the_first_guess_at_a_terms_file_finds_it(term: str) -> None:
    files = [str(path.relative_to(ROOT)) for path in modules() if GUESSES[term] in path.stem]
    (row,) = (row for row in GLOSSARY if row.term.partition(" (L")[0].partition(" (H")[0] == term)
    assert row.file in files
    assert len(files) <= FEW


def test_no_name_is_defined_by_two_files_of_the_glossary() -> None:
    names = [(row.file, row.name) for row in GLOSSARY]
    assert len(set(names)) == len(names)


def test_a_missing_name_is_found() -> None:
    assert defined("class Fence:\n    def acquire(self): ...\n") == {"Fence", "acquire"}
    assert rows("| term | x |\n|---|---|\n| a | b. | `c.py` | `D` |\n") == [Row("a", "b.", "c.py", "D")]
