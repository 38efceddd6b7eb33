"""The wheel in an environment of its own: what is in it, and that it works beside a user's own modules."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import ROOT
from tests.packaging.built import Uv
from tests.spark.stored_cluster import build_cluster

pytestmark = pytest.mark.timeout(300)  # an index and a disk that others use too
TOP = ("pyspark_strandline", "strandline")
FOLDERS = ("cluster", "node", "snapshot", "statemachine")
OTHER_FILES = {"strandline/py.typed", "strandline/snapshot/spark/log4j2.properties"}
"""All there is but Python and the wheel's own description."""
READER = ("pyspark", "pandas", "matplotlib")
"""The distributions that no node has."""
NO_READER = "reading with Spark needs pyspark, pandas"
NO_NODE = (
    "a node and the command need pysyncobj, uvloop, kio, typer, rich, confluent_kafka, starlette, uvicorn, "
    "h11, numpy, pyarrow"
)

CLUSTER = """
import confluent_kafka
import strandline

with strandline.local_cluster() as cluster:
    client = {"bootstrap.servers": cluster.bootstrap}
    producer = confluent_kafka.Producer(client)
    producer.produce("greetings", b"hello")
    assert producer.flush(30) == 0
    consumer = confluent_kafka.Consumer({**client, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["greetings"])
    print([message.value() for message in consumer.consume(1, timeout=30)])
    consumer.close()
"""

BROKER = ("pysyncobj", "uvloop", "starlette", "uvicorn", "h11", "typer", "rich", "confluent-kafka")
"""The distributions that only a node and the command import."""
PRESENT = """
import importlib.metadata, sys
print(*sorted(each.name.lower() for each in importlib.metadata.distributions() if each.name in sys.argv[1:]))
"""
READS = """
import sys
import pyspark.sql
import strandline.audit, strandline.spark

builder = pyspark.sql.SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1").getOrCreate()
frame = spark.read.format("strandline").option("url", sys.argv[1]).option("topic", "orders").load()
print(strandline.__version__, frame.count())
"""

TYPED = """
import strandline

version: str = strandline.__version__
from strandline.audit import AuditRun, run_audits
from strandline.spark import session
run: AuditRun = run_audits("/srv/objects", {}, "harbour", spark=session("audit"))
run_audits("/srv/objects", {}, 5, spark=session("audit"))
with strandline.local_cluster(nodes=3, config={"topics.partitions": 6}) as cluster:
    bootstrap: str = cluster.bootstrap
    cluster.kill(1)
    cluster.kill("1")
from strandline.pytest_plugin import strandline_cluster as fixture
strandline.no_such_name
"""


class Built(NamedTuple):
    """What a release would upload, and the wheel that is built without the sdist."""

    sdist: Path
    wheel: Path
    from_tree: Path


@pytest.fixture(scope="module")
def uv() -> Uv:
    return Uv()


