"""docs/raft.md names the tests that guard each rule: those it names exist, and it names every guard."""

from __future__ import annotations

import re
from pathlib import Path

from tests import ROOT

PAGE = (ROOT / "docs" / "raft.md").read_text()
DEFINED = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)


def defined(files: list[Path]) -> set[str]:
    return {name for file in files for name in DEFINED.findall(file.read_text())}


def test_every_test_that_is_named_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert named - defined(sorted((ROOT / "tests").rglob("test_*.py"))) == set()


def test_every_guard_and_every_hole_shown_on_stock_is_named() -> None:
    guards = defined(sorted((ROOT / "tests" / "raft" / "holes").glob("test_*.py")))
    assert len(guards) > 80
    assert guards - set(re.findall(r"`(test_\w+)`", PAGE)) == set()


def test_every_file_and_method_that_is_named_exists() -> None:
    source = "".join(file.read_text() for file in sorted((ROOT / "node" / "raft").rglob("*.py")))
    for cls, method in re.findall(r"`([A-Z]\w+)\.(\w+)`", PAGE):
        if cls not in ("FileJournal", "MetaStorer"):
            assert re.search(rf"^class {cls}\b", source, re.MULTILINE), cls
            assert re.search(rf"(def {method}\(|\b{method}\b *[:=])", source), f"{cls}.{method}"
    for path in re.findall(r"`(tests/[\w/]+\.py)`", PAGE):
        assert (ROOT / path).exists(), path
