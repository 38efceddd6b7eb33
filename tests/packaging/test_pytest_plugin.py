"""pytest finds `strandline_cluster` by itself, in another project's tests; and the page that tells of it."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import strandline
from tests import ROOT

PAGE = (ROOT / "docs" / "in-your-tests.md").read_text()
USES_IT = """
import strandline
from confluent_kafka import Producer

seen = []

def test_one(strandline_cluster: strandline.TemporaryCluster) -> None:
    seen.append(strandline_cluster.bootstrap)
    producer = Producer({"bootstrap.servers": strandline_cluster.bootstrap})
    producer.produce("orders", b"one")
    assert producer.flush(30) == 0

def test_all_tests_have_the_same(strandline_cluster: strandline.TemporaryCluster) -> None:
    assert seen == [strandline_cluster.bootstrap]
"""
DOES_NOT = """
import sys

def test_nothing_but_the_plugin_is_imported() -> None:
    found = {name for name in sys.modules if name.partition(".")[0] == "strandline"}
    assert found == {"strandline", "strandline.pytest_plugin"}
"""


def pytest_on(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_program.py").write_text(program)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "test_program.py"],
        cwd=folder, capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip


def test_all_tests_of_a_run_share_one_cluster(tmp_path: Path) -> None:
    done = pytest_on(tmp_path, USES_IT)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_tests_that_do_not_use_it_import_nothing(tmp_path: Path) -> None:
    done = pytest_on(tmp_path, DOES_NOT)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) == 3
    done = pytest_on(tmp_path, "\n".join(examples))
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_page_names_everything_there_is() -> None:
    public = {name for name in vars(strandline.TemporaryCluster) if not name.startswith("_")}
    public |= set(inspect.signature(strandline.local_cluster).parameters)
    assert {name for name in public if not re.search(rf"`{name}\b", PAGE)} == set()
