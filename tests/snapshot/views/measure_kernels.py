"""Rows per second of processor time: a group-by and a join whose state has a million keys.

.venv/bin/python -m tests.snapshot.views.measure_kernels [KEYS] [ROWS_A_STEP] [STEPS]

A step of the group-by changes COUNT and SUM of uniformly spread keys; a tenth of its rows retract. A step of
the join has nine rows of facts (one of nine retracts an earlier one) for each row of the table that is
replaced.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

import numpy as np
import polars as pl

from strandline.snapshot.views.arrange import Arrange
from strandline.snapshot.views.circuit import Circuit, Node
from strandline.snapshot.views.join import Join
from strandline.snapshot.views.linear_aggregate import LinearAggregate
from strandline.snapshot.views.zset import Weights, ZSet, frame
from strandline.statemachine.views.aggregates import Aggregate, AggregateFunction
from strandline.statemachine.views.types import Type

NUMBER, TEXT = pl.Int64(), pl.String()
PIECE = 100_000
"""Rows of a step while the state is filled."""


def numbers(values: Weights) -> pl.Series:
    return pl.Series(values)


def texts(word: str, values: Weights) -> pl.Series:
    return pl.select(pl.format(word + "-{}", numbers(values))).to_series()


def timed(what: str, circuit: Circuit, steps: Iterable[dict[str, ZSet]]) -> None:
    rows, spent = 0, []
    for step in steps:
        before = time.process_time()
        circuit.step(step)
        spent.append(time.process_time() - before)
        rows += sum(map(len, step.values()))
    print(
        f"{what:9} {rows / sum(spent):12,.0f} rows/CPU-s   a step: median {np.median(spent) * 1e3:.1f} ms, "
        f"longest {max(spent) * 1e3:.0f} ms"
    )


def group_by(keys: int, size: int, steps: int) -> None:
    random = np.random.default_rng(7)
    aggregates = [Aggregate(AggregateFunction.COUNT), Aggregate(AggregateFunction.SUM, 1, Type.BIGINT)]
    operator = LinearAggregate("groups", (NUMBER, NUMBER), (0,), aggregates)
    circuit = Circuit({"facts": (NUMBER, NUMBER)}, [Node(operator, ("facts",))])
    every = random.permutation(keys)
    for start in range(0, keys, PIECE):
        key = every[start : start + PIECE]
        ones = np.full(len(key), 1000, np.int64)  # So that no group goes under one of the retractions below.
        circuit.step({"facts": ZSet(frame([numbers(key), numbers(key % 1000)]), ones)})
    timed("group by", circuit, [{"facts": _facts(random, keys, size)} for _ in range(steps)])


def _facts(random: np.random.Generator, keys: int, size: int) -> ZSet:
    rows = frame([numbers(random.integers(0, keys, size)), numbers(random.integers(0, 1000, size))])
    return ZSet(rows, np.where(random.random(size) < 0.1, -1, 1))


def join(keys: int, size: int, steps: int) -> None:
    random = np.random.default_rng(3)
    schema = (NUMBER, NUMBER, TEXT)
    nodes = [
        Node(Arrange("left", schema, (0,)), ("table",)),
        Node(Arrange("right", schema, (0,)), ("facts",)),
        Node(Join("pairs", schema, schema), ("left", "right")),
    ]
    circuit = Circuit({"table": schema, "facts": schema}, nodes)
    fact_keys = random.integers(0, keys, keys)
    for start in range(0, keys, PIECE):
        at = np.arange(start, min(start + PIECE, keys))
        ones = np.ones(len(at), np.int64)
        table = ZSet(frame([numbers(at), numbers(at * 3), texts("name", at % 5000)]), ones)
        facts = ZSet(frame([numbers(fact_keys[at]), numbers(at), texts("item", at % 100_000)]), ones)
        circuit.step({"table": table, "facts": facts})
    timed("join", circuit, [_join_step(random, fact_keys, size, number) for number in range(steps)])


def _join_step(random: np.random.Generator, fact_keys: Weights, size: int, number: int) -> dict[str, ZSet]:
    keys, new, back, updated = len(fact_keys), size * 8 // 10, size // 10, size // 20
    gone = random.choice(keys, back, replace=False)
    at = np.concatenate([keys + number * new + np.arange(new), gone])
    key = np.concatenate([random.integers(0, keys, new), fact_keys[gone]])
    weights = np.concatenate([np.ones(new, np.int64), -np.ones(back, np.int64)])
    changed = np.tile(random.choice(keys, updated, replace=False), 2)
    value = changed * 3 + np.repeat([number, number + 1], updated)
    of_table = np.repeat(np.array([-1, 1]), updated)
    return {
        "facts": ZSet(frame([numbers(key), numbers(at), texts("item", at % 100_000)]), weights),
        "table": ZSet(frame([numbers(changed), numbers(value), texts("name", changed % 5000)]), of_table),
    }


def main() -> None:
    keys, size, steps = [*map(int, sys.argv[1:]), *(1_000_000, 10_000, 60)[len(sys.argv) - 1 :]]
    print(f"{keys:,} keys, {size:,} rows a step, {steps} steps; polars {pl.__version__}")
    group_by(keys, size, steps)
    join(keys, size, steps)


if __name__ == "__main__":
    main()
