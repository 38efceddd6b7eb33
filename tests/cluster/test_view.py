"""`strandline view plan` and what `apply` refuses: neither changes anything."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from strandline.cluster.commands import view_plan
from strandline.snapshot import extras
from strandline.statemachine.views.refusals import Code
from tests import ROOT
from tests.cluster.command import as_json, strandline

OLD = """
CREATE TABLE flights (carrier STRING, distance BIGINT, arr_delay DOUBLE);
CREATE VIEW delays AS SELECT carrier, count(*) AS n FROM flights
  WHERE arr_delay > 0 AND distance > 5 GROUP BY carrier;
CREATE VIEW former AS SELECT DISTINCT distance FROM flights;
CREATE VIEW gone AS SELECT DISTINCT carrier FROM flights;
"""
NEW = """
CREATE TABLE flights (carrier STRING, distance BIGINT, arr_delay DOUBLE);
CREATE VIEW delays AS SELECT x.carrier, count(1) AS n FROM flights AS x
  WHERE 5 < distance AND arr_delay > 0 GROUP BY 1;
CREATE VIEW latter AS SELECT DISTINCT distance FROM flights;
CREATE VIEW more AS SELECT n, count(*) AS c FROM delays GROUP BY n;
"""

TABLE = "CREATE TABLE t (a INT, b STRING, d DOUBLE);\n"
REFUSED = {
    Code.SYNTAX: "CREATE TABLE",
    Code.UNKNOWN_NAME: f"{TABLE}CREATE VIEW v AS SELECT DISTINCT c FROM t;",
    Code.NAME_TAKEN: f"{TABLE}{TABLE}",
    Code.AMBIGUOUS_NAME: f"{TABLE}CREATE VIEW v AS SELECT DISTINCT a FROM t JOIN t AS u ON t.b = u.b;",
    Code.WRONG_TYPE: f"{TABLE}CREATE VIEW v AS SELECT DISTINCT a + b AS c FROM t;",
    Code.UNSUPPORTED_SQL: f"{TABLE}CREATE VIEW v AS SELECT DISTINCT a FROM t WHERE b RLIKE 'x';",
    Code.NOT_DETERMINISTIC: f"{TABLE}CREATE VIEW v AS SELECT DISTINCT rand() AS c FROM t;",
    Code.RECURSIVE_VIEW: f"{TABLE}CREATE VIEW v AS SELECT DISTINCT a FROM v;",
    Code.NO_KEY: f"{TABLE}CREATE VIEW v AS SELECT a FROM t;",
}
"""A program for each reason to refuse one."""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in (("old.sql", OLD), ("new.sql", NEW)):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_plan_says_what_is_kept_new_dropped_and_renamed(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, programs: Path
) -> None:
    done = strandline(capfd, monkeypatch, "view", "plan", "new.sql", "--against", "old.sql")
    assert done.status == 0
    lines = [line.split() for line in done.out.splitlines()]
    assert lines[:5] == [
        ["VIEW", "FATE", "KEPT", "NEW"],
        ["delays", "unchanged", "4", "0"],
        ["latter", "renamed", "from", "former", "3", "0"],
        ["more", "new", "3", "3"],
        ["gone", "dropped", "0", "0"],
    ]
    assert done.out.splitlines()[-1] == "7 operators kept, 3 new, 3 dropped"
    assert sorted(path.name for path in programs.iterdir()) == ["new.sql", "old.sql"]


def test_a_plan_as_json_has_every_operator_once(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, programs: Path
) -> None:
    told = as_json(
        strandline(capfd, monkeypatch, "view", "plan", "new.sql", "--against", "old.sql", "--json")
    )
    assert [(each["name"], each["fate"], each["was"]) for each in told["views"]] == [
        ("delays", "unchanged", None),
        ("latter", "renamed", "former"),
        ("more", "new", None),
        ("gone", "dropped", None),
    ]
    fates = [each["fate"] for each in told["operators"]]
    assert [fates.count(fate) for fate in ("kept", "new", "dropped")] == [7, 3, 3]
    assert len({each["digest"] for each in told["operators"]}) == len(fates)
    alone = as_json(strandline(capfd, monkeypatch, "view", "plan", "new.sql", "--json"))
    assert {each["fate"] for each in alone["views"]} == {"new"}


def test_a_refused_program_is_one_line_with_place_and_cure(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, programs: Path
) -> None:
    (programs / "bad.sql").write_text(f"{OLD}CREATE VIEW v AS SELECT carrier, n FROM flights;")
    done = strandline(capfd, monkeypatch, "view", "plan", "bad.sql")
    assert (done.status, done.out) == (2, "")
    assert done.err == (
        "strandline: bad.sql: line 7, column 34: UNKNOWN_NAME n: is not a column here; correct the name\n"
    )
    done = strandline(capfd, monkeypatch, "view", "plan", "bad.sql", "--json")
    assert done.status == 2
    assert json.loads(done.out)["refused"]["code"] == "UNKNOWN_NAME"
    assert json.loads(done.out)["refused"]["line"] == 7


@pytest.mark.parametrize("code", Code)
def test_a_refused_program_asks_the_cluster_for_nothing(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, programs: Path, code: Code
) -> None:
    (programs / "bad.sql").write_text(REFUSED[code])
    with socket.create_server(("127.0.0.1", 0)) as node:
        node.setblocking(False)
        address = f"127.0.0.1:{node.getsockname()[1]}"
        done = strandline(capfd, monkeypatch, "view", "apply", "bad.sql", "--admin", address)
        assert done.status == 2
        assert f" {code.name} " in done.err
        assert "; " in done.err, "the cure"
        with pytest.raises(BlockingIOError):
            node.accept()
    assert sorted(path.name for path in programs.iterdir()) == ["bad.sql", "new.sql", "old.sql"]


def test_files_that_are_no_programs_are_refused(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, programs: Path
) -> None:
    done = strandline(capfd, monkeypatch, "view", "plan", "nowhere.sql")
    assert (done.status, "nowhere.sql: No such file" in done.err) == (1, True)
    (programs / "bytes.sql").write_bytes(b"CREATE \xff")
    done = strandline(capfd, monkeypatch, "view", "plan", "bytes.sql")
    assert (done.status, done.err) == (2, "strandline: bytes.sql is not text: byte 7; write it in UTF-8\n")
    monkeypatch.setattr(view_plan, "PROGRAM_BYTES", 10)
    done = strandline(capfd, monkeypatch, "view", "plan", "new.sql")
    assert (done.status, "larger than 10 bytes" in done.err) == (2, True)


def test_without_the_extra_the_command_that_brings_it_is_named(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, programs: Path
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "sqlglot" else object())
    done = strandline(capfd, monkeypatch, "view", "plan", "new.sql")
    assert done.status == 2
    assert done.err == "strandline: views need sqlglot; pip install 'strandline[views]'\n"


def test_the_page_has_each_code_with_its_meaning() -> None:
    page = (ROOT / "docs" / "views.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `") and line.split("`")[1].isupper()]
    assert rows == [f"| `{code.name}` | {code.value} |" for code in Code]
