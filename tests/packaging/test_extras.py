"""What may be imported without what: a node without Spark, a reader without a node's libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from strandline.snapshot import extras
from strandline.snapshot.spark.audits.report import write_report
from strandline.snapshot.spark.audits.result import AuditRun, Figures
from tests.cluster.command import strandline

BROKER = "pysyncobj kio uvloop starlette uvicorn h11 typer rich confluent_kafka"
CURE = "pip install 'strandline[spark]'"
SPARK = "pyspark pyarrow numpy pandas matplotlib"

WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in sys.argv[1].split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""
NOT_FOUND = """
from strandline.snapshot import extras
extras.find_spec = lambda name: None if name in sys.argv[1].split() else True
"""
ALL_OF_CLUSTER = """
import importlib, pkgutil
from strandline import cluster
for module in pkgutil.walk_packages(cluster.__path__, "strandline.cluster."):
    if not module.name.startswith(tuple(sys.argv[2].split())):
        importlib.import_module(module.name)
"""
DEMO = "strandline.cluster.demo"
WORKER = "strandline.cluster.view_worker"
WRITES = """
from strandline.snapshot.spark.source import StrandlineSource
try:
    StrandlineSource({}).writer(None, False)
except ImportError as error:
    sys.exit(f"refused: {error}")
"""
FOUND_BY_SPARK = """
from pyspark.sql.datasource import DataSource
from pyspark_strandline import DefaultSource
assert issubclass(DefaultSource, DataSource)
assert "strandline.snapshot.spark" not in sys.modules
try:
    DefaultSource({})
except ImportError as error:
    sys.exit(f"refused: {error}")
"""


def without(libraries: str, program: str, says: str = "", *, argument: str = "") -> None:
    """Run a program where some libraries are not installed; `says`: its last line, with which it fails."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT + program, libraries, argument],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == bool(says), done.stderr
    assert done.stderr.endswith(f"{says}\n" if says else ""), done.stderr


def test_a_reader_needs_none_of_a_nodes_libraries() -> None:
    without(f"{BROKER} matplotlib", "import strandline.spark, strandline.audit")


def test_a_node_and_the_command_need_nothing_of_spark() -> None:
    without(SPARK, "import strandline.node.process, strandline.cluster.command_line")


def test_what_commands_import_when_they_are_called_needs_nothing_of_spark() -> None:
    without(SPARK, ALL_OF_CLUSTER, argument=f"{DEMO} {WORKER}")


def test_a_process_of_views_needs_no_spark() -> None:
    without("pyspark pandas", ALL_OF_CLUSTER, argument=DEMO)


def test_writing_without_its_library_is_refused_with_the_cure() -> None:
    without("kio", NOT_FOUND + WRITES, f"refused: writing with Spark needs kio: {CURE}")


def test_what_spark_finds_is_a_source_also_where_the_extra_is_not_whole() -> None:
    """Spark leaves out the sources of all other packages if it cannot import one."""
    without("pandas", NOT_FOUND + FOUND_BY_SPARK, f"refused: reading with Spark needs pandas: {CURE}")
    both = f"needs pyspark, pandas: {CURE}"
    without("pandas pyspark", f"{NOT_FOUND}import pyspark_strandline", both)


def test_the_package_itself_imports_next_to_nothing() -> None:
    listed = "import sys; before = set(sys.modules); import strandline; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", listed], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"strandline", "__future__"}


def test_a_page_without_the_extra_for_plots_is_refused_before_spark_is_started(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "matplotlib" else object())
    done = strandline(capfd, monkeypatch, "audit", "--storage", "/x", "--cluster-id", "y", "--html", "page")
    cure = "a report with plots needs matplotlib; pip install 'strandline[report]'"
    assert (done.status, done.err) == (2, f"strandline: {cure}\n")
    run = AuditRun("/x", "y", [], Figures([], [], []), 0.0)
    with pytest.raises(ImportError, match=r"matplotlib: pip install 'strandline\[report\]'"):
        write_report(run, html=tmp_path / "page.html")
    write_report(run, json=tmp_path / "page.json")
    assert [path.name for path in tmp_path.iterdir()] == ["page.json"]
