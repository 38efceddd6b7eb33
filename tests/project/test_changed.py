"""`scripts/test --changed` runs what a change touches, and says what it leaves out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.budget import BUDGET_SECONDS, CASES_SECONDS, WORKER_SECONDS, Budget
from tests.changed import Choice, choose
from tests.checks import Report, read_report, record
from tests.units import SET_UP, unit_of

AUDITED, SPARK = "tests/spark/conftest.py::audited", "tests/spark/conftest.py::spark"
AUDITS, COMPACTION = "tests/spark/test_audits.py", "tests/spark/test_compaction_audits.py"
SHORT = {path.relative_to(ROOT).as_posix(): 0.1 for path in (ROOT / "tests").rglob("test_*.py")}
SHARED_OUT = "tests/simulation/whole/test_simulation_whole.py"


def chosen(*paths: str) -> list[str]:
    """Names of the files, whatever folder they are in, when there is time for all."""
    tests = choose(paths, "main", SHORT).tests
    assert tests is not None
    return [Path(path).name for path in tests]


@pytest.mark.parametrize(
    ("path", "reached"),
    [
        ("tests/raft/mesh/test_frames.py", "test_frames.py"),
        ("statemachine/object_names.py", "test_audits.py"),  # through other modules
        ("strandline/statemachine/object_names.py", "test_audits.py"),
        ("node/process.py", "test_real_nodes.py"),  # a program that real nodes run
        ("tests/spark/conftest.py", "test_source.py"),
        ("docs/raft.md", "test_docs_raft.py"),  # a page that is read
        ("docs/no-such-page.md", "test_docstrings.py"),  # looks at all pages
        ("tests/clients/kafkajs/driver.js", "test_programs.py"),
        ("statemachine/object_names.py", "test_layers.py"),  # looks at all sources by a pattern
    ],
)
def test_what_a_change_touches(path: str, reached: str) -> None:
    assert reached in chosen(path)


def test_what_a_change_does_not_touch() -> None:
    found = chosen("tests/spark/conftest.py")
    assert "test_frames.py" not in found
    assert "test_layers.py" in found
    unread = Path("unread").with_suffix(".txt").as_posix()  # no string that a module has
    assert choose([unread], "main") == Choice(
        (
            "compared with main: 1 files changed",
            "0 files of tests are touched by imports, by programs or by name",
        ),
        (),
        simulations=False,
    )
    assert choose(["tests/raft/mesh/test_frames.py"], "main").simulations is False
    assert choose(["node/process.py", "statemachine/object_names.py"], "main").simulations is True


@pytest.mark.parametrize(
    "path", ["pyproject.toml", "uv.lock", "scripts/setup", "tests/conftest.py", "tests/units.py"]
)
def test_what_has_to_do_with_every_test_runs_all(path: str) -> None:
    choice = choose(["tests/raft/mesh/test_frames.py", path], "main")
    assert choice.tests is None
    assert path in choice.why[0]


def test_the_nearest_come_first_and_what_has_no_time_is_named() -> None:
    path = "statemachine/object_names.py"
    everything = choose([path], "main", SHORT)
    assert everything.tests is not None
    assert everything.left_out == ()
    long = everything.tests[-1]
    choice = choose([path], "main", SHORT | {long: BUDGET_SECONDS})
    assert choice.tests is not None
    assert choice.left_out == (f"{long}, 240.0 s",)
    assert set(choice.tests) == set(everything.tests) - {long}
    assert "left out for want of time, which only the whole run tries: 1 files" in choice.why
    # What was changed itself is run whatever it takes.
    assert choose([path, long], "main", {long: BUDGET_SECONDS}).tests[:1] == (long,)  # type: ignore[index]


def test_a_shared_set_up_is_paid_for_by_the_first_file_that_needs_it() -> None:
    budget = Budget({AUDITED: 60.0, SPARK: 9.0})
    assert budget.seconds(COMPACTION) == 74.0  # the pass needs the session, which the file does not name
    assert budget.seconds("tests/spark/test_source.py") == 14.0
    assert budget.seconds("tests/spark/test_source_options.py") == 5.0
    assert budget.seconds("tests/gc/test_brokers.py") == 5.0
    other = Budget({"tests/ecosystem/conftest.py::cluster": 9.0})  # a fixture of the same name
    assert other.seconds("tests/ecosystem/test_connect.py") == 14.0
    assert other.seconds("tests/clients/test_aiokafka.py") == 5.0

    whole = {AUDITED: WORKER_SECONDS - 10.0, AUDITS: 9.0, COMPACTION: 2.0}
    budget = Budget(whole)
    assert budget.take(AUDITS) == ()
    assert budget.take(COMPACTION) is None  # one worker's: 1 s is left for the folder
    budget = Budget(whole | {COMPACTION: 1.0})
    assert budget.take(AUDITS) == ()
    assert budget.take(COMPACTION) == ()
    # It is paid for as well by a file that is run because it was changed.
    budget = Budget({AUDITED: BUDGET_SECONDS})
    assert budget.take(AUDITS) is None
    assert budget.take(COMPACTION, whatever_it_takes=True) == ()
    assert budget.take("tests/gc/test_brokers.py") is None


def test_no_worker_gets_a_unit_that_is_too_long() -> None:
    path = "tests/node/test_broker_process.py"
    assert Budget({path: WORKER_SECONDS}).take(path) == ()
    assert Budget({path: WORKER_SECONDS + 0.1}).take(path) is None
    assert Budget({path: WORKER_SECONDS + 0.1}).take(path, whatever_it_takes=True) == ()
    budget = Budget(dict.fromkeys(["tests/clients/test_matrix.py", "tests/clients/test_java.py"], 61.0))
    assert budget.take("tests/clients/test_matrix.py") == ()
    assert budget.take("tests/clients/test_java.py") is None


def test_of_long_tests_that_share_nothing_the_shortest_are_run() -> None:
    tests = {f"{SHARED_OUT}::test_x[{seconds}]": float(seconds) for seconds in (5, 20, 30, 60)}
    known = {SHARED_OUT: 116.0} | tests  # and 1 s of short ones
    longest = (f"{SHARED_OUT}::test_x[60]", f"{SHARED_OUT}::test_x[30]")
    assert CASES_SECONDS == 40
    budget = Budget(known)
    assert budget.take(SHARED_OUT) == longest
    assert Budget(known).take(SHARED_OUT, whatever_it_takes=True) == ()
    assert Budget({SHARED_OUT: 116.0}).take(SHARED_OUT) is None  # nothing known of its tests

    choice = choose(["tests/simulation/run.py"], "main", known)
    assert choice.tests is not None
    assert SHARED_OUT in choice.tests
    assert choice.deselected == longest
    assert f"{SHARED_OUT}, its 2 longest tests of 116.0 s" in choice.left_out


def test_folders_that_share_fixtures_are_one_unit() -> None:
    assert unit_of("tests/spark/test_source.py::test_x[a::b]") == "tests/spark/"
    assert unit_of("tests/spark/test_three_fences.py::test_x") == "tests/spark/", "it has storages audited"
    assert unit_of("tests/clients/test_spark_kafka.py::test_x") == "tests/clients/", "by a fixture of its own"
    assert unit_of("tests/spark/conftest.py::audited") == "tests/spark/"
    for alone in ("tests/spark/test_spark_cluster.py", "tests/clients/test_logins.py"):
        assert unit_of(f"{alone}::test_x") == alone, "it asks for nothing of its folder's"
    assert unit_of("tests/admin/test_api.py::test_x[tests/spark/]") == "tests/admin/test_api.py"


def test_long_tests_that_share_nothing_are_units_of_their_own() -> None:
    assert (
        unit_of("tests/simulation/log/test_sabotages.py::test_x[a]")
        == "tests/simulation/log/test_sabotages.py::test_x[a]"
    )
    assert unit_of("tests/test_api.py::test_x[test_sabotages.py]") == "tests/test_api.py"


def test_pytests_report_is_read(tmp_path: Path) -> None:
    report = tmp_path / "pytest.xml"
    assert read_report(report) == Report(0, 0, {})
    report.write_text(
        '<testsuites><testsuite tests="6" skipped="1" failures="1" errors="1">'
        '<testcase classname="tests.gc.test_a.TestModel" time="1.5"/>'
        '<testcase classname="tests.gc.test_a" time="0.5"/>'
        '<testcase classname="tests.test_b" time="12"><properties>'
        f'<property name="other" value="x"/><property name="{SET_UP}{AUDITED}" value="10"/>'
        "</properties></testcase>"
        '<testcase classname="tests.log.test_sabotages" name="test_x[a]" time="3"/>'
        "</testsuite></testsuites>"
    )
    assert read_report(report) == Report(
        3,
        1,
        {
            "tests/gc/test_a.py": 2.0,
            "tests/test_b.py": 2.0,
            AUDITED: 10.0,
            "tests/log/test_sabotages.py": 3.0,
            "tests/log/test_sabotages.py::test_x[a]": 3.0,
        },
    )


def test_what_ran_is_recorded_and_the_rest_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "seconds.json"
    monkeypatch.setattr("tests.checks.SECONDS", kept)
    took = {"a.py": 2.04, "b.py": 0.94, "c.py": 5.0, "c.py::new": 5.0, "c.py::short": 0.9}
    record(Report(4, 0, took), {"b.py": 3.0, "c.py": 8.0, "c.py::old": 8.0, "d.py": 4.0})
    assert json.loads(kept.read_text()) == {
        "a.py": 2.0,
        "b.py": 0.9,
        "c.py": 5.0,
        "c.py::new": 5.0,
        "d.py": 4.0,
    }


SLOW = """
import pytest, time

