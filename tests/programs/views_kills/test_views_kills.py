"""The verdict of `scripts/views-kills`, and the programs that it draws; a run of it takes minutes."""

from __future__ import annotations

import random

import pytest

from strandline.snapshot.views.sql.programs import program_of
from tests.programs.views_kills.programs import QUERIES, another, expected, text_of
from tests.programs.views_kills.run import Outcome


@pytest.mark.parametrize("wrong", ["differ", "wrong", "twice", "problems"])
def test_anything_but_views_that_are_their_sql_is_bad(wrong: str) -> None:
    right = Outcome(cuts=10)
    assert right.good
    assert not Outcome().good, "nothing was looked at"
    assert not Outcome(cuts=9, wanted=10).good, "too little was looked at"
    setattr(right, wrong, ["it broke"] if wrong == "problems" else 1)
    assert not right.good


def test_programs_differ_by_a_view_more_one_less_another_query_or_another_name() -> None:
    chance, views = random.Random(5), {"totals": "totals", "cities": "cities"}
    seen = set()
    for _ in range(200):
        after = another(views, chance)
        assert after
        names, queries = after.keys() - views.keys(), sorted(after.values()) == sorted(views.values())
        fate = {1: "more", 0: "same", -1: "less"}[len(after) - len(views)]
        seen.add(f"renamed {queries}" if fate == "same" and names else fate)
        views = after
    assert seen >= {"more", "less", "same", "renamed True"}
    for query in QUERIES:
        assert [view.name for view in program_of(text_of({"x": query})).views] == ["x"]


def test_duckdb_works_out_each_view() -> None:
    sales = {"k1": {"shop": "a", "amount": 950}, "k2": {"shop": "a", "amount": 5}}
    shops = {"a": {"city": "x"}, "b": {"city": "x"}}
    assert {query: expected(sales, shops, query) for query in QUERIES} == {
        "totals": {("a", 2, 955)},
        "busy": {("a", 1, 950)},
        "most": {("a", 950, 2)},
        "cities": {("x", 2, 955)},
        "empty": {("a", 2), ("b", 0)},
        "large": {("k1", "a", 950)},
    }
