"""Compares each restore point of a run as soon as it is there: by DuckDB, and by the audit in Spark."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import SparkSession

from strandline.snapshot.restore_point import RestorePoint, decode_point, point_name
from strandline.snapshot.spark.audits import ClusterStorage
from strandline.snapshot.spark.audits.view_audit import views_equal_their_sql
from strandline.snapshot.spark.audits.view_cut import PointPrograms
from strandline.snapshot.spark.fetch import read_windows
from strandline.snapshot.spark.plan import in_order
from strandline.snapshot.spark.session import session
from strandline.snapshot.spark.source import SCHEMA, arrow_schema
from strandline.snapshot.spark.views import PartitionView
from strandline.snapshot.storage import Storage
from tests.programs.views_kills.programs import expected, queries_of

CLOSE_SECONDS: Final = 600.0


@dataclass
class Compared:
    """What was found at all cuts."""

    cuts: int = 0
    """Of which every view was compared, by both."""
    views: int = 0
    rows: int = 0
    differ: int = 0
    """Rows that are not Spark's, and views that are not DuckDB's."""
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


class Cuts:
    """A thread that compares one restore point after the other."""

    def __init__(self, stored: ClusterStorage) -> None:
        self.found = Compared()
        self._stored = stored
        self._points: queue.Queue[RestorePoint | None] = queue.Queue(maxsize=2)
        self._thread = threading.Thread(target=self._run, name="cuts", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether every point that was given is compared."""
        return not self._points.unfinished_tasks

    def add(self, number: int) -> None:
        """Have a point compared: it goes with the third after it, what it names stays for an hour."""
        name = point_name(self._stored.cluster, number)
        self._points.put(decode_point(self._stored.storage.get(name)))

    def close(self) -> Compared:
        """Wait until all is compared."""
        self._points.put(None)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self.found.problems.append(f"the cuts are not compared after {CLOSE_SECONDS:g} s")
        return self.found

    def _run(self) -> None:
        spark = session("views-kills", short_jobs=True)
        while (point := self._points.get()) is not None:
            try:
                self._compare(spark, point)
            except Exception as error:
                self.found.problems.append(f"cut {point.number}: {error!r}")  # told with the run's outcome
            self._points.task_done()

    def _compare(self, spark: SparkSession, point: RestorePoint) -> None:
        found = self.found
        by_duckdb = differences(self._stored.storage, point)
        audit = views_equal_their_sql(spark, self._stored, [point])
        found.views += audit.counts["views compared"]
        found.rows += audit.counts["rows"]
        found.differ += audit.findings + len(by_duckdb)
        found.problems += [f"cut {point.number}: {problem}" for problem in by_duckdb]
        found.problems += [str(row) for row in audit.evidence[:5]]
        found.remarks += [str(row) for row in audit.remarks]
        found.cuts += not audit.remarks and audit.counts["views compared"] > 0


def differences(storage: Storage, point: RestorePoint) -> list[str]:
    """The views of a point that are not what DuckDB makes of their inputs at the same cut.

    Raises SourceError, StorageError, BadObject, UnknownOutcome.
    """
    programs = PointPrograms(storage, point)
    problems = []
    for program in programs.state.view_programs.values():
        if program.live is None or (at := programs.at(program, program.live)) is None:
            continue
        ids = dict(program.live.inputs)
        empty: dict[str, Any] = {}
        tables = dict.fromkeys(("sales", "shops"), empty)
        tables |= {name: _table(storage, programs.input(ids[name], at.cut)) for name in ids}
        for view in program.live.views:
            query = queries_of(program.live.text)[view.view]
            there = _table(storage, programs.output(view.topic_id, at.transactions))
            mine = {tuple(row.values()) for row in there.values()}
            wanted = expected(tables["sales"], tables["shops"], query)
            if mine != wanted:
                shown = sorted(mine ^ wanted, key=str)[:4]
                problems.append(
                    f"view {view.view} ({query}) differs from DuckDB in {len(mine ^ wanted)}: {shown}"
                )
    return problems


def _table(storage: Storage, views: Sequence[PartitionView] | None) -> dict[str, Any]:
    """The last row of each key."""
    assert views is not None, "a point has all topics"
    table: dict[str, Any] = {}
    columns = arrow_schema(SCHEMA)
    for batch in read_windows(storage, in_order(views), columns):
        rows = batch.select(["key", "value"]).to_pydict()
        for key, value in zip(rows["key"], rows["value"], strict=True):
            table[bytes(key).decode()] = None if value is None else json.loads(value)
    return {key: row for key, row in table.items() if row is not None}
