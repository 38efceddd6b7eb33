"""Views over tables that change, each against DuckDB's answer to the same query over what the tables have."""

from __future__ import annotations

import contextlib
import datetime as dt
import random
from collections.abc import Callable, Iterator
from typing import Final

import duckdb
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from strandline.snapshot.views.building import circuit_of
from strandline.snapshot.views.circuit import Circuit
from strandline.snapshot.views.errors import ViewError
from strandline.snapshot.views.evaluate import DTYPES
from strandline.snapshot.views.json_records import Record, RecordReader, batch_of
from strandline.snapshot.views.sink import Phase
from strandline.snapshot.views.sink import Sink as SinkOperator
from strandline.snapshot.views.sql.programs import program_of
from strandline.snapshot.views.zset import ZSet, zset
from strandline.statemachine.views.identity import digest
from strandline.statemachine.views.plan import LinearAggregate, Source, Upsert, operators
from strandline.statemachine.views.program import Program
from tests.snapshot.views.circuits import Topic, follow
from tests.snapshot.views.deltas import Row
from tests.snapshot.views.sql.answers import check

TABLES: Final = """
CREATE TABLE flights (carrier STRING, tailnum STRING, origin STRING, arr_delay DOUBLE, distance BIGINT,
        hour INT);
CREATE TABLE planes (tailnum STRING PRIMARY KEY, maker STRING, seats INT) OPTIONS (mode 'upsert');
CREATE TABLE airports (faa STRING NOT NULL, city STRING, altitude BIGINT, PRIMARY KEY (faa))
  OPTIONS (topic 'places', mode 'upsert');
"""
QUERIES: Final = {
    "filter": """SELECT _partition, _offset, carrier, distance FROM flights
        WHERE arr_delay > 10 AND carrier IN ('AA', 'UA') AND NOT hour BETWEEN 3 AND 5""",
    "group": """SELECT carrier, count(*) AS n, count(arr_delay) AS d, sum(distance) AS s, avg(arr_delay) AS a,
        sum(arr_delay) AS t, avg(hour) AS h FROM flights GROUP BY carrier""",
    "extremes": """SELECT carrier, min(arr_delay) AS a, max(arr_delay) AS b, min(origin) AS c,
        max(tailnum) AS d, min(_timestamp) AS e, max(hour) AS f, count(*) AS n, avg(distance) AS g
        FROM flights GROUP BY carrier""",
    "extremes of what changes": """SELECT p.maker, max(p.seats) AS most, min(p.seats) AS least, max(p.tailnum)
        AS last, count(DISTINCT p.seats) AS sizes, sum(DISTINCT p.seats) AS s, avg(DISTINCT p.seats) AS a
        FROM planes p GROUP BY p.maker""",
    "extremes with filters": """SELECT maker, max(seats) FILTER (WHERE seats < 150) AS small,
        count(DISTINCT seats) FILTER (WHERE seats > 50) AS n, max(seats) - min(seats) AS range
        FROM planes GROUP BY maker HAVING max(seats) > 20""",
    "all rows": """SELECT count(*) AS n, count(DISTINCT maker) AS makers, sum(seats) AS s, max(seats) AS m,
        1 AS one FROM planes WHERE seats > 280""",
    "all rows if there are enough": """SELECT count(*) AS n, min(seats) AS least FROM planes WHERE seats > 100
        HAVING count(*) % 2 = 0""",
    "no rows": "SELECT count(*) AS n, sum(seats) AS s, count(seats) AS c FROM planes WHERE maker = 'none'",
    "all rows as a table": """SELECT f.carrier, count(*) AS n, sum(t.most - f.hour) AS s
        FROM (SELECT carrier, hour, 1 AS one FROM flights) f
        JOIN (SELECT 1 AS one, max(hour) AS most FROM flights) t ON t.one = f.one GROUP BY f.carrier""",
    "left join": """SELECT f._partition, f._offset, f.carrier, p.maker, p.seats FROM flights f
        LEFT JOIN planes p ON p.tailnum = f.tailnum AND p.seats > 150 WHERE f.hour < 12""",
    "left join and nothing": """SELECT p.tailnum, a.city FROM planes p LEFT JOIN airports a ON a.faa = p.maker
        WHERE a.city IS NULL""",
    "left joins and group": """SELECT coalesce(p.maker, 'none') AS maker, a.city, count(*) AS n,
        count(p.seats) AS s
        FROM flights f LEFT JOIN planes p USING (tailnum) LEFT JOIN airports a ON a.faa = f.origin
        AND a.altitude > 50 GROUP BY 1, 2""",
    "right join": """SELECT a.faa, a.city, count(f.hour) AS n, count(*) AS m FROM flights f
        JOIN planes p ON p.tailnum = f.tailnum AND f.hour < p.seats RIGHT JOIN airports a ON a.faa = f.origin
        GROUP BY a.faa, a.city""",
    "full join": """SELECT x.maker, x.n, y.city, y.m
        FROM (SELECT maker, count(*) AS n FROM planes GROUP BY maker) x FULL JOIN (SELECT city, count(*) AS
        m FROM airports WHERE city IS NOT NULL GROUP BY city) y ON x.n = y.m""",
    "full join where nothing is true": """SELECT p.tailnum, a.faa FROM planes p FULL JOIN airports a
        ON a.altitude = p.seats WHERE 'a' LIKE 'b%'""",
    "one condition before and behind a right join": """SELECT a.faa, a.city, count(*) AS n, count(f.hour) AS m
        FROM flights f JOIN planes p ON p.tailnum = f.tailnum AND f.hour > 9
        RIGHT JOIN airports a ON a.altitude % 24 = f.hour
        JOIN flights g ON g.origin = a.faa AND f.hour > 9 GROUP BY a.faa, a.city""",
    "full join of facts": """SELECT count(*) AS n, count(f.hour) AS h, count(p.tailnum) AS t,
        sum(p.seats) AS s FROM flights f FULL OUTER JOIN planes p ON f.tailnum = p.tailnum""",
    "in a query": """SELECT origin, count(*) AS n FROM flights WHERE tailnum IN (SELECT tailnum FROM planes
        WHERE seats > 100) AND hour > 3 GROUP BY origin""",
    "in groups": """SELECT tailnum, seats FROM planes WHERE tailnum IN (SELECT tailnum FROM flights
        GROUP BY tailnum HAVING count(*) > 12)""",
    "in the first of distinct ones": """SELECT tailnum, seats FROM planes WHERE maker IN (SELECT DISTINCT
        maker FROM planes WHERE maker IS NOT NULL ORDER BY 1 LIMIT 2)""",
    "exists": """SELECT a.faa, a.city FROM airports a WHERE EXISTS (SELECT 1 FROM flights f
        JOIN planes p ON p.tailnum = f.tailnum WHERE f.origin = a.faa AND p.seats > 250)""",
    "not exists": """SELECT p.tailnum, p.maker FROM planes p WHERE NOT EXISTS (SELECT * FROM flights f
        WHERE f.tailnum = p.tailnum AND f.hour = 5 AND f.carrier = 'AA') AND p.seats > 50""",
    "not exists at all": "SELECT faa FROM airports WHERE NOT EXISTS (SELECT 1 FROM planes WHERE seats > 290)",
    "in and not exists": """SELECT f.carrier, count(*) AS n FROM flights f
        WHERE f.origin IN (SELECT faa FROM airports WHERE altitude > 100)
        AND NOT EXISTS (SELECT 1 FROM planes p WHERE p.tailnum = f.tailnum AND p.seats = f.hour)
        GROUP BY f.carrier""",
    "first of each": """SELECT tailnum, maker, seats, r FROM (SELECT *, row_number() OVER (PARTITION BY maker
        ORDER BY seats DESC NULLS LAST, tailnum) AS r FROM planes) WHERE r <= 3""",
    "latest": """WITH ranked AS (SELECT carrier, origin, distance,
        row_number() OVER (PARTITION BY carrier, origin ORDER BY _timestamp DESC) AS r FROM flights WHERE
        hour > 2)
        SELECT carrier, origin, distance FROM ranked WHERE r = 1""",
    "first of each before a right join": """SELECT a.faa, a.city, z.tailnum, z.seats FROM
        (SELECT *, row_number() OVER (PARTITION BY maker ORDER BY seats DESC NULLS LAST, tailnum) AS r FROM
        planes) z JOIN (SELECT DISTINCT tailnum FROM flights) f ON f.tailnum = z.tailnum AND z.r <= 2
        RIGHT JOIN airports a ON a.altitude % 3 = z.seats % 3""",
    "the second": """SELECT maker, tailnum FROM (SELECT maker, tailnum, row_number() OVER (PARTITION BY maker
        ORDER BY tailnum) AS r FROM planes) WHERE r = 2""",
    "limit": "SELECT tailnum, seats FROM planes ORDER BY seats DESC NULLS LAST, tailnum LIMIT 7",
    "limit of groups": """SELECT origin, hour, count(*) AS n FROM flights WHERE origin IS NOT NULL
        GROUP BY origin, hour ORDER BY n DESC, origin, hour LIMIT 5""",
    "texts and times": """SELECT year(_timestamp) AS y, hour(_timestamp) AS h, substring(tailnum, 2, 1) AS t,
        count(*) AS n FROM flights WHERE tailnum LIKE '%1_' OR tailnum NOT LIKE 'N%' GROUP BY 1, 2, 3""",
    "having": """SELECT origin, carrier, sum(distance) AS s FROM flights GROUP BY origin, carrier
        HAVING count(*) > 5 AND sum(distance) > 1000""",
    "join": """SELECT f._partition, f._offset, f.carrier, p.seats, p.maker FROM flights f JOIN planes p
        USING (tailnum)
        WHERE p.seats > 100 OR f.hour = 1""",
    "join and group": """SELECT p.maker, f.origin, count(*) AS n, sum(f.distance * p.seats) AS s
        FROM flights f, planes p WHERE f.tailnum = p.tailnum GROUP BY p.maker, f.origin""",
    "three tables": """SELECT a.city, count(*) AS n, sum(p.seats) AS s FROM flights AS f
        JOIN planes p ON p.tailnum = f.tailnum JOIN airports a ON f.origin = a.faa AND p.seats > a.altitude
        WHERE f.arr_delay IS NOT NULL GROUP BY a.city""",
    "distinct": "SELECT DISTINCT origin, hour FROM flights WHERE carrier <> 'AA'",
    "union": "SELECT origin AS place FROM flights UNION SELECT city FROM airports",
    "union all": """SELECT x.place, count(*) AS n, sum(x.v) AS v FROM (SELECT origin AS place, hour AS v
        FROM flights
        UNION ALL SELECT faa, altitude FROM airports) AS x GROUP BY x.place""",
    "with": """WITH late AS (SELECT carrier, arr_delay / 60 AS hours FROM flights WHERE arr_delay > 0)
        SELECT carrier, count(*) AS n, count(*) FILTER (WHERE hours > 1) AS long,
        sum(CASE WHEN hours < 1 THEN hours ELSE 1 END) AS s FROM late GROUP BY 1""",
    "expressions": """SELECT distance % 7 AS d, upper(coalesce(carrier, 'no')) || '!' AS c, count(*) AS n,
        sum(abs(hour - 12) * 2) AS h FROM flights GROUP BY d, c""",
    "times": """SELECT date_trunc('hour', _timestamp) AS t, count(*) AS n FROM flights
        WHERE _timestamp >= TIMESTAMP '2026-01-01 02:00:00' GROUP BY 1""",
    "self-join": """SELECT a.carrier, count(*) AS n FROM planes p JOIN flights a ON a.tailnum = p.tailnum
        JOIN flights b ON b.tailnum = a.tailnum AND b.hour = a.hour WHERE a.origin <> b.origin GROUP BY
        a.carrier""",
    "upsert": "SELECT tailnum, seats + 1 AS more, if(seats > 100, 'large', 'small') AS size FROM planes",
    "nothing": """SELECT hour, count(1) AS n FROM flights
        WHERE carrier = 'AA' AND carrier = 'UA' GROUP BY hour""",
}
NOTHING: Final = ("nothing", "full join where nothing is true")
OVER_VIEW: Final = "SELECT n, count(*) AS carriers, sum(s) AS s FROM v GROUP BY n"
START: Final = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
STEPS, ROWS = 6, 150


