"""Holds the queries of Nexmark and TPC-H against Spark SQL, after rows came, changed and went: a line each.

`python -m tests.snapshot.views.benchmarks.against_spark` takes minutes, so it is no test. It ends with
status 1 if one differs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from pyspark.sql import SparkSession

from strandline.snapshot.spark.session import session
from strandline.snapshot.views.building import circuit_of
from strandline.snapshot.views.sql.programs import program_of
from strandline.statemachine.views.identity import digest
from tests.snapshot.views.benchmarks import nexmark, tpch
from tests.snapshot.views.benchmarks.changing import STEPS, Changing, deltas, local_views
from tests.snapshot.views.deltas import Row
from tests.snapshot.views.sql.answers import check


def compared(spark: SparkSession, world: Changing, views: str, query: str) -> int:
    """Give the number of rows that both have; raises AssertionError where they differ."""
    local = local_views(views)
    declared = "".join(f"CREATE LOCAL VIEW {each};\n" for each in local)
    program = program_of(f"{world.declarations()}\n{declared}CREATE VIEW v AS {query};")
    circuit = circuit_of(program)
    for _ in range(STEPS):
        circuit.step(dict(deltas(program, world, world.step())))
    sink = program.views[-1].sink
    assert sink is not None
    found: list[Row] = []
    for part in circuit.contents(digest(sink)):
        found += part.rows.rows()
    for name, (columns, _) in world.tables.items():
        schema = ", ".join(f"`{column}` {kind.value}" for column, kind in columns.items())
        spark.createDataFrame([*world.rows[name].values()], schema).createOrReplaceTempView(name)
    for each in local:
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {each}")
    wanted = [tuple(row) for row in spark.sql(query).collect()]
    check(found, wanted)
    return len(wanted)


def main() -> int:
    spark = session("benchmarks", "local[2]", {"spark.sql.shuffle.partitions": "2"}, short_jobs=True)
    worlds: list[tuple[str, Callable[[int], Changing], dict[str, str], dict[str, str]]] = [
        ("nexmark", nexmark.Nexmark, nexmark.QUERIES, {}),
        ("tpc-h", tpch.TpcH, tpch.QUERIES, tpch.VIEWS),
    ]
    differ = 0
    for of, world, queries, views in worlds:
        for name, query in queries.items():
            try:
                said = f"{compared(spark, world(1), views.get(name, ''), query)} rows, the same"
            except AssertionError as error:
                differ += 1
                said = f"DIFFERS: {str(error)[:300]}"
            print(f"{of} {name}: {said}", flush=True)
    print(f"{differ} differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
