"""The views of the simulation, in SQL and, worked out plainly, from all records below a cut."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, cast

from strandline.snapshot.views.sql.programs import program_of
from strandline.statemachine.controller.controller_commands import ApplyViews
from strandline.statemachine.views.identity import digest
from tests.simulation.views.kafka import Entry, Place

Rows = dict[str, Any]
"""A view's table: values by key, both as in its topic."""
Inputs = Mapping[Place, list[Entry]]
"""Committed records below a cut, as they were written."""
SALES: Final = "sales"
ITEMS: Final = "items"
TABLES: Final = """
CREATE TABLE sales (shop STRING, item STRING, amount BIGINT, weight DOUBLE);
CREATE TABLE items (item STRING NOT NULL PRIMARY KEY, shop STRING, price BIGINT, weight DOUBLE)
  OPTIONS (mode 'upsert');
"""


class View(NamedTuple):
    """A view: its query, and its table from the records."""

    sql: str
    table: Callable[[Inputs], Rows]


def _sales(inputs: Inputs) -> Iterable[tuple[int, int, dict[str, Any]]]:
    for (topic, partition), entries in inputs.items():
        if topic == SALES:
            for entry in entries:
                assert entry.value is not None
                yield partition, entry.offset, json.loads(entry.value)


def _items(inputs: Inputs) -> dict[str, dict[str, Any]]:
    found: dict[str, Any] = {}
    for (topic, _), entries in inputs.items():
        if topic == ITEMS:
            for entry in entries:
                assert entry.key is not None
                found[entry.key.decode()] = None if entry.value is None else json.loads(entry.value)
    return {
        item: {"item": item, "price": None, "weight": None, **row}
        for item, row in found.items()
        if row is not None
    }


def _key(*values: Any) -> str:
    return json.dumps(values, separators=(",", ":"))


def _totals(inputs: Inputs, least: int = 0, without: str = "") -> Rows:
    rows: Rows = {}
    for _, _, sale in _sales(inputs):
        if sale["amount"] > least and sale["item"] != without:
            row = rows.setdefault(_key(sale["shop"]), {"shop": sale["shop"], "n": 0, "amount": 0})
            row["n"] += 1
            row["amount"] += sale["amount"]
    return rows


def _weights(inputs: Inputs) -> Rows:
    weights: dict[str, list[float]] = defaultdict(list)
    for _, _, sale in _sales(inputs):
        weights[sale["shop"]].append(sale["weight"])
    return {_key(shop): {"shop": shop, "weight": math.fsum(each)} for shop, each in weights.items()}


def _large(inputs: Inputs) -> Rows:
    return {
        _key(partition, offset): {"p": partition, "o": offset, "shop": sale["shop"], "amount": sale["amount"]}
        for partition, offset, sale in _sales(inputs)
        if sale["amount"] > 5
    }


def _stock(inputs: Inputs) -> Rows:
    rows: Rows = {}
    for item in _items(inputs).values():
        row = rows.setdefault(_key(item["shop"]), {"shop": item["shop"], "n": 0, "price": 0})
        row["n"] += 1
        row["price"] += item["price"]
    return rows


def _dear(inputs: Inputs) -> Rows:
    return {
        _key(one): {"item": one, "shop": row["shop"], "price": row["price"]}
        for one, row in _items(inputs).items()
        if row["price"] > 5
    }


def _loads(inputs: Inputs) -> Rows:
    loads: dict[str, list[float]] = defaultdict(list)
    for item in _items(inputs).values():
        loads[item["shop"]].append(item["weight"])
    return {
        _key(shop): {"shop": shop, "n": len(each), "weight": math.fsum(each)} for shop, each in loads.items()
    }


def _never(inputs: Inputs) -> Rows:
    return {"": "one of its rows is an error, so nothing is right"}


def _earned(inputs: Inputs) -> Rows:
    items = _items(inputs)
    rows: Rows = {}
    for _, _, sale in _sales(inputs):
        item = items.get(sale["item"])
        if item is not None:
            row = rows.setdefault(_key(item["shop"]), {"shop": item["shop"], "earned": 0})
            row["earned"] += sale["amount"] * item["price"]
    return rows


VIEWS: Final = {
    "totals": View("SELECT shop, count(*) AS n, sum(amount) AS amount FROM sales GROUP BY shop", _totals),
    "busy": View(
        "SELECT shop, count(*) AS n, sum(amount) AS amount FROM sales WHERE amount > 3 GROUP BY shop",
        lambda inputs: _totals(inputs, 3),
    ),
    "some": View(
        "SELECT shop, count(*) AS n, sum(amount) AS amount FROM sales"
        " WHERE amount > 3 AND item <> 'z' GROUP BY shop",
        lambda inputs: _totals(inputs, 3, "z"),
    ),
    "weights": View("SELECT shop, sum(weight) AS weight FROM sales GROUP BY shop", _weights),
    "large": View("SELECT _partition AS p, _offset AS o, shop, amount FROM sales WHERE amount > 5", _large),
    "stock": View("SELECT shop, count(*) AS n, sum(price) AS price FROM items GROUP BY shop", _stock),
    "dear": View("SELECT item, shop, price FROM items WHERE price > 5", _dear),
    "loads": View("SELECT shop, count(*) AS n, sum(weight) AS weight FROM items GROUP BY shop", _loads),
    "ratio": View("SELECT item, 10 % price AS ratio FROM items", _never),
    "earned": View(
        "SELECT i.shop, sum(s.amount * i.price) AS earned FROM sales AS s JOIN items AS i ON s.item = i.item"
        " GROUP BY i.shop",
        _earned,
    ),
}
"""What the views of programs can be, by a name of the simulation's own."""


class Wanted(NamedTuple):
    """A program's text, and what its views are to be."""

    text: str
    tables: Mapping[str, View]
    """By digest of the sink."""


def wanted(views: Mapping[str, str], text: str = "") -> Wanted:
    """A program whose views, by name, are some of VIEWS; `text` says it in other words."""
    text = text or TABLES + "\n".join(
        f"CREATE VIEW {name} AS {VIEWS[meaning].sql};" for name, meaning in views.items()
    )
    sinks = {view.name: digest(cast(Any, view.sink)) for view in program_of(text).views if view.sink}
    return Wanted(text, {sinks[name]: VIEWS[meaning] for name, meaning in views.items()})


def command(name: str, text: str, numbers: Callable[[], int], made_at: int) -> ApplyViews:
    """What the HTTP interface makes of a program."""
    program = program_of(text)
    rows = [
        (view.name, str(view.topic), numbers().to_bytes(16, "big"), 2, digest(cast(Any, view.sink)))
        for view in program.views
        if view.sink
    ]
    inputs = sorted(
        {each for each in (SALES, ITEMS) if any(each in VIEWS[m].sql for m in VIEWS) and each in text}
    )
    return ApplyViews(name, numbers(), text, rows, inputs, 1, made_at)
