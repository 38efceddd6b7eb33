"""The topologies: which views are live, and which version of the program is filled beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import duckdb

from strandline.snapshot.views.sql.spark_text import in_spark
from tests.programs.views_topologies.tables import Row, Rows, Tables

COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    "sales": {"id": "STRING", "shop": "STRING", "amount": "BIGINT"},
    "shops": {"shop": "STRING", "city": "STRING"},
    "stock": {"item": "STRING", "shop": "STRING", "n": "BIGINT"},
}
"""The first column of each table is its primary key. All have one, so that all rows can be taken back."""
Views = Mapping[str, str]
"""Queries by name; a name that begins with `local_` is that of a LOCAL VIEW."""
TOTALS: Final = "SELECT shop, count(*) AS n, sum(amount) AS amount FROM sales GROUP BY shop"
BUSY: Final = "SELECT shop, count(*) AS n, sum(amount) AS amount FROM sales WHERE amount > 300 GROUP BY shop"
JOINED: Final = "SELECT s.id, s.amount, s.shop, c.city FROM sales AS s JOIN shops AS c ON s.shop = c.shop"
CITIES: Final = "SELECT city, count(*) AS n, sum(amount) AS amount FROM local_joined GROUP BY city"
LARGE: Final = "SELECT id, shop, amount FROM sales WHERE amount > 800"


@dataclass(frozen=True)
class Topology:
    """`before` is live, `after` is filled beside it."""

    name: str
    before: Views
    after: Views
    skewed: bool = False
    """All rows have one key of the joins and groups."""
    empty: bool = False
    """Nothing is written before the cutover."""
    cleaned: bool = False
    """The inputs are cleaned as soon as may be."""
    same: bool = False
    """Both are one program: nothing is filled."""
    constant: bool = False
    """A view has a row even where there are no records."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Views of `before` by the name that they have in `after`."""


TOPOLOGIES: Final = (
    Topology("stateless view", {"totals": TOTALS}, {"totals": TOTALS, "large": LARGE}),
    Topology("aggregate over a kept table", {"large": LARGE}, {"large": LARGE, "totals": TOTALS}),
    Topology(
        "aggregate over a kept aggregate",
        {"totals": TOTALS},
        {"totals": TOTALS, "sizes": "SELECT n, count(*) AS shops FROM totals GROUP BY n"},
    ),
    Topology(
        "aggregate over a kept join without a topic",
        {"local_joined": JOINED, "cities": CITIES},
        {
            "local_joined": JOINED,
            "cities": CITIES,
            "most": "SELECT city, max(amount) AS most FROM local_joined GROUP BY city",
        },
    ),
    Topology(
        "a shared distinct",
        {"pairs": "SELECT DISTINCT shop, amount FROM sales"},
        {
            "pairs": "SELECT DISTINCT shop, amount FROM sales",
            "amounts": "SELECT shop, count(*) AS n FROM pairs GROUP BY shop",
        },
    ),
    Topology(
        "a join with one side new",
        {"totals": TOTALS},
        {
            "totals": TOTALS,
            "placed": "SELECT t.shop, t.n, c.city FROM totals AS t JOIN shops AS c ON t.shop = c.shop",
        },
    ),
    Topology(
        "a join with both sides new",
        {"goods": "SELECT item, n FROM stock"},
        {
            "goods": "SELECT item, n FROM stock",
            "local_joined": JOINED,
            "cities": CITIES,
        },
    ),
    Topology(
        "two new views that share an operator",
        {"large": LARGE},
        {
            "large": LARGE,
            "local_busy": BUSY,
            "most": "SELECT shop, n FROM local_busy WHERE n > 2",
            "sizes": "SELECT n, count(*) AS shops FROM local_busy GROUP BY n",
        },
    ),
    Topology(
        "left join",
        {"totals": TOTALS},
        {
            "totals": TOTALS,
            "empty": "SELECT c.shop, count(s.id) AS n FROM shops AS c LEFT JOIN sales AS s ON c.shop = s.shop"
            " GROUP BY c.shop",
        },
    ),
    Topology(
        "full join",
        {"totals": TOTALS},
        {
            "totals": TOTALS,
            "all_shops": "SELECT t.shop AS sold, c.shop AS known, t.n, c.city FROM totals AS t"
            " FULL JOIN shops AS c ON t.shop = c.shop",
        },
    ),
    Topology(
        "min and max",
        {"totals": TOTALS},
        {
            "totals": TOTALS,
            "ends": "SELECT shop, min(amount) AS least, max(amount) AS most FROM sales GROUP BY shop",
        },
    ),
    Topology(
        "top-k",
        {"totals": TOTALS},
        {
            "totals": TOTALS,
            "best": "SELECT shop, place, id, amount FROM (SELECT shop, id, amount, row_number() OVER ("
            "PARTITION BY shop ORDER BY amount DESC, id) AS place FROM sales) AS ranked WHERE place <= 3",
        },
    ),
    Topology(
        "avg",
        {"totals": TOTALS},
        {"totals": TOTALS, "means": "SELECT shop, avg(amount) AS mean FROM sales GROUP BY shop"},
    ),
    Topology(
        "count distinct",
        {"totals": TOTALS},
        {"totals": TOTALS, "kinds": "SELECT shop, count(DISTINCT amount) AS n FROM sales GROUP BY shop"},
    ),
    Topology(
        "a view over a view, the upper one modified",
        {"totals": TOTALS, "upper": "SELECT shop, n FROM totals WHERE n > 3"},
        {"totals": TOTALS, "upper": "SELECT shop, n FROM totals WHERE n > 5"},
    ),
    Topology(
        "a view over a view, the lower one modified",
        {"totals": TOTALS, "large": LARGE, "upper": "SELECT shop, n FROM totals WHERE n > 3"},
        {"totals": BUSY, "large": LARGE, "upper": "SELECT shop, n FROM totals WHERE n > 3"},
    ),
    Topology(
        "modified, dropped and renamed at once",
        {"totals": TOTALS, "large": LARGE, "goods": "SELECT item, n FROM stock"},
        {"totals": BUSY, "great": LARGE, "pairs": "SELECT DISTINCT shop, amount FROM sales"},
        renamed={"great": "large"},
    ),
    Topology(
        "a new table",
        {"totals": TOTALS},
        {"totals": TOTALS, "kept": "SELECT shop, sum(n) AS n FROM stock GROUP BY shop"},
    ),
    Topology(
        "tables under cleaning",
        {"totals": TOTALS},
        {"totals": TOTALS, "local_joined": JOINED, "cities": CITIES},
        cleaned=True,
    ),
    Topology(
        "a diamond",
        {"totals": TOTALS},
        {
            "totals": TOTALS,
            "local_few": "SELECT shop, n FROM totals WHERE n < 15",
            "local_rich": "SELECT shop, amount FROM totals WHERE amount > 2000",
            "both_of": "SELECT f.shop, f.n, r.amount FROM local_few AS f JOIN local_rich AS r"
            " ON f.shop = r.shop",
        },
    ),
    Topology(
        "a self-join",
        {"totals": TOTALS},
        {
            "totals": TOTALS,
            "twins": "SELECT a.id AS one, b.id AS other FROM sales AS a JOIN sales AS b"
            " ON a.amount = b.amount WHERE a.id < b.id",
        },
    ),
    Topology(
        "skew on one key",
        {"totals": TOTALS},
        {"totals": TOTALS, "local_joined": JOINED, "cities": CITIES},
        skewed=True,
    ),
    Topology("no difference", {"totals": TOTALS}, {"totals": TOTALS}, same=True),
    Topology(
        "empty topics",
        {"totals": TOTALS},
        {"totals": TOTALS, "local_joined": JOINED, "cities": CITIES},
        empty=True,
    ),
    Topology(
        "a constant view",
        {"totals": TOTALS},
        {"totals": TOTALS, "all_of_it": "SELECT count(*) AS n, sum(amount) AS amount FROM sales"},
        constant=True,
    ),
)


