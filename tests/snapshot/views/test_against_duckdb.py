"""A join and aggregates over thousands of rows with retractions, against DuckDB's answer to the same."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]

from strandline.snapshot.views.circuit import Circuit
from strandline.snapshot.views.zset import zset
from tests.snapshot.views import circuits
from tests.snapshot.views.circuits import Topic, key_of, played
from tests.snapshot.views.deltas import FACTS, Row

KEYS, STEPS, ROWS = 400, 12, 500


class World:
    """Facts and a table of keys that change at random, as a circuit and DuckDB see them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.facts: list[Row] = []
        self.table: dict[int, Row] = {}

    def row(self) -> Row:
        key = self.random.choice([None, self.random.randrange(KEYS), self.random.randrange(5)])
        number = self.random.choice([None, round(self.random.uniform(-1000, 1000), 3)])
        return key, self.random.choice([None, *"abcdef"]), number

    def steps(self) -> Iterator[dict[str, Any]]:
        for _ in range(STEPS):
            added = [self.row() for _ in range(ROWS)]
            self.random.shuffle(self.facts)
            gone = [self.facts.pop() for _ in range(min(len(self.facts), ROWS // 5))]
            self.facts += added
            log: list[Row] = []
            weights: list[int] = []
            for _ in range(ROWS // 10):
                key = self.random.randrange(KEYS)
                kept = self.random.random() < 0.8
                self.table.pop(key, None)
                row = (key, self.random.choice("xyz"), 1.0)
                if kept:
                    self.table[key] = row
                log.append(row)
                weights.append(1 if kept else -1)
            facts = zset(FACTS, [*added, *gone], [1] * len(added) + [-1] * len(gone))
            yield {"facts": facts, "log": zset(FACTS, log, weights)}

    def ask(self, query: str) -> list[Row]:
        facts, log = (
            pa.table(dict(zip(("k", "t", "d"), zip(*rows, strict=True), strict=True)))
            for rows in (self.facts, list(self.table.values()))
        )
        with duckdb.connect() as database:
            database.register("facts", facts)
            database.register("log", log)
            return database.execute(query).fetchall()


def topic_of(circuit: Circuit, world: World) -> Topic:
    return played(circuit, [{k: v for k, v in one.items() if k in circuit.sources} for one in world.steps()])


def test_a_join_counted_by_a_column_of_the_table() -> None:
    world = World(1)
    topic = topic_of(circuits.join(), world)
    wanted = world.ask("SELECT l.t, count(*) FROM facts f JOIN log l ON f.k = l.k GROUP BY l.t")
    assert sorted(topic.rows.values()) == sorted(wanted)
    assert len(wanted) == 3


def test_aggregates_by_text() -> None:
    world = World(2)
    circuit = circuits.aggregate()
    topic = topic_of(circuit, world)
    wanted = world.ask(
        "SELECT t, count(*), count(d), sum(k)::BIGINT, avg(k), fsum(d), favg(d) FROM facts GROUP BY t"
    )
    assert len(wanted) == 7
    assert key_of(circuit) == (0,)
    for row in wanted:
        found = topic.rows[row[:1]]
        assert found[:5] == row[:5]
        # DuckDB's Kahan sum may be off in the last bit; the exact one is not (test_operators.py).
        assert all(math.isclose(a, b, rel_tol=1e-12) for a, b in zip(found[5:], row[5:], strict=True))
