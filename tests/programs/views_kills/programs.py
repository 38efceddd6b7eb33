"""The programs that a run draws, and what DuckDB makes of them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

import duckdb

Table = Mapping[str, Mapping[str, Any]]
"""Rows by key."""
TABLES: Final = """
CREATE TABLE sales (id STRING NOT NULL PRIMARY KEY, shop STRING, amount BIGINT) OPTIONS (mode 'upsert');
CREATE TABLE shops (shop STRING NOT NULL PRIMARY KEY, city STRING) OPTIONS (mode 'upsert');
"""
QUERIES: Final[Mapping[str, str]] = {
    "totals": "SELECT shop, count(*) AS n, sum(amount) AS amount FROM sales GROUP BY shop",
    "busy": "SELECT shop, count(*) AS n, sum(amount) AS amount FROM sales WHERE amount > 300 GROUP BY shop",
    "most": "SELECT shop, max(amount) AS amount, count(DISTINCT amount) AS n FROM sales GROUP BY shop",
    "cities": (
        "SELECT city, count(*) AS n, sum(amount) AS amount FROM sales JOIN shops USING (shop) GROUP BY city"
    ),
    "empty": (
        "SELECT s.shop, count(t.id) AS n FROM shops AS s LEFT JOIN sales AS t ON s.shop = t.shop"
        " GROUP BY s.shop"
    ),
    "large": "SELECT id, shop, amount FROM sales WHERE amount > 900",
}
"""Views by name; any of these names may stand for any of these queries."""


def text_of(views: Mapping[str, str]) -> str:
    """A program: topics' names with the queries that they have."""
    return TABLES + "\n".join(f"CREATE VIEW {name} AS {QUERIES[query]};" for name, query in views.items())


def queries_of(text: str) -> dict[str, str]:
    """The names of views with those of their queries, of a text that `text_of` gave."""
    return {
        name: query
        for name in QUERIES
        for query, said in QUERIES.items()
        if f"CREATE VIEW {name} AS {said};" in text
    }


def another(views: Mapping[str, str], chance: random.Random) -> dict[str, str]:
    """A program that differs: a view more, one less, one with another query, or one with another name."""
    changed = dict(views)
    free = [name for name in QUERIES if name not in changed]
    match chance.randrange(4):
        case 0 if free:
            changed[chance.choice(free)] = chance.choice([*QUERIES])
        case 1 if len(changed) > 1:
            del changed[chance.choice([*changed])]
        case 2 if free:
            name = chance.choice([*changed])
            changed = {(free[0] if one == name else one): query for one, query in changed.items()}
        case _:
            changed[chance.choice([*changed])] = chance.choice([*QUERIES])
    return changed


def expected(sales: Table, shops: Table, query: str) -> set[tuple[Any, ...]]:
    """A view's rows by DuckDB."""
    connection = duckdb.connect()
    connection.execute("CREATE TABLE sales (id VARCHAR, shop VARCHAR, amount BIGINT)")
    connection.execute("CREATE TABLE shops (shop VARCHAR, city VARCHAR)")
    for key, row in sales.items():
        connection.execute("INSERT INTO sales VALUES (?, ?, ?)", [key, row["shop"], row["amount"]])
    for key, row in shops.items():
        connection.execute("INSERT INTO shops VALUES (?, ?)", [key, row["city"]])
    return {tuple(row) for row in connection.execute(QUERIES[query]).fetchall()}
