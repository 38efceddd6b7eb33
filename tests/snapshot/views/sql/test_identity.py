"""Identity: what is the same whatever it is called, what is not, and that views leave each other alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.snapshot.views.sql.programs import program_of
from strandline.statemachine.views import expressions, identity
from strandline.statemachine.views.identity import digest
from strandline.statemachine.views.plan import LinearAggregate, operators
from strandline.statemachine.views.program import Fate, Program, difference
from tests.snapshot.views.deltas import FEW

TABLES = """
CREATE TABLE flights (carrier STRING, tailnum STRING, origin STRING, delay DOUBLE, distance BIGINT);
CREATE TABLE planes (tailnum STRING PRIMARY KEY, seats INT) OPTIONS (mode 'upsert');
"""
SAME = {
    "aliases": (
        "SELECT f.carrier, count(*) AS n FROM flights f WHERE f.delay > 0 GROUP BY f.carrier",
        "SELECT carrier, count(*) AS n FROM flights AS x WHERE delay > 0 GROUP BY x.carrier",
    ),
    "order of conjuncts": (
        "SELECT carrier, count(*) AS n FROM flights WHERE delay > 0 AND distance < 9 AND origin = 'JFK' "
        "GROUP BY 1",
        "SELECT carrier, count(*) AS n FROM flights WHERE (origin = 'JFK' AND distance < 9) AND delay > "
        "0 GROUP BY 1",
    ),
    "sides of an equality and of a comparison": (
        "SELECT DISTINCT carrier FROM flights WHERE origin = 'JFK' AND distance > 3",
        "SELECT DISTINCT carrier FROM flights WHERE 3 < distance AND 'JFK' = origin",
    ),
    "conditions of a join": (
        "SELECT p.seats, count(*) AS n FROM flights f JOIN planes p ON f.tailnum = p.tailnum AND "
        "p.seats > 9 GROUP BY 1",
        "SELECT b.seats, count(*) AS n FROM flights a, planes b WHERE b.seats > 9 AND b.tailnum = "
        "a.tailnum GROUP BY 1",
    ),
    "USING": (
        "SELECT seats, count(*) AS n FROM flights f JOIN planes p ON f.tailnum = p.tailnum GROUP BY seats",
        "SELECT seats, count(*) AS n FROM flights JOIN planes USING (tailnum) GROUP BY seats",
    ),
    "a query in brackets": (
        "SELECT carrier, sum(distance) AS d FROM flights WHERE delay > 0 GROUP BY carrier",
        "WITH w AS (SELECT * FROM flights WHERE delay > 0) SELECT carrier, sum(distance) AS d FROM "
        "(SELECT * FROM w) GROUP BY 1",
    ),
    "count of a number": (
        "SELECT carrier, count(*) AS n FROM flights GROUP BY carrier",
        "SELECT carrier, count(1) AS n FROM flights GROUP BY carrier",
    ),
}
OTHER = {
    "another bound": ("SELECT DISTINCT carrier FROM flights WHERE distance > 3",
                      "SELECT DISTINCT carrier FROM flights WHERE distance > 4"),
    "another side": ("SELECT DISTINCT carrier FROM flights WHERE distance > 3",
                     "SELECT DISTINCT carrier FROM flights WHERE distance < 3"),
    "another column": ("SELECT DISTINCT carrier FROM flights", "SELECT DISTINCT origin FROM flights"),
    "another name of a column in the topic": ("SELECT DISTINCT carrier AS a FROM flights",
                                              "SELECT DISTINCT carrier AS b FROM flights"),
    "the other order of columns": ("SELECT DISTINCT carrier, origin FROM flights",
                                   "SELECT DISTINCT origin, carrier FROM flights"),
    "another function": ("SELECT carrier, sum(distance) AS n FROM flights GROUP BY carrier",
                         "SELECT carrier, avg(distance) AS n FROM flights GROUP BY carrier"),
    "OR for AND": ("SELECT DISTINCT carrier FROM flights WHERE distance > 3 AND delay > 1",
                   "SELECT DISTINCT carrier FROM flights WHERE distance > 3 OR delay > 1"),
}  # fmt: skip


def program(*queries: str, tables: str = TABLES) -> Program:
    views = "".join(f"CREATE VIEW v{number} AS {query};\n" for number, query in enumerate(queries))
    return program_of(tables + views)


@pytest.mark.parametrize("name", SAME)
def test_what_is_only_written_otherwise_is_the_same(name: str) -> None:
    one, other = (program(query) for query in SAME[name])
    compared = difference(one, other)
    assert (compared.new, compared.dropped) == ((), ())
    assert [change.fate for change in compared.views] == [Fate.UNCHANGED]


@pytest.mark.parametrize("name", OTHER)
def test_what_means_something_else_is_another(name: str) -> None:
    one, other = (program(query) for query in OTHER[name])
    compared = difference(one, other)
    assert compared.new
    assert [change.fate for change in compared.views] == [Fate.MODIFIED]


def test_the_order_of_select_and_group_by_changes_no_state() -> None:
    one = program(
        "SELECT carrier, origin, count(*) AS n, sum(distance) AS d FROM flights GROUP BY carrier, origin"
    )
    other = program(
        "SELECT sum(distance) AS d, count(*) AS n, origin, carrier FROM flights GROUP BY origin, carrier"
    )
    kept = difference(one, other).kept
    plans = one.operators()
    assert any(isinstance(plans[each], LinearAggregate) for each in kept)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("flights (carrier", "flights (added INT, carrier"),
        ("seats INT)", "seats INT, more STRING)"),
    ],
)
def test_columns_that_a_view_does_not_use_do_not_count(old: str, new: str) -> None:
    queries = [pair[0] for pair in SAME.values() if "SELECT *" not in pair[0]]
    changed = program(*queries, tables=TABLES.replace(old, new))
    assert difference(program(*queries), changed).new == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("delay DOUBLE, distance BIGINT);", "delay DOUBLE, distance BIGINT) OPTIONS (topic 'other');"),
        ("delay DOUBLE, distance BIGINT);", "delay DOUBLE, distance BIGINT) OPTIONS (on_error 'skip');"),
        ("distance BIGINT", "distance INT"),
    ],
)
def test_what_a_table_takes_from_its_topic_counts(old: str, new: str) -> None:
    query = "SELECT carrier, sum(distance) AS d FROM flights GROUP BY carrier"
    changed = difference(program(query), program(query, tables=TABLES.replace(old, new)))
    assert changed.kept == ()


EVERY_COLUMN = "SELECT *, _partition, _offset, _timestamp FROM flights"
"""A view whose source is the one that each other view begins with, before unused columns are left out."""
VIEWS = st.lists(
    st.sampled_from([query for pair in (*SAME.values(), *OTHER.values()) for query in pair]), max_size=6
)


@FEW
@given(VIEWS, VIEWS, st.sampled_from([pair[0] for pair in (*SAME.values(), *OTHER.values())]))
def test_other_views_never_change_a_views_operators(before: list[str], after: list[str], query: str) -> None:
    alone = [digest(each) for each in operators(program(query).views[0].root)]
    among = program(*before, query, *after).views[len(before)]
    assert [digest(each) for each in operators(among.root)] == alone


def test_a_view_of_every_column_changes_no_other() -> None:
    query = SAME["aliases"][0]
    assert {*program(query).operators()} <= {*program(EVERY_COLUMN, query).operators()}


def test_fates() -> None:
    first, second, third = (
        f"SELECT DISTINCT {name} FROM flights" for name in ("carrier", "origin", "tailnum")
    )
    old = program_of(
        f"{TABLES} CREATE VIEW a AS {first}; CREATE VIEW b AS {second}; CREATE VIEW c AS {third};"
    )
    names = {"a": first, "d": second, "c": first, "e": first}
    text = TABLES + "".join(f"CREATE VIEW {name} AS {query};" for name, query in names.items())
    fates = [(change.name, change.fate, change.was) for change in difference(old, program_of(text)).views]
    assert fates == [
        ("a", Fate.UNCHANGED, None),
        ("d", Fate.RENAMED, "b"),
        ("c", Fate.MODIFIED, None),
        ("e", Fate.NEW, None),
    ]
    dropped = difference(old, program(tables=TABLES))
    assert [change.fate for change in dropped.views] == [Fate.DROPPED] * 3
    assert len(dropped.dropped) == len(old.operators())


def needless(monkeypatch: pytest.MonkeyPatch) -> Sequence[str]:
    """The operators that are new only because a text has other aliases and another order of conjuncts."""
    identity.digest.cache_clear()
    try:
        return [each for pair in SAME.values() for each in difference(program(pair[0]), program(pair[1])).new]
    finally:
        monkeypatch.undo()
        identity.digest.cache_clear()


def test_digests_that_count_the_order_of_operands_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sabotage of S18: what is written counts. Without it nothing is new."""
    assert needless(monkeypatch) == []
    monkeypatch.setattr(expressions, "COMMUTATIVE", frozenset())
    assert needless(monkeypatch) != []
