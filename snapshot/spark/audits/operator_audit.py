"""The audit of operators: a stored state is the one that the records of its inputs make once more.

The offsets that a program's group has at a restore point name the state that was stored last. Its cut is
known, so the records below it are worked through once more, in other steps than the program's, by an empty
circuit in one task of Spark. Each operator must then keep the same rows with the same weights and sums, and
have the same digest. What the views themselves say is for `view_audit.py`, which asks no kernel.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from strandline.snapshot.extras import ExtraMissing, require
from strandline.snapshot.object_frame import BadObject
from strandline.snapshot.restore_point import RestorePoint, RestorePointDamaged
from strandline.snapshot.spark.at_point import restore_points
from strandline.snapshot.spark.audits.result import AuditResult, Row, Verdict
from strandline.snapshot.spark.audits.view_cut import PointPrograms
from strandline.snapshot.spark.audits.work import ClusterStorage, frame
from strandline.snapshot.spark.fetch import read_windows
from strandline.snapshot.spark.options import SourceError
from strandline.snapshot.spark.pieces import Window
from strandline.snapshot.spark.plan import in_order
from strandline.snapshot.spark.source import SCHEMA, arrow_schema
from strandline.snapshot.storage import ObjectMissing, Storage, StorageError
from strandline.statemachine.controller.view_state import ProgramVersion
from strandline.statemachine.views.refusals import Refused

if TYPE_CHECKING:
    from strandline.snapshot.views.replay import Fingerprint
    from strandline.snapshot.views.stored_state import StoredState

NAME: Final = "operators_equal_their_replay"
QUESTION: Final = "Does every operator of a view keep what its program's inputs make of it?"
MOST_POINTS: Final = 2
"""Restore points that are looked at, the newest ones: the states of older ones are deleted."""
MOST_ROWS: Final = 100
STEP_RECORDS: Final = 7_000
"""A process takes up to 20,000: other cuts, other runs, the same state."""
LOOK_AGAIN_SECONDS: Final = 2.0
"""A process deletes a state and its runs with one request, which takes less."""
_COLUMNS: Final = ("key", "value", "partition", "offset", "timestamp")
_TOLD: Final = StructType(
    [
        StructField("point", LongType()),
        StructField("program", StringType()),
        StructField("operator", StringType()),
        StructField("rows", LongType()),
        StructField("problem", StringType()),
        StructField("gone", StringType()),
    ]
)


class _Work(NamedTuple):
    """A stored state, and the records below its cut."""

    point: int
    program: str
    text: str
    state: str
    inputs: Mapping[str, tuple[Window, ...]]
    """By topic."""
    lacking: tuple[str, ...]
    """Topics that lack records which the program may have taken."""


def operators_equal_their_replay(
    spark: SparkSession, cluster: ClusterStorage, points: Sequence[RestorePoint] | None = None
) -> AuditResult:
    """Ask the audit about one cluster's storage, at some restore points or at the newest ones."""
    counts = {"operators": 0, "states": 0, "rows": 0}
    evidence: list[Row] = []
    remarks: list[Row] = []
    try:
        if points is None:
            points = restore_points(cluster.storage, cluster.cluster)[-MOST_POINTS:]
    except (StorageError, RestorePointDamaged) as error:
        points, remarks = [], [{"problem": f"restore points cannot be read: {error}"}]
    work: list[_Work] = []
    for point in points:
        try:
            for found in _of_point(cluster.storage, point):
                if isinstance(found, _Work):
                    work.append(found)
                else:
                    remarks.append(found)
        except (SourceError, StorageError, BadObject) as error:
            remarks.append({"point": point.number, "problem": f"it cannot be read: {error}"})
    storage = cluster.storage
    rows = frame(spark, work, lambda each: _compared(storage, each), _TOLD).collect() if work else []
    lacking = {(each.point, each.program): each.lacking for each in work}
    for row in rows:
        told = row.asDict()
        where: Row = {name: told[name] for name in ("point", "program", "operator")}
        short = lacking[told["point"], told["program"]]
        if told["gone"]:
            remarks.append({**where, "problem": told["gone"]})
        elif told["problem"] and short:
            why = f"records of {', '.join(short)} are gone by retention or cleaning, which it may have taken"
            remarks.append({**where, "problem": f"{told['problem']}, but {why}"})
        else:
            counts["operators"] += 1
            counts["rows"] += told["rows"]
            if told["problem"]:
                evidence.append({**where, "problem": told["problem"]})
    counts["states"] = len({(row["point"], row["program"]) for row in rows if not row["gone"]})
    verdict = Verdict.PASSED if counts["operators"] else Verdict.NOTHING
    return AuditResult(
        NAME,
        QUESTION,
        Verdict.FINDING if evidence else verdict,
        counts,
        evidence[:MOST_ROWS],
        len(evidence),
        remarks,
    )


def _of_point(storage: Storage, point: RestorePoint) -> Iterator[_Work | Row]:
    programs = PointPrograms(storage, point)
    for program in programs.state.view_programs.values():
        version = program.live
        at = None if version is None else programs.at(program, version)
        if version is None or at is None or not at.state:
            continue  # it has stored nothing yet
        where: Row = {"point": point.number, "program": program.name}
        try:
            yield _work(storage, programs, point.number, program.name, version, at.state)
        except ExtraMissing as missing:
            yield {**where, "problem": str(missing)}
        except Refused as refused:
            yield {**where, "problem": f"this release refuses its text: {refused}"}
        except ObjectMissing:
            yield {**where, "problem": f"its state {at.state} is gone: only the newest two stay"}
        except _NotThere as gone:
            yield {**where, "problem": str(gone)}


