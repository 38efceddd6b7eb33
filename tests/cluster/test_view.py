"""`strandline view plan` and what `apply` refuses: neither changes anything."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any, Final

import pytest

from strandline.cluster import group_client
from strandline.cluster.commands import view, view_plan
from strandline.cluster.failure import CommandFailed
from strandline.cluster.target import Target
from strandline.snapshot import extras
from strandline.statemachine.views.refusals import Code
from tests import ROOT
from tests.cluster.command import as_json, strandline
from tests.cluster.played_node import PlayedNode

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


def test_a_file_of_one_endless_word_is_refused_in_a_short_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, programs: Path
) -> None:
    (programs / "long.sql").write_text("x" * 100_000)
    done = strandline(capfd, monkeypatch, "view", "plan", "long.sql")
    assert (done.status, " SYNTAX xxx" in done.err, len(done.err) < 400) == (2, True, True), done.err[:400]


def test_the_mark_of_an_encoding_is_no_part_of_a_program(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, programs: Path
) -> None:
    (programs / "marked.sql").write_text(NEW, encoding="utf-8-sig")
    done = strandline(capfd, monkeypatch, "view", "plan", "marked.sql", "--against", "new.sql")
    assert (done.status, done.err) == (0, "")
    assert done.out.endswith(" operators kept, 0 new, 0 dropped\n")


@pytest.mark.parametrize(
    ("live", "said"),
    [(9, "program new: live, and nothing is to be filled\n"), (4, "program new: begun as attempt 9: see ")],
)
def test_an_application_of_what_is_live_says_that_nothing_is_filled(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    programs: Path,
    live: int,
    said: str,
) -> None:
    program = {"name": "new", "live": {"text": NEW, "attempt": live}, "stopped": None}
    with played(None, {}) as node:
        node.answers["/api/views"] = (200, {"attempt": 9, "programs": [program], "running": []})
        done = strandline(capfd, monkeypatch, "view", "apply", "new.sql", "--admin", node.address)
    assert (done.status, done.out.startswith(said)) == (0, True), done


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            TABLE + "".join(f"CREATE VIEW v{n} AS SELECT DISTINCT a FROM t;\n" for n in range(101)),
            "big.sql has 101 views with topics, and a program has 100 at most; make several programs of it\n",
        ),
        (
            TABLE + "CREATE VIEW v AS SELECT DISTINCT a FROM t;" + " " * (48 * 1024),
            "and a program has 49,152 at most; make several programs of it\n",
        ),
    ],
)
def test_a_program_that_the_controllers_log_does_not_take_is_refused_before_anything_is_asked(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, programs: Path, text: str, says: str
) -> None:
    (programs / "big.sql").write_text(text)
    with played(None, {}) as node:
        done = strandline(capfd, monkeypatch, "view", "apply", "big.sql", "--admin", node.address)
        assert not node.asked
    assert (done.status, done.err.endswith(says)) == (2, True), done.err


@pytest.mark.parametrize(("answered", "status"), [(409, 2), (400, 2), (401, 1), (500, 1), (503, 1)])
def test_an_application_that_the_cluster_refuses_ends_with_status_2(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    programs: Path,
    answered: int,
    status: int,
) -> None:
    with played(None, {}) as node:
        node.answers["/api/views"] = (answered, {"error": "TOPIC_MISSING: there is no topic 'flights'."})
        done = strandline(capfd, monkeypatch, "view", "apply", "new.sql", "--admin", node.address)
    assert (done.status, "TOPIC_MISSING: there is no topic 'flights'" in done.err) == (status, True), done


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


TOPICS: Final = {"flights": {"partition_count": 2, "configs": {}}}


class Ends:
    """A cluster whose partitions have records from 5 up to 100,005."""

    def __init__(self, where: Target) -> None:
        pass

    def found(self, places: list[Any], start: tuple[str, int]) -> dict[Any, int]:
        return dict.fromkeys(places, 5 if start[0] == "beginning" else 100_005)


def played(text: str | None, topics: dict[str, Any]) -> PlayedNode:
    """A node that has these topics, and a program with this text."""
    live = None if text is None else {"text": text, "attempt": 4}
    program = {"name": "new", "live": live, "stopped": None}
    answers = {
        "/api/views": (200, {"programs": [program] if text else [], "running": []}),
        **{f"/api/topics/{name}": (200, {"name": name, **topic}) for name, topic in topics.items()},
    }
    return PlayedNode(answers)


@pytest.mark.parametrize(("live", "records"), [(None, 200_000), (OLD, 200_000), (NEW, 0)])
def test_a_plan_for_a_cluster_says_what_is_to_be_read(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    programs: Path,
    live: str | None,
    records: int,
) -> None:
    monkeypatch.setattr(group_client, "Groups", Ends)
    with played(live, TOPICS) as node:
        where = ("view", "plan", "new.sql", "--name", "new", "--admin", node.address)
        done = strandline(capfd, monkeypatch, *where)
        told = as_json(strandline(capfd, monkeypatch, *where, "--json"))
        assert {method for method, _, _ in node.asked} == {"GET"}
    line = "to be read: 200,000 records of 1 topic, about 4 s at 50,000 a second"
    assert done.out.splitlines()[-1] == (line if records else "nothing is to be filled")
    assert (told["records"], told["seconds"]) == (records, records / 50_000)
    kept = [each["fate"] for each in told["operators"]].count("kept")
    assert (kept > 0) is (live is not None)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--name", "new", "--against", "old.sql"], "both say what is replaced"),
        (["--admin", "127.0.0.1:1"], "add --name NAME"),
        (["--name", "new"], "TOPIC_MISSING: there is no topic flights"),
    ],
)
def test_a_plan_that_cannot_be_made_says_why(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    programs: Path,
    more: list[str],
    says: str,
) -> None:
    with played(None, {}) as node:
        node.answers["/api/topics/flights"] = (404, {"error": "there is no topic 'flights'"})
        more = [*more, "--admin", node.address] if more == ["--name", "new"] else more
        done = strandline(capfd, monkeypatch, "view", "plan", "new.sql", *more)
    assert done.status == 2
    assert says in done.err


@pytest.mark.parametrize("policy", ["delete", "compact,delete", None])
@pytest.mark.parametrize("command", [["apply"], ["plan", "--name", "keyed"]])
def test_a_keyed_table_over_a_topic_that_retention_empties_is_refused(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    programs: Path,
    policy: str | None,
    command: list[str],
) -> None:
    (programs / "keyed.sql").write_text(
        "CREATE TABLE t (a STRING NOT NULL PRIMARY KEY, b INT) OPTIONS (mode 'upsert');\n"
        "CREATE VIEW v AS SELECT b, count(*) AS n FROM t GROUP BY b;"
    )
    configs = {} if policy is None else {"cleanup.policy": policy}
    with played(None, {"t": {"partition_count": 1, "configs": configs}}) as node:
        name, *more = command
        done = strandline(capfd, monkeypatch, "view", name, "keyed.sql", *more, "--admin", node.address)
        assert {method for method, _, _ in node.asked} == {"GET"}, "nothing was created"
    assert done.status == 2
    assert "NOT_COMPACTED t: its table's mode is 'upsert'" in done.err
    assert f"its cleanup.policy is {policy or 'delete'}; " in done.err


def test_a_keyed_table_over_a_compacted_topic_is_applied_at_the_node_that_runs_the_program(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, programs: Path
) -> None:
    (programs / "keyed.sql").write_text(
        "CREATE TABLE t (a STRING NOT NULL PRIMARY KEY, b INT) OPTIONS (mode 'upsert');\n"
        "CREATE VIEW v AS SELECT b, count(*) AS n FROM t GROUP BY b;"
    )
    topic = {"t": {"partition_count": 1, "configs": {"cleanup.policy": "compact"}}}
    with played(None, topic) as first, played(None, topic) as host:
        host.answers["/api/views"] = (200, {"attempt": 9, "programs": [], "running": [{"program": "keyed"}]})
        both = f"{first.address},{host.address}"
        done = strandline(capfd, monkeypatch, "view", "apply", "keyed.sql", "--admin", both)
        assert (done.status, "attempt 9" in done.out) == (0, True), done
        assert not [path for method, path, _ in first.asked if method == "POST"]


@pytest.mark.parametrize("known", [False, True])
def test_a_node_that_is_behind_does_not_know_of_the_attempt_yet(
    monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """It is no end of the attempt, unless it was there, or is not for long."""
    before = {"name": "p", "live": {"attempt": 4}, "next": None, "ended": None}
    began = {**before, "next": {"attempt": 9}}
    states = [[], [before], [began], [{**began, "live": {"attempt": 9}, "next": None}]]
    ends = [[before], [began], [{**before, "ended": "BECAUSE"}]] if known else [[{**before, "ended": "OF"}]]
    answers = iter(states)
    monkeypatch.setattr(view, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(view, "first_answer", lambda *_: {"programs": next(answers)})
    view._wait((), "p", 9, 10.0)
    assert next(answers, None) is None
    monkeypatch.setattr(view, "BEHIND_SECONDS", 60.0 if known else -1.0)
    answers = iter(ends)
    with pytest.raises(CommandFailed, match="program p: BECAUSE" if known else "program p: OF"):
        view._wait((), "p", 9, 10.0)