@pytest.fixture(scope="{}")
def made():
    time.sleep(0.3)
"""


def test_what_a_set_up_takes_that_files_share_is_noted_apart(tmp_path: Path) -> None:
    tests = tmp_path / "below"  # where tests/conftest.py lies, below the root
    tests.mkdir()
    (tests / "conftest.py").write_text("from tests.conftest import pytest_configure")
    for folder, scope in [("shared", "session"), ("own", "function")]:
        (tests / folder).mkdir()
        (tests / folder / "__init__.py").touch()
        (tests / folder / "conftest.py").write_text(SLOW.format(scope))
        (tests / folder / "test_it.py").write_text("def test_a(made): pass\n\ndef test_b(made): pass\n")
    report = tmp_path / "pytest.xml"
    command = ["-m", "pytest", f"--rootdir={tmp_path}", f"--junit-xml={report}", "below"]
    subprocess.run([sys.executable, *command], cwd=tmp_path, check=True, capture_output=True)
    seconds = {
        Path(name).relative_to("below").as_posix(): took for name, took in read_report(report).seconds.items()
    }
    assert seconds.keys() == {"shared/conftest.py::made", "shared/test_it.py", "own/test_it.py"}
    assert seconds["shared/conftest.py::made"] >= 0.3
    assert seconds["shared/test_it.py"] < 0.3
    assert seconds["own/test_it.py"] >= 0.6