def text_of(views: Views, prefix: str) -> str:
    """A program over the tables whose topics have this prefix, as the topics of views do."""
    tables = [
        f"CREATE TABLE {table} ("
        + ", ".join(
            f"{name} {kind}{'' if number else ' NOT NULL PRIMARY KEY'}"
            for number, (name, kind) in enumerate(columns.items())
        )
        + f") OPTIONS (mode 'upsert', topic '{prefix}{table}');"
        for table, columns in COLUMNS.items()
    ]
    made = [
        f"CREATE LOCAL VIEW {name} AS {query};"
        if name.startswith("local_")
        else f"CREATE VIEW {name} OPTIONS (topic '{prefix}{name}', partitions 2) AS {query};"
        for name, query in views.items()
    ]
    return "\n".join([*tables, *made])


class Expected:
    """A program's views by DuckDB, as the tables are."""

    def __init__(self, views: Views, tables: Tables) -> None:
        self._tables = tables
        self.keys = {view.name: view.key for view in in_spark(text_of(views, ""))[1]}
        self._connection = duckdb.connect()
        self._loaded: dict[str, dict[str, Row]] = {table: {} for table in COLUMNS}
        for table, columns in COLUMNS.items():
            kinds = ", ".join(f"{name} {kind.replace('STRING', 'VARCHAR')}" for name, kind in columns.items())
            self._connection.execute(f"CREATE TABLE {table} ({kinds})")
        for name, query in views.items():
            self._connection.execute(f"CREATE VIEW {name} AS {query}")

    def load(self) -> None:
        """Take the tables as they are now."""
        for table, columns in COLUMNS.items():
            there, wanted = self._loaded[table], self._tables.rows[table]
            changed = [key for key in {*there, *wanted} if there.get(key) != wanted.get(key)]
            first = next(iter(columns))
            for key in changed:
                self._connection.execute(f"DELETE FROM {table} WHERE {first} = ?", [key])
                if key in wanted:
                    row = [key, *(wanted[key][name] for name in list(columns)[1:])]
                    self._connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
            self._loaded[table] = dict(wanted)

    def rows(self, view: str) -> Rows:
        """A view's rows by key, both as its topic has them; the tables are those that were loaded."""
        answer = self._connection.execute(f"SELECT * FROM {view}")
        names = [column[0] for column in answer.description or ()]
        return keyed(self.keys[view], [dict(zip(names, row, strict=True)) for row in answer.fetchall()])


def keyed(key: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Rows:
    """Rows by their keys."""
    found: Rows = {}
    for row in rows:
        named = tuple(row[name] for name in key)
        assert named not in found, f"{key} is no key: {named}"
        found[named] = dict(row)
    return found