class Tables:
    """Three tables that grow and change at random."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.flights: list[Row] = []
        self.planes: dict[str, Row] = {}
        self.airports: dict[str, Row] = {}

    def step(self) -> dict[str, tuple[list[Row], list[int]]]:
        """Change all tables; the rows and weights of each topic's records."""
        pick = self.random.choice
        flights: list[Row] = []
        for _ in range(ROWS):
            number = len(self.flights) + len(flights)
            place = (number % 3, number, START + dt.timedelta(minutes=number))
            carrier, origin = pick(["AA", "UA", "DL", None]), pick(["JFK", "LGA", "EWR", None])
            delay = pick([None, round(self.random.uniform(-60, 200), 1)])
            distance, hour = pick([None, self.random.randrange(3000)]), self.random.randrange(24)
            tail = f"N{self.random.randrange(40)}"
            flights.append((carrier, tail, origin, delay, distance, hour, *place))
        self.flights += flights
        planes = self._upserts(self.planes, self._plane)
        airports = self._upserts(self.airports, self._airport)
        return {"flights": (flights, [1] * len(flights)), "planes": planes, "places": airports}

    def _plane(self) -> Row:
        pick = self.random.choice
        maker, seats = pick(["Airbus", "Boeing", None]), pick([None, self.random.randrange(300)])
        return f"N{self.random.randrange(40)}", maker, seats

    def _airport(self) -> Row:
        pick = self.random.choice
        city = pick(["New York", "Newark", "JFK"])
        return pick(["JFK", "LGA", "EWR", "SFO"]), city, self.random.randrange(200)

    def _upserts(self, table: dict[str, Row], row: Callable[[], Row]) -> tuple[list[Row], list[int]]:
        rows: list[Row] = []
        weights: list[int] = []
        for _ in range(12):
            one = row()
            table.pop(one[0], None)
            kept = self.random.random() < 0.7
            if kept:
                table[one[0]] = one
            rows.append(one if kept else (one[0], None, None))
            weights.append(1 if kept else -1)
        return rows, weights

    def ask(self, query: str) -> list[Row]:
        columns = {
            "flights": (FLIGHTS, self.flights),
            "planes": (("tailnum", "maker", "seats"), [*self.planes.values()]),
            "airports": (("faa", "city", "altitude"), [*self.airports.values()]),
        }
        with duckdb.connect() as database:
            for name, (names, rows) in columns.items():
                frame = pl.DataFrame(rows, schema=[*names], orient="row", infer_schema_length=None)
                # DuckDB's times without a zone are compared as they are written, ours are UTC.
                frame = frame.with_columns(pl.col(pl.Datetime).dt.replace_time_zone(None))
                database.register(name, pa.Table.from_batches(frame.to_arrow().to_batches()))
            return database.execute(query).fetchall()