class _NotThere(Exception):
    """Something to be compared is not there; `str()` names it."""


def _work(
    storage: Storage,
    programs: PointPrograms,
    point: int,
    program: str,
    version: ProgramVersion,
    state: str,
) -> _Work:
    require("views")
    from strandline.snapshot.views import stored_state
    from strandline.snapshot.views.sql.spark_text import in_spark

    tables, _ = in_spark(version.text)
    try:
        found = stored_state.read(state, storage.get(state))
    except stored_state.StateDamaged as damaged:
        raise _NotThere(str(damaged)) from None
    inputs: dict[str, tuple[Window, ...]] = {}
    lacking: list[str] = []
    for table in tables:
        topic_id = dict(version.inputs).get(table.topic)
        if topic_id is None:
            continue
        # Another table of the same topic may need records that this one can do without.
        if programs.lacks_records(topic_id, keyed=bool(table.key)) and table.topic not in lacking:
            lacking.append(table.topic)
        if table.topic in inputs:
            continue
        below = {
            (topic_id, number): end for (topic, number), end in found.cut.items() if topic == table.topic
        }
        views = programs.input(topic_id, below)
        if views is None:
            raise _NotThere(f"the input {table.topic} is not in this point")
        inputs[table.topic] = in_order(views)
    return _Work(point, program, version.text, state, inputs, tuple(lacking))


def _compared(storage: Storage, work: _Work) -> Iterator[tuple[Any, ...]]:
    """In a task: a row for each operator. Raises StorageError, BadObject."""
    from strandline.snapshot.views import stored_state
    from strandline.snapshot.views.errors import ViewError
    from strandline.snapshot.views.replay import Replay, fingerprints
    from strandline.snapshot.views.sql.programs import program_of

    program = program_of(work.text)
    where = work.point, work.program
    kinds = {name: type(plan).__name__ for name, plan in program.operators().items()}
    try:
        found = stored_state.read(work.state, storage.get(work.state))
        stored, disordered = _stored(storage, work, found)
    except ObjectMissing as missing:
        time.sleep(LOOK_AGAIN_SECONDS)
        try:
            storage.get(work.state)
        except ObjectMissing:
            yield *where, "", 0, "", f"its state {work.state} is gone: only the newest two stay"
        else:
            yield *where, "", 0, f"its state lacks an object: {missing}", ""
        return
    except (ViewError, stored_state.StateDamaged) as damaged:
        yield *where, "", 0, f"its state cannot be read: {damaged}", ""
        return
    replay = Replay(program)
    try:
        for topic, windows in work.inputs.items():
            _replayed(storage, replay, topic, windows)
    except ViewError as error:
        yield *where, "", 0, f"its inputs cannot be worked through: {error}", ""
        return
    rows = {
        name: sum(len(run) for spine in operator.current.spines for run in spine.runs)
        for name, operator in replay.circuit.operators.items()
    }
    for name, wanted in fingerprints(replay.circuit).items():
        problem = _problem(stored[name], wanted)
        if not problem and name in disordered:
            problem = "its rows are not in the order of their hashes: look-ups miss some"
        yield *where, f"{kinds[name]} {name[:12]}", rows[name], problem, ""


def _stored(
    storage: Storage, work: _Work, found: StoredState
) -> tuple[Mapping[str, Fingerprint], Collection[str]]:
    """Give what operators have stored, and those of them that have runs in which rows cannot be found."""
    from strandline.snapshot.views.building import circuit_of
    from strandline.snapshot.views.operator import StateManifest
    from strandline.snapshot.views.replay import fingerprints
    from strandline.snapshot.views.run import is_ordered
    from strandline.snapshot.views.run_file import unpacked
    from strandline.snapshot.views.sql.programs import program_of

    runs = {name: unpacked(name, storage.get(name)) for name in sorted(found.runs)}
    circuit = circuit_of(program_of(work.text))
    circuit.load(
        {
            operator: StateManifest(
                tuple(tuple(runs[run] for run in spine) for spine in kept.spines), kept.value
            )
            for operator, kept in found.operators.items()
        }
    )
    disordered = {name for name, run in runs.items() if not is_ordered(run)}
    return fingerprints(circuit), {
        operator
        for operator, kept in found.operators.items()
        if any(run in disordered for spine in kept.spines for run in spine)
    }


def _replayed(storage: Storage, replay: Any, topic: str, windows: tuple[Window, ...]) -> None:
    from strandline.snapshot.views.json_records import Record

    kinds = arrow_schema(StructType([field for field in SCHEMA.fields if field.name in _COLUMNS]))
    waiting: list[Record] = []
    for batch in read_windows(storage, windows, kinds):
        columns = {name: batch[name].to_pylist() for name in ("partition", "offset", "key", "value")}
        times = batch["timestamp"].cast(pa.int64()).to_pylist()  # in microseconds
        for partition, offset, key, value, moment in zip(*columns.values(), times, strict=True):
            waiting.append(Record(partition, offset, moment // 1000, key, value))
        while len(waiting) >= STEP_RECORDS:
            replay.take(topic, waiting[:STEP_RECORDS])
            del waiting[:STEP_RECORDS]
    if waiting:
        replay.take(topic, waiting)


def _problem(stored: Fingerprint, wanted: Fingerprint) -> str:
    if stored.spines != wanted.spines:
        return "it keeps other rows than its inputs make"
    if stored.digest != wanted.digest:
        return f"its digest is {stored.digest:032x}, its inputs make {wanted.digest:032x}"
    return ""
