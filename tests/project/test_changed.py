"""`scripts/test --changed` runs what a change touches, and says what it leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.changed import BUDGET_SECONDS, Choice, choose
from tests.checks import Report, read_report
from tests.units import unit_of


def chosen(*paths: str, seconds: dict[str, float] | None = None) -> list[str]:
    """Names of the files, whatever folder they are in."""
    tests = choose(paths, "main", seconds or {}).tests
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
    everything = choose([path], "main", {})
    assert everything.tests is not None
    long = everything.tests[-1]
    choice = choose([path], "main", {long: BUDGET_SECONDS})
    assert choice.tests is not None
    assert choice.left_out == (long,)
    assert set(choice.tests) == set(everything.tests) - {long}
    assert "left out for want of time, which only the whole run tries: 1 files" in choice.why
    # What was changed itself is run whatever it takes.
    assert choose([path, long], "main", {long: BUDGET_SECONDS}).tests[:1] == (long,)  # type: ignore[index]


def test_folders_that_share_fixtures_are_one_unit() -> None:
    assert unit_of("tests/spark/test_source.py::test_x[a::b]") == "tests/spark/"
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
        '<testsuites><testsuite tests="5" skipped="1" failures="1" errors="1">'
        '<testcase classname="tests.gc.test_a.TestModel" time="1.5"/>'
        '<testcase classname="tests.gc.test_a" time="0.5"/>'
        '<testcase classname="tests.test_b" time="2"/>'
        "</testsuite></testsuites>"
    )
    assert read_report(report) == Report(2, 1, {"tests/gc/test_a.py": 2.0, "tests/test_b.py": 2.0})