FLIGHTS: Final = (
    "carrier", "tailnum", "origin", "arr_delay", "distance", "hour", "_partition", "_offset", "_timestamp",
)  # fmt: skip
COLUMNS: Final = {
    "flights": FLIGHTS,
    "planes": ("tailnum", "maker", "seats"),
    "places": ("faa", "city", "altitude"),
}


def deltas(program: Program, records: dict[str, tuple[list[Row], list[int]]]) -> Iterator[tuple[str, ZSet]]:
    """The records as each source of a program takes them: its columns of its topic."""
    for name, plan in program.operators().items():
        if isinstance(plan, Source):
            rows, weights = records[plan.topic]
            places = [COLUMNS[plan.topic].index(column) for column, _ in plan.columns]
            chosen = [[row[place] for place in places] for row in rows]
            yield name, zset(tuple(DTYPES[kind] for _, kind in plan.columns), chosen, weights)


def dump(circuit: Circuit, sink: str, topic: Topic) -> None:
    """Write what is there before any record, as a version is filled; nothing where no operator keeps rows."""
    operator = circuit.operators[sink]
    assert isinstance(operator, SinkOperator)
    with contextlib.suppress(ViewError):
        (content,) = circuit.contents(sink)
        operator.move(Phase.DUMPING)
        topic.take(operator.dump(content))


