"""Each reason to refuse a program is reached, and names the place, the cause and a cure."""

from __future__ import annotations

import pytest

from strandline.snapshot.views.sql.programs import program_of
from strandline.statemachine.views.refusals import Code, Place, Refused

T = "CREATE TABLE t (a INT, b STRING, d DOUBLE, n BIGINT);\n"
U = "CREATE TABLE u (k STRING PRIMARY KEY, a INT) OPTIONS (mode 'upsert');\n"


def query(text: str) -> str:
    return f"{T}{U}CREATE VIEW v AS\n{text}"


RANKED = "(SELECT b, row_number() OVER (PARTITION BY b ORDER BY a) AS r FROM t)"
REFUSED = [
    # code, subject, line, column, program
    (Code.SYNTAX, "DROP", 1, 1, "DROP TABLE t"),
    (Code.SYNTAX, "the end", 1, 13, "CREATE TABLE"),
    (Code.SYNTAX, "the end", 1, 15, "CREATE TABLE t;"),
    (Code.SYNTAX, ",", 4, 11, query("SELECT a, , FROM t")),
    (Code.SYNTAX, "FROM", 4, 11, query("SELECT a, FROM t")),
    (Code.SYNTAX, "WHERE", 4, 15, query("SELECT a FROM WHERE a = 1")),
    (Code.SYNTAX, "INSERT", 4, 1, query("INSERT INTO t VALUES (1)")),
    (Code.UNKNOWN_NAME, "DECIMAL", 1, 19, "CREATE TABLE t (a DECIMAL(5))"),
    (Code.UNKNOWN_NAME, "colour", 1, 40, "CREATE TABLE t (a INT) OPTIONS (colour 'red')"),
    (
        Code.UNKNOWN_NAME,
        "topics",
        2,
        31,
        f"{T}CREATE VIEW v OPTIONS (topics 'x') AS SELECT DISTINCT a FROM t",
    ),
    (Code.UNKNOWN_NAME, "0", 2, 35, f"{T}CREATE VIEW v OPTIONS (partitions 0) AS SELECT DISTINCT a FROM t"),
    (Code.UNKNOWN_NAME, "z", 1, 14, "CREATE TABLE t (a INT, PRIMARY KEY (z)) OPTIONS (mode 'upsert')"),
    (Code.UNKNOWN_NAME, "w", 4, 15, query("SELECT a FROM w")),
    (Code.UNKNOWN_NAME, "c", 4, 11, query("SELECT a, c FROM t")),
    (Code.UNKNOWN_NAME, "x.a", 4, 8, query("SELECT x.a FROM t")),
    (Code.UNKNOWN_NAME, "x", 4, 8, query("SELECT x.* FROM t")),
    (Code.UNKNOWN_NAME, "9", 4, 8, query("SELECT a FROM t GROUP BY 9")),
    (Code.UNKNOWN_NAME, "column 2", 4, 11, query("SELECT a, n + 1 FROM t")),
    (Code.NAME_TAKEN, "T", 3, 14, f"{T}{U}CREATE TABLE T (a INT)"),
    (Code.NAME_TAKEN, "A", 1, 24, "CREATE TABLE t (a INT, A INT)"),
    (Code.NAME_TAKEN, "a", 4, 11, query("SELECT a, n AS a FROM t")),
    (Code.NAME_TAKEN, "t", 4, 8, query("SELECT t.a FROM t JOIN t ON t.a = t.a")),
    (Code.NAME_TAKEN, "mode", 1, 48, "CREATE TABLE t (a INT) OPTIONS (mode 'append', mode 'append')"),
    (Code.AMBIGUOUS_NAME, "a", 4, 8, query("SELECT a FROM t JOIN u ON t.b = u.k")),
    (Code.WRONG_TYPE, "a + b", 4, 8, query("SELECT a + b AS x FROM t")),
    (Code.WRONG_TYPE, "a = b", 4, 23, query("SELECT a FROM t WHERE a = b")),
    (Code.WRONG_TYPE, "a", 4, 23, query("SELECT n FROM t WHERE a")),
    (Code.WRONG_TYPE, "UPPER(n)", 4, 8, query("SELECT upper(n) AS x FROM t")),
    (Code.WRONG_TYPE, "CAST", 4, 13, query("SELECT CAST(b AS INT) AS x FROM t")),
    (Code.WRONG_TYPE, "SUM(b)", 4, 8, query("SELECT sum(b) AS x FROM t GROUP BY a")),
    (Code.WRONG_TYPE, "n", 4, 11, query("SELECT a, n FROM t GROUP BY a")),
    (Code.WRONG_TYPE, "UNION", 4, 8, query("SELECT a FROM t UNION SELECT b FROM t")),
    (Code.WRONG_TYPE, "UNION", 4, 8, query("SELECT a FROM t UNION SELECT a, n FROM t")),
    (Code.WRONG_TYPE, "CAST('today' AS DATE)", 4, 13, query("SELECT DATE 'today' AS x FROM t")),
    (Code.WRONG_TYPE, "99999999999999999999", 4, 8, query("SELECT 99999999999999999999 AS x FROM t")),
    (Code.UNSUPPORTED_SQL, "format 'avro'", 1, 40, "CREATE TABLE t (a INT) OPTIONS (format 'avro')"),
    (Code.UNKNOWN_NAME, "n", 4, 26, query("SELECT a FROM t ORDER BY n LIMIT 3")),
    (Code.UNSUPPORTED_SQL, "ORDER BY without LIMIT", 4, 8, query("SELECT a FROM t ORDER BY a")),
    (Code.UNSUPPORTED_SQL, "LIMIT without ORDER BY", 4, 8, query("SELECT a FROM t LIMIT 3")),
    (Code.UNSUPPORTED_SQL, "LIMIT 100000", 4, 8, query("SELECT a FROM t ORDER BY a LIMIT 100000")),
    (Code.UNSUPPORTED_SQL, "LEFT SEMI JOIN", 4, 32, query("SELECT a FROM t LEFT SEMI JOIN u ON b = k")),
    (
        Code.UNSUPPORTED_SQL,
        "a condition of the LEFT JOIN",
        4,
        8,
        query("SELECT t.a FROM t LEFT JOIN u ON t.b = u.k AND t.a > 3"),
    ),
    (Code.UNSUPPORTED_SQL, "USING of a FULL JOIN", 4, 29, query("SELECT t.b FROM t FULL JOIN u USING (a)")),
    (Code.NO_KEY, "v", 3, 13, query("SELECT t.a FROM t LEFT JOIN u ON t.b = u.k")),
    (
        Code.UNSUPPORTED_SQL,
        "row_number() without a bound",
        4,
        8,
        query(
            "SELECT a FROM (SELECT a, row_number() OVER (PARTITION BY b ORDER BY a) AS r FROM t) WHERE a < 3"
        ),
    ),
    (
        Code.UNSUPPORTED_SQL,
        "row_number() without a bound",
        4,
        8,
        query("SELECT a, row_number() OVER (ORDER BY a) AS r FROM t"),
    ),
    *(
        (Code.UNSUPPORTED_SQL, "row_number() without a bound", 4, 8, query(f"SELECT z.b {joins}"))
        for joins in (
            # All rows of the right side stay, and the last ON would leave out rows, not their partners.
            f"FROM u FULL JOIN {RANKED} z ON z.b = u.k AND z.r = 1",
            f"FROM u RIGHT JOIN {RANKED} z ON z.b = u.k AND z.r = 1",
            f"FROM {RANKED} z RIGHT JOIN u ON z.b = u.k JOIN t ON t.b = u.k AND z.r <= 2",
        )
    ),
    (
        Code.UNSUPPORTED_SQL,
        "row_number() without ORDER BY",
        4,
        26,
        query("SELECT a FROM (SELECT a, row_number() OVER (PARTITION BY b) AS r FROM t) WHERE r < 3"),
    ),
    (
        Code.UNSUPPORTED_SQL,
        "RANK() OVER (ORDER BY a) AS r",
        4,
        11,
        query("SELECT a, rank() OVER (ORDER BY a) AS r FROM t"),
    ),
    (Code.UNSUPPORTED_SQL, "this window", 4, 8, query("SELECT window(_timestamp, '1').end AS s FROM t")),
    (Code.UNSUPPORTED_SQL, "LIKE without a literal pattern", 4, 8, query("SELECT b LIKE b AS s FROM t")),
    (
        Code.UNSUPPORTED_SQL,
        "EXTRACT of century",
        4,
        29,
        query("SELECT extract(century FROM _offset) AS s FROM t"),
    ),
    (Code.UNSUPPORTED_SQL, "SUBSTRING(b, a, 2)", 4, 18, query("SELECT substring(b, a, 2) AS s FROM t")),
    (
        Code.UNSUPPORTED_SQL,
        "the JOIN of u without an equality",
        4,
        8,
        query("SELECT t.a FROM t JOIN u ON t.a < u.a"),
    ),
    (Code.UNSUPPORTED_SQL, "the JOIN of u without an equality", 4, 8, query("SELECT t.a FROM t, u")),
    (Code.UNSUPPORTED_SQL, "STDDEV", 4, 8, query("SELECT stddev(a) AS s FROM t GROUP BY b")),
    (
        Code.UNSUPPORTED_SQL,
        "COUNT(DISTINCT a, b)",
        4,
        8,
        query("SELECT count(DISTINCT a, b) AS s FROM t"),
    ),
    (Code.UNSUPPORTED_SQL, "COUNT(DISTINCT *)", 4, 8, query("SELECT count(DISTINCT *) AS s FROM t")),
    (
        Code.UNSUPPORTED_SQL,
        "a window function over groups",
        4,
        8,
        query("SELECT a, row_number() OVER (ORDER BY a) AS r FROM t GROUP BY a"),
    ),
    (
        Code.UNSUPPORTED_SQL,
        "an aggregate of an aggregate",
        4,
        8,
        query("SELECT sum(sum(a)) AS s FROM t GROUP BY b"),
    ),
    (Code.UNSUPPORTED_SQL, "EXCEPT", 4, 8, query("SELECT a FROM t EXCEPT SELECT a FROM u")),
    (Code.UNSUPPORTED_SQL, "the DECIMAL 1.5", 4, 8, query("SELECT 1.5 AS x FROM t")),
    (
        Code.UNSUPPORTED_SQL,
        "NOT IN a query",
        4,
        27,
        query("SELECT a FROM t WHERE NOT a IN (SELECT a FROM t)"),
    ),
    (
        Code.UNSUPPORTED_SQL,
        "IN of a query of several columns",
        4,
        23,
        query("SELECT a FROM t WHERE a IN (SELECT a, k FROM u)"),
    ),
    (
        Code.UNSUPPORTED_SQL,
        "the correlated condition u.a < t.a",
        4,
        38,
        query("SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a < t.a)"),
    ),
    (
        Code.UNSUPPORTED_SQL,
        "a correlated query with groups",
        4,
        23,
        query("SELECT a FROM t WHERE a IN (SELECT max(a) FROM u WHERE u.k = t.b)"),
    ),
    (
        Code.UNSUPPORTED_SQL,
        "a correlated query with LIMIT",
        4,
        38,
        query("SELECT a FROM t WHERE EXISTS (SELECT k FROM u WHERE u.a = t.a ORDER BY 1 LIMIT 1)"),
    ),
    (Code.WRONG_TYPE, "the subquery", 4, 23, query("SELECT a FROM t WHERE a IN (SELECT k FROM u)")),
    (Code.UNSUPPORTED_SQL, "SELECT without FROM", 4, 8, query("SELECT 1 AS x")),
    (
        Code.UNSUPPORTED_SQL,
        "date_trunc to eon",
        4,
        8,
        query("SELECT date_trunc('eon', _timestamp) AS x FROM t"),
    ),
    (Code.UNSUPPORTED_SQL, "SQRT(d)", 4, 8, query("SELECT sqrt(d) AS x FROM t")),
    (Code.UNSUPPORTED_SQL, "MY_OWN(d)", 4, 8, query("SELECT my_own(d) AS x FROM t")),
    (Code.NOT_DETERMINISTIC, "now", 4, 8, query("SELECT now() AS x FROM t")),
    (Code.NOT_DETERMINISTIC, "rand", 4, 8, query("SELECT rand() AS x FROM t")),
    (Code.NOT_DETERMINISTIC, "currenttimestamp", 4, 8, query("SELECT current_timestamp() AS x FROM t")),
    (Code.RECURSIVE_VIEW, "v", 4, 15, query("SELECT a FROM v")),
    (Code.RECURSIVE_VIEW, "w", 4, 15, query("SELECT a FROM w; CREATE VIEW w AS SELECT DISTINCT a FROM t")),
    (
        Code.RECURSIVE_VIEW,
        "WITH RECURSIVE",
        4,
        16,
        query("WITH RECURSIVE r AS (SELECT a FROM t) SELECT a FROM r"),
    ),
    (Code.NO_KEY, "v", 3, 13, query("SELECT a FROM t")),
    (Code.NO_KEY, "v", 3, 13, query("SELECT count(*) AS n FROM t GROUP BY a")),
    (Code.NO_KEY, "v", 3, 13, query("SELECT _offset, a FROM t")),
    (Code.NO_KEY, "v", 3, 13, query("SELECT _partition, _offset FROM t UNION ALL SELECT a, n FROM t")),
    (
        Code.NO_KEY,
        "v",
        3,
        13,
        query(
            "SELECT x.a, y.b, y.n FROM (SELECT DISTINCT a FROM t) x FULL JOIN (SELECT DISTINCT b, n FROM t) y"
            " ON x.a = y.n"
        ),
    ),
    (Code.NO_KEY, "table", 1, 14, "CREATE TABLE t (a INT PRIMARY KEY)"),
    (Code.NO_KEY, "table", 1, 14, "CREATE TABLE t (a INT) OPTIONS (mode 'upsert')"),
]