@pytest.fixture(scope="module")
def built(uv: Uv, tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("built")
    wheel = uv.build(folder / "release")
    (sdist,) = (folder / "release").glob("*.tar.gz")
    return Built(sdist, wheel, uv.build(folder / "tree", "--wheel"))


@pytest.fixture(scope="module")
def python(uv: Uv, built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of an environment with the wheel and the extra of a node."""
    folder = tmp_path_factory.mktemp("node")
    return uv.install(Path(sys.executable), folder / "venv", built.wheel, "[node]")


@pytest.fixture(scope="module")
def bare(uv: Uv, built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of an environment with the wheel and no extra."""
    return uv.install(Path(sys.executable), tmp_path_factory.mktemp("bare") / "venv", built.wheel)


def contents(wheel: Path) -> dict[str, int]:
    with zipfile.ZipFile(wheel) as archive:
        return {entry.filename: entry.CRC for entry in archive.infolist()}


def tracked() -> set[str]:
    """The package's files as git has them, by the name they are imported under."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *TOP, *FOLDERS],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    files = {name for name in listed if (ROOT / name).is_file()}
    return {name if name.startswith(TOP) else f"strandline/{name}" for name in files}


def run(python: Path, *arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, *arguments], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_wheel_is_the_packages_files_whether_from_the_tree_or_from_the_sdist(built: Built) -> None:
    found = contents(built.wheel)
    assert contents(built.from_tree) == found
    package = {name for name in found if ".dist-info/" not in name}
    assert package == tracked()
    assert {name for name in package if not name.endswith(".py")} == OTHER_FILES


def test_an_sdist_has_no_link_and_no_cache(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        assert [entry.name for entry in archive if not entry.isfile()] == []
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert tracked() <= names
    others = {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "PKG-INFO", ".gitignore"}
    assert {name.partition("/")[0] for name in names} == {*TOP, "docs", *others}


def test_a_users_own_modules_of_the_same_names_break_nothing(python: Path, tmp_path: Path) -> None:
    for name in FOLDERS:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name}.py was imported')\n")
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise SystemExit('{name}/ was imported')\n")
    (tmp_path / "script.py").write_text(
        "import strandline.cluster.command_line, strandline.node.process, strandline.snapshot.storage\n"
        "print(strandline.__version__, strandline.__file__)\n"
    )
    done = run(python, "script.py", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert str(python.parent.parent) in done.stdout
    assert run(python, "-m", "strandline", "--version", folder=tmp_path).stdout.startswith("strandline ")


def test_a_node_has_nothing_of_spark_and_says_so(python: Path, tmp_path: Path) -> None:
    assert run(python, "-c", PRESENT, *READER, folder=tmp_path).stdout == "\n"
    cure = "pip install 'strandline[spark]'"
    for module in (("strandline", "audit"), ("strandline.audit",)):
        audit = run(python, "-m", *module, folder=tmp_path)
        assert (audit.returncode, audit.stdout, audit.stderr) == (2, "", f"strandline: {NO_READER}; {cure}\n")
    for name in ("strandline.spark", "strandline.audit", "pyspark_strandline"):
        done = run(python, "-c", f"import {name}", folder=tmp_path)
        assert done.stderr.endswith(f"ExtraMissing: {NO_READER}: {cure}\n")
    cleans = "import strandline.node.compaction.rewriting, strandline.node.compaction.segment_cleaning"
    assert run(python, "-c", cleans, folder=tmp_path).stderr == ""


def test_without_any_extra_one_line_names_the_one_of_a_node(bare: Path, tmp_path: Path) -> None:
    cure = "pip install 'strandline[node]'"
    for program in (("strandline", "topic", "list"), ("strandline.node.process", "--config", "x")):
        done = run(bare, "-m", *program, folder=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"strandline: {NO_NODE}; {cure}\n")
    assert run(bare, "-m", "strandline", "--version", folder=tmp_path).stdout.startswith("strandline ")
    (tmp_path / "program.py").write_text("import strandline\nwith strandline.local_cluster(): pass\n")
    done = run(bare, "program.py", folder=tmp_path)
    assert done.stderr.endswith(f"ExtraMissing: {NO_NODE}: {cure}\n")
    assert run(bare, "-c", "import strandline.snapshot.storage", folder=tmp_path).stderr == ""


def test_a_type_checker_sees_the_types(python: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TYPED)
    own = Path(sys.executable)
    options = ("--strict", "--python-executable", python)
    checked = run(own, "-m", "mypy", *options, "program.py", folder=tmp_path)
    assert [line.partition(" error: ")[0] for line in checked.stdout.splitlines()] == [
        "program.py:8:", "program.py:12:", "program.py:14:",
        "Found 3 errors in 1 file (checked 1 source file)",
    ], checked.stdout  # fmt: skip


def test_a_cluster_runs_with_the_extra_of_a_node_alone(python: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(CLUSTER)
    done = run(python, "program.py", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "[b'hello']\n"), done.stderr


def test_spark_finds_the_source_where_nothing_of_a_nodes_is_installed(
    uv: Uv, built: Built, tmp_path: Path
) -> None:
    python = uv.install(Path(sys.executable), tmp_path / "venv", built.wheel, "[spark]")
    assert run(python, "-c", PRESENT, *BROKER, "pyspark", folder=tmp_path).stdout == "pyspark\n"
    cluster = build_cluster(tmp_path / "objects")
    readable = sum(len(p.readable) for (topic, _), p in cluster.partitions.items() if topic == "orders")
    (tmp_path / "program.py").write_text(READS)
    # As where the environment is activated: Spark starts the Python of the PATH unless it is told of another.
    own = {name: value for name, value in os.environ.items() if not name.startswith("PY")}
    own |= {"PATH": f"{python.parent}:{own['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        ["python", "program.py", cluster.url],
        cwd=tmp_path, env=own, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == str(readable)