@pytest.mark.parametrize("name", QUERIES)
def test_a_view_is_its_query_after_every_step(name: str) -> None:
    program = program_of(f"{TABLES} CREATE VIEW v AS {QUERIES[name]};")
    circuit = circuit_of(program)
    (view,) = program.views
    assert view.sink is not None
    topic, tables = Topic(view.sink.key), Tables(len(name))
    dump(circuit, digest(view.sink), topic)
    follow(circuit)
    seen = 0
    for _ in range(STEPS):
        for changes in circuit.step(dict(deltas(program, tables.step()))).values():
            topic.take(changes)
        wanted = tables.ask(QUERIES[name])
        check([*topic.rows.values()], wanted)
        seen += len(wanted)
    if name != "filter":  # its rows are in the topic alone
        (content,) = circuit.contents(digest(view.sink))
        check(content.rows.rows(), wanted)
        assert set(content.weights.tolist()) <= {1}
    assert seen or name in NOTHING


def test_a_query_in_brackets_guards_what_is_asked_of_its_rows() -> None:
    """Both conditions may fail, and as one condition the division would come first."""
    program = program_of(
        "CREATE TABLE t (b STRING, d DOUBLE); CREATE VIEW v AS SELECT DISTINCT b "
        "FROM (SELECT b, d FROM t WHERE d + 0 <> 0) AS x WHERE 1 / d > 1;"
    )
    circuit = circuit_of(program)
    follow(circuit)
    (source,) = (name for name, plan in program.operators().items() if isinstance(plan, Source))
    rows = zset((pl.String(), pl.Float64()), [("zero", 0.0), ("half", 0.5), ("two", 2.0)])
    (changes,) = circuit.step({source: rows}).values()
    assert changes.rows.rows() == [("half",)]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_all_operators_of_a_table_skip_the_same_records(mode: str) -> None:
    """One that read the join's columns alone took a record that the other skipped: the shop had no row."""
    key = "NOT NULL PRIMARY KEY" if mode == "upsert" else ""
    program = program_of(
        "CREATE TABLE shops (shop STRING NOT NULL PRIMARY KEY) OPTIONS (mode 'upsert');"
        f"CREATE TABLE sales (id STRING {key}, shop STRING, amount BIGINT)"
        f" OPTIONS (mode '{mode}', on_error 'skip');"
        "CREATE VIEW v AS SELECT s.shop, count(x.amount) AS n FROM shops s"
        " LEFT JOIN sales x ON x.shop = s.shop GROUP BY s.shop;"
    )
    circuit = circuit_of(program)
    follow(circuit)
    records = {
        "shops": batch_of([Record(0, 0, 0, b"a", b"{}")]),
        "sales": batch_of([Record(0, 0, 0, b"1", b'{"id": "1", "shop": "a", "amount": "many"}')]),
    }
    keys = {each.input: each.key for each in program.operators().values() if isinstance(each, Upsert)}
    read = {
        name: RecordReader(plan, keys.get(plan)).rows(records[plan.topic])
        for name, plan in program.operators().items()
        if isinstance(plan, Source)
    }
    (changes,) = circuit.step(read).values()
    assert changes.rows.rows() == [("a", 0)]


def test_a_view_over_a_view_shares_its_operators() -> None:
    over = f"{TABLES} CREATE VIEW v AS {QUERIES['group']}; CREATE VIEW w AS {OVER_VIEW};"
    program = program_of(over)
    first, second = program.views
    kept, also = ({each for each in operators(view.rows) if each.inputs} for view in (first, second))
    assert any(isinstance(each, LinearAggregate) for each in kept & also)
    circuit = circuit_of(program)
    follow(circuit)
    tables = Tables(5)
    assert second.sink is not None
    topic = Topic(second.sink.key)
    for _ in range(STEPS):
        topic.take(circuit.step(dict(deltas(program, tables.step())))[digest(second.sink)])
    check([*topic.rows.values()], tables.ask(f"WITH v AS ({QUERIES['group']}) {OVER_VIEW}"))