@pytest.mark.parametrize(("code", "subject", "line", "column", "text"), REFUSED)
def test_a_program_is_refused_with_code_subject_place_and_cure(
    code: Code, subject: str, line: int, column: int, text: str
) -> None:
    with pytest.raises(Refused) as refused:
        program_of(text)
    found = refused.value
    place = Place(line, column) if line else None
    assert (found.code, found.subject, found.place) == (code, subject, place), str(found)
    assert found.cure
    assert "\n" not in str(found)


def test_every_code_is_reached() -> None:
    assert {code for code, *_ in REFUSED} == {*Code}


def test_a_program_that_is_nested_too_deep_is_refused() -> None:
    with pytest.raises(Refused, match="nested too deep"):
        program_of(query(f"SELECT a FROM t WHERE {'(' * 5000}a = 1{')' * 5000}"))


NULLABLE = "SELECT DISTINCT n AS m FROM t"


@pytest.mark.parametrize(
    "side",
    [
        "SELECT k AS b, a FROM u",
        "SELECT _partition, _offset, a FROM t",
        "SELECT a, count(*) AS n FROM t WHERE a > 1 GROUP BY a",
        "SELECT DISTINCT a FROM t WHERE NOT a + 1 IS NULL AND b <> 'x'",
        "SELECT DISTINCT coalesce(a, 0) AS a, b FROM t",
        "SELECT DISTINCT if(b LIKE 'x%', length(b), 0) AS a FROM t",
        "SELECT DISTINCT a IS NULL AS c, a FROM t",
        "SELECT DISTINCT t.a FROM t JOIN u ON t.a = u.a",
        "SELECT a, r FROM (SELECT a, row_number() OVER (ORDER BY a) AS r FROM t) WHERE r < 3",
        "SELECT 2 AS a FROM u UNION SELECT a FROM t WHERE a > 0",
        "SELECT DISTINCT a FROM (SELECT count(a) AS a FROM t GROUP BY b)",
    ],
)
def test_a_full_join_has_a_key_where_a_key_of_one_side_is_never_null(side: str) -> None:
    program_of(query(f"SELECT x.*, y.m FROM ({side}) x FULL JOIN ({NULLABLE}) y ON x.a = y.m"))


@pytest.mark.parametrize(
    "side",
    [
        "SELECT DISTINCT a FROM t WHERE a > 1 OR b = 'x'",
        "SELECT DISTINCT if(a > 1, a, NULL) AS a FROM t",
        "SELECT DISTINCT u.a FROM t LEFT JOIN u ON t.b = u.k",
        "SELECT a FROM t WHERE a > 0 UNION SELECT a FROM u",
        "SELECT DISTINCT a FROM (SELECT max(a) AS a FROM t GROUP BY b)",
        "SELECT max(a) AS a FROM t",
    ],
)
def test_a_full_join_has_no_key_where_keys_of_both_sides_may_be_null(side: str) -> None:
    with pytest.raises(Refused) as refused:
        program_of(query(f"SELECT * FROM ({side}) x FULL JOIN ({NULLABLE}) y ON x.a = y.m"))
    assert refused.value.code is Code.NO_KEY
