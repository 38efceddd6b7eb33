"""`strandline sql`: topics as tables of the session that all tests of Spark share."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from strandline.cluster.commands.sql import until_interrupted
from strandline.snapshot.own_output import own_output
from strandline.snapshot.spark import session
from strandline.snapshot.spark.json_schema import MOST_FIELDS, ddl, infer
from tests.cluster.command import Done, strandline
from tests.spark.stored_cluster import StoredCluster, build_cluster

FLIGHTS = [
    {"carrier": "UA", "delay": 2, "air": {"time": 227, "gate": None}, "stops": ["EWR"], "Key": "a"},
    {"carrier": "AA", "delay": 2.5, "air": {"time": 160, "gate": 7}, "stops": []},
    {"carrier": "UA", "delay": None, "late": True},
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> StoredCluster:
    made = build_cluster(tmp_path_factory.mktemp("sql") / "objects", batches_a_round=2)
    made.create_topic("flights", 2)
    made.create_topic("odd.name", 1)
    values = [json.dumps(one).encode() for one in FLIGHTS]
    made.upload(
        made.partitions["flights", 0].batch(values[:2]),
        made.partitions["flights", 1].batch([values[2], b"{not JSON"]),
        made.partitions["odd.name", 0].batch([b"\xff\xfe", b"[1]"]),
    )
    made.checkpoint()
    return made


Sql = Callable[..., Done]


@pytest.fixture
def sql(
    spark: SparkSession,
    cluster: StoredCluster,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Sql:
    class Kept:
        """A session beside that of all tests, whose Java no command ends."""

        def __init__(self) -> None:
            self._session = spark.newSession()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._session, name)

        def stop(self) -> None:
            pass

    monkeypatch.setattr(session, "session", lambda *given, **more: Kept())
    return lambda *given: strandline(capfd, monkeypatch, "sql", *given, "--storage", cluster.url)


def rows(done: Done) -> list[dict[str, Any]]:
    assert done.status == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def test_fields_of_json_are_columns(sql: Sql) -> None:
    counted = rows(sql("select carrier, count(*) n from flights group by 1 order by 1 nulls first", "--json"))
    assert counted == [{"carrier": None, "n": 1}, {"carrier": "AA", "n": 1}, {"carrier": "UA", "n": 2}]
    found = rows(sql("select * from flights order by _partition, _offset;", "--format", "json"))
    assert [one["delay"] for one in found] == [2.0, 2.5, None, None]
    assert found[1]["air"] == {"time": 160, "gate": 7}
    assert found[1]["late"] is None
    assert [one["_corrupt_record"] for one in found] == [None, None, None, "{not JSON"]
    assert found[0]["_timestamp"].startswith("2023-11-1")
    assert found[0]["_timestamp"].endswith("+00:00")
    assert found[0]["_key"] == "key-0"
    assert json.loads(found[2]["_value"]) == FLIGHTS[2]
    assert found[0]["_headers"] is None


def test_other_values_are_text_or_bytes_and_tables_join(sql: Sql, cluster: StoredCluster) -> None:
    text = "select c.value, c.value from clicks c join orders o on c._offset = o._offset and o._partition = 0"
    joined = rows(sql(f"{text} order by c._offset limit 1", "--json"))
    assert list(joined[0]) == ["value", "value_2"]
    assert joined[0]["value"].startswith("c:")
    assert rows(sql("select value from `odd.name` order by _offset", "--json")) == [
        {"value": "//4="},
        {"value": "[1]"},
    ]
    (count,) = rows(sql("select count(*) n from orders", "--json"))
    assert count["n"] == sum(len(cluster.partitions["orders", number].readable) for number in range(3))


def test_a_query_has_the_columns_that_it_is_about_and_does_not_name(sql: Sql) -> None:
    """A NATURAL JOIN of tables without columns in common would be all pairs."""
    for other in ("clicks", "(from clicks) c"):
        (count,) = rows(sql(f"select count(*) n from flights natural join {other}", "--json"))
        assert count["n"] == 0
    for text in ("table flights", "from flights", "from flights |> where _partition < 9"):
        assert {"delay", "_offset", "_headers"} <= rows(sql(text, "--json"))[0].keys()
    assert {"delay", "_offset"} <= {one["col_name"] for one in rows(sql("desc flights", "--json"))}
    # A PIVOT has a row for each value of all other columns: here for each record.
    text = "select ua from flights pivot (count(delay) for carrier in ('UA' as ua))"
    assert len(rows(sql(text, "--json"))) == 4


def test_tables_csv_and_the_bound(sql: Sql) -> None:
    text = "select id, if(id = 1, null, 'a,\"b') x, array(id) y, repeat('z', 300) z from range(5)"
    done = sql(text, "--max", "2", "--format", "csv")
    assert done.status == 0
    assert done.err == "strandline: there are more rows than 2; --max prints more of them\n"
    assert [*csv.reader(io.StringIO(done.out))] == [
        ["id", "x", "y", "z"],
        ["0", 'a,"b', "[0]", "z" * 300],
        ["1", "", "[1]", "z" * 300],
    ]
    done = sql(text)
    assert done.err == ""
    lines = done.out.splitlines()
    assert lines[0].split() == ["id", "x", "y", "z"]
    assert lines[2].split()[1] == "NULL"
    assert lines[1].endswith("z…")
    assert lines[-1] == "(5 rows)"


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (
            "select * from nope",
            "there is no topic 'nope' in what is published, but clicks, flights, odd.name",
        ),
        ("select * from odd.name", "name with dots goes in backquotes, `odd.name`"),
        ("selekt 1", "PARSE_SYNTAX_ERROR"),
        ("select carier from flights", "Did you mean one of the following? [`carrier`, "),
        ("select 1/0", "DIVIDE_BY_ZERO"),
        (";", "there is no query"),
    ],
)
def test_what_is_wrong_is_one_line(sql: Sql, query: str, said: str) -> None:
    done = sql(query)
    assert done.out == ""
    assert done.status in (1, 2)
    assert said in done.err
    assert done.err.startswith("strandline: ")
    assert done.err.count("\n") == 1
    assert len(done.err) < 500


def test_an_earlier_checkpoint_that_is_not_there(sql: Sql) -> None:
    done = sql("select 1 from flights", "--at", "77")
    assert done.status in (1, 2)
    assert "there is no checkpoint 77 of all topics of cluster" in done.err
    assert done.err.count("\n") == 1


def test_no_other_output_comes_between(capfd: pytest.CaptureFixture[str]) -> None:
    with own_output() as output:
        os.write(1, b"noise of a library\n")
        output.write("a result\n")
    print("afterwards")
    assert tuple(capfd.readouterr()) == ("a result\nafterwards\n", "noise of a library\n")


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (['{"a": 1}', '{"a": 2.5, "b": null}'], "`a` DOUBLE, `b` STRING"),
        (['{"a": 1}', '{"a": "x"}'], "`a` STRING"),
        (['{"a": [1, null]}', '{"a": []}'], "`a` ARRAY<BIGINT>"),
        (['{"a": {"b": true}}', '{"a": {"c`": 1}}'], "`a` STRUCT<`b`: BOOLEAN, `c```: BIGINT>"),
        (['{"a": {"b": 1, "B": 2}}'], "`a` STRING"),
        (['{"a": 9223372036854775808}'], "`a` STRING"),
        (['{"a": {}}'], "`a` STRING"),
        (['{"a": 1}', "x", "y"], None),
        (['{"a": 1}', "x"], "`a` BIGINT"),
        (["1", "[2]"], None),
        ([], None),
        (['{"a": 1, "A": 2}'], None),
        ([json.dumps({str(number): 1 for number in range(MOST_FIELDS + 1)})], None),
        (['{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"], None),
    ],
)
def test_columns_are_inferred(values: list[str], wanted: str | None) -> None:
    found = infer(value.encode() for value in values)
    assert (None if found is None else ddl(found)) == wanted


def test_a_terminal_is_asked_for_queries_and_each_sees_what_is_new(
    sql: Sql, cluster: StoredCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = "select count(*) n from `odd.name`;"
    field = "select fresh n from grown where fresh is not null;"
    cluster.create_topic("grown", 1)
    asked = iter([count, "select nope from flights;", count, "select count(*) n from grown;", field, "exit"])

    def typed(prompt: str) -> str:
        line = next(asked)
        if line == count:
            cluster.upload(cluster.partitions["odd.name", 0].batch([b"more"]))
        elif line == field:
            cluster.upload(cluster.partitions["grown", 0].batch([b'{"fresh": 7}']))
        cluster.checkpoint()
        return line

    monkeypatch.setattr("builtins.input", typed)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    done = sql("--json")
    assert [one["n"] for one in rows(done)] == [3, 4, 0, 7]
    assert "nope" in done.err


def test_control_c_ends_a_query_and_its_jobs_without_a_trace(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    """PySpark's own handler asks Java to end them, from amid another question of the same thread."""
    running = spark.sparkContext.statusTracker()

    def interrupt() -> None:
        while not running.getActiveJobsIds():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    other = threading.Thread(target=interrupt)
    other.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            until_interrupted(spark, lambda: spark.range(10**13).selectExpr("max(id % 7)").collect())
    finally:
        other.join()
        signal.signal(signal.SIGINT, before)
    assert running.getActiveJobsIds() == []
    assert "Traceback" not in capfd.readouterr().err
