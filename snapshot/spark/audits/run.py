"""Asking all audits about one cluster's storage, or several, in one Spark session.

Documents, batches and replays are read once and kept while the audits look at them; each audit is then a
query. Several storages go through the same jobs, told apart by a number, because a job costs more than its
rows. What an earlier audit has proven of objects is taken from its proof, unless the audit is to be full.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from strandline.snapshot.names import LocalName, LogName, SnapshotName, snapshot_name
from strandline.snapshot.spark.audits import collecting, copies
from strandline.snapshot.spark.audits.answering import answering, interrupted_as
from strandline.snapshot.spark.audits.audit import Answer, Audit, Frames
from strandline.snapshot.spark.audits.batches import batch_rows
from strandline.snapshot.spark.audits.checks import AUDITS
from strandline.snapshot.spark.audits.collecting import Grace
from strandline.snapshot.spark.audits.documents import Listing, document_rows, listing, read_document
from strandline.snapshot.spark.audits.key_tables import read_tables
from strandline.snapshot.spark.audits.lacking import asked
from strandline.snapshot.spark.audits.levels import comparisons
from strandline.snapshot.spark.audits.operator_audit import operators_equal_their_replay
from strandline.snapshot.spark.audits.proofs import Proof, Published, known_rows, newest_proof, publish
from strandline.snapshot.spark.audits.references import GroupPlace
from strandline.snapshot.spark.audits.replay import replay_rows
from strandline.snapshot.spark.audits.result import AuditResult, AuditRun, Figures, ProofUse, Row, Verdict
from strandline.snapshot.spark.audits.small import held, is_small, settings
from strandline.snapshot.spark.audits.stored import stored_objects
from strandline.snapshot.spark.audits.transaction_events import EVENT_NAMES
from strandline.snapshot.spark.audits.transactions_said import said_rows
from strandline.snapshot.spark.audits.view_audit import views_equal_their_sql
from strandline.snapshot.spark.audits.work import ClusterStorage
from strandline.snapshot.spark.no_spark import require_context
from strandline.snapshot.storage import StorageError, open_storage
from strandline.statemachine.controller import controller_snapshot
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP
from strandline.statemachine.controller.topic_config import CLEANUP_POLICY

MAX_ROWS = 100
"""Findings, and remarks, that are listed for each audit; all of them are counted."""
DEFAULT_GRACE = Grace()


class Places(NamedTuple):
    """Each group's partition; groups from `next_group` on are newer than the controller's document."""

    by_group: dict[int, GroupPlace]
    next_group: int

    def is_gone(self, group: int) -> bool:
        """Whether its topic is deleted: what it has published goes, and its objects may be gone already."""
        return CONTROLLER_GROUP < group < self.next_group and group not in self.by_group


class NothingToAudit(ValueError):
    """The storage cannot be read, or has no checkpoint of the cluster: one line that says what to do."""


def check_input(url: str, options: Mapping[str, str], cluster: str) -> ClusterStorage:
    """Open the storage and see that there is something to audit, before Spark is started for it; raises
    NothingToAudit."""
    try:
        storage = ClusterStorage(open_storage(url, options), cluster)
        _listed(storage)
    except StorageError as error:
        raise NothingToAudit(str(error)) from error
    return storage


def run_audits(
    url: str,
    options: Mapping[str, str],
    cluster: str,
    *,
    spark: SparkSession,
    grace: Grace = DEFAULT_GRACE,
    full: bool = False,
) -> AuditRun:
    """Ask all audits about the storage of one cluster; raises NothingToAudit, NoContext.

    Objects that the newest proof has are not read, unless `full`; a run without a finding publishes a proof.
    """
    try:
        storage = ClusterStorage(answering(open_storage(url, options)), cluster)
        with interrupted_as(NothingToAudit):
            (run,) = audit_storages(spark, [storage], grace, full=full, leave_proofs=True)
    except StorageError as error:
        raise NothingToAudit(str(error)) from error
    return run


def audit_storages(
    spark: SparkSession,
    storages: Sequence[ClusterStorage],
    grace: Grace = DEFAULT_GRACE,
    *,
    full: bool = True,
    leave_proofs: bool = False,
) -> list[AuditRun]:
    """Ask all audits about several storages at once.

    Raises NothingToAudit if one of them has no checkpoint, NoContext for a session of Spark Connect. Objects
    that the newest proof of a storage has are read as well if `full`; with `leave_proofs` a run without a
    finding publishes one. `seconds` of each is the time all of them took together.
    """
    require_context(spark, "audits need")
    began = time.perf_counter()
    whole = [_listed(storage) for storage in storages]
    proofs: list[Proof | None] = [None if full else newest_proof(storage) for storage in storages]
    places = [find_places(storage, found) for storage, found in zip(storages, whole, strict=True)]
    listings = [without_gone(found, known) for found, known in zip(whole, places, strict=True)]
    documents = document_rows(spark, storages, listings)
    if not documents.isLocal():
        documents = documents.cache()
    by_group = [known.by_group for known in places]
    columns = dict.fromkeys([*collecting.COLUMNS, *copies.COLUMNS, "next_offset"])
    states = documents.where("error is null").select(*columns).collect()
    small = is_small(states)
    with settings(spark, small):
        documents = held(documents, small)
        # Behind the names of documents, so that what they name was there already.
        stored = held(stored_objects(spark, storages, small), small)
        versions = stored.select("root", "object", "version")
        if (leave_proofs or not full) and not stored.isLocal():
            # Before any object is read, and never again: one that is written again meanwhile has another
            # version at the next audit.
            versions = versions.localCheckpoint()
        known_before = known_rows(spark, storages, proofs)
        found = batch_rows(spark, storages, listings, by_group, versions, known_before, small)
        references, batches = found
        replayed = held(replay_rows(spark, storages, listings, by_group), small)
        said = held(said_rows(spark, storages, listings), small)
        newest_first = Window.partitionBy("root", "group").orderBy(f.desc("log_index"), "node")
        newest = (
            documents.where("error is null")
            .withColumn("rank", f.row_number().over(newest_first))
            .where("rank = 1")
            .drop("rank")
        )
        written = replayed.where("outcome is null and event is null")
        group_copies = copies.group_copies(states, listings, by_group)
        tables = read_tables(spark, storages, listings, group_copies, small)
        compared = held(comparisons(spark, storages, batches, written, stored, small), small)
        frames = Frames(
            documents=documents,
            newest=newest,
            references=references,
            batches=batches,
            replays=replayed.where("outcome is not null"),
            written=written,
            events=replayed.where("event is not null").select("root", "group", "log_index", *EVENT_NAMES),
            said=said,
            stored=stored,
            comparisons=compared,
            tables=tables,
            histories=collecting.histories(states, len(storages)),
            places=by_group,
            gone=[_gone(found, known) for found, known in zip(whole, places, strict=True)],
            grace=grace,
        )
        results = _results(frames, places)
    for answers, storage in zip(results, storages, strict=True):
        answers.append(views_equal_their_sql(spark, storage))
        answers.append(operators_equal_their_replay(spark, storage))
    left: dict[int, Published] = {}
    with settings(spark, small):
        figures = _figures(frames, places)
        if leave_proofs:
            passed = [root for root, told in enumerate(results) if not any(one.findings for one in told)]
            audited = {root: _audited(states, root, places[root]) for root in passed}
            left = publish(spark, storages, passed, found.right(versions), audited, small)
    seconds = time.perf_counter() - began
    for kept in (documents, references, batches, replayed, said, stored, compared, *tables.cached):
        kept.unpersist()
    runs = []
    for root, storage in enumerate(storages):
        use = _proof_use(proofs[root], left.get(root))
        url, cluster = storage.storage.url, storage.cluster
        runs.append(AuditRun(url, cluster, results[root], figures[root], seconds, use))
    return runs


def _audited(states: Sequence[Any], root: int, places: Places) -> dict[str, Row]:
    """By group, the newest checkpoint of each partition, and where its log ended: what a proof is about."""
    told: dict[str, Row] = {}
    for state in sorted(states, key=lambda state: int(state["log_index"])):
        if state["root"] == root and (place := places.by_group.get(state["group"])):
            said = {"log_index": state["log_index"], "end_offset": state["next_offset"]}
            told[str(state["group"])] = {"topic": place.topic, "partition": place.partition, **said}
    return told


def _proof_use(used: Proof | None, left: Published | None) -> ProofUse:
    number = used.number if used else None
    return ProofUse(number, *left) if left else ProofUse(number)


def _listed(storage: ClusterStorage) -> Listing:
    try:
        found = listing(storage)
    except ValueError as error:
        raise NothingToAudit(str(error)) from error
    if not found.documents:
        raise NothingToAudit(
            f"{storage.storage.url} has no checkpoint of cluster {storage.cluster}: take one with "
            "`strandline checkpoint`, wait for the first (checkpoints.interval), or check the id"
        )
    return found


def find_places(storage: ClusterStorage, found: Listing) -> Places:
    """Each group's partition, by the controller's newest readable document; empty without one."""
    names = [name for name in found.documents if name.group == CONTROLLER_GROUP]
    for name in sorted(names, key=lambda name: (-name.log_index, name.node)):
        try:
            document = read_document(storage.storage.get(snapshot_name(*name)), name)
            state = controller_snapshot.load(document.state)
        except (StorageError, ValueError):
            continue
        by_group = {
            partition.group: GroupPlace(
                topic.topic_id, topic.name, number, "compact" in CLEANUP_POLICY.of(topic.configs)
            )
            for topic in state.topics.values()
            for number, partition in enumerate(topic.partitions)
        }
        return Places(by_group, state.next_group)
    return Places({}, 0)


def without_gone(found: Listing, places: Places) -> Listing:
    return Listing(
        [name for name in found.documents if not places.is_gone(name.group)],
        [name for name in found.logs if not places.is_gone(name.group)],
        [name for name in found.locals if not places.is_gone(name.group)],
        found.others,
        found.bytes,
    )


def _gone(found: Listing, places: Places) -> Counter[int]:
    names: list[SnapshotName | LogName | LocalName] = [*found.documents, *found.logs, *found.locals]
    return Counter(name.group for name in names if places.is_gone(name.group))


_PLACE = {
    "group": "long",
    "log_index": "long",
    "node": "int",
    "base_offset": "long",
    "object": "string",
    "position": "long",
    "problem": "string",
}
"""Columns of a finding, which not every audit has; those without a value are left out of its row."""


def _results(frames: Frames, places: Sequence[Places]) -> list[list[AuditResult]]:
    """Every audit's result for every storage. All audits go into two jobs: a job costs more than its rows."""
    answers = [(audit, audit.ask(frames)) for audit in asked(AUDITS, frames)]
    looked_at = {audit.name: answer.looked_at for audit, answer in answers}
    rows = reduce(DataFrame.union, [_counted(audit, answer) for audit, answer in answers]).collect()
    counts = {(row["root"], row["audit"]): json.loads(row["counts"]) for row in rows}
    listed = _listed_rows(answers, places)
    nothing: tuple[list[Row], int] = ([], 0)
    results: list[list[AuditResult]] = [[] for _ in places]
    for root in range(len(places)):
        for audit in AUDITS:
            counted = counts.get((root, audit.name)) or dict.fromkeys(audit.counts, 0)
            evidence, number = listed.get((root, audit.name, False), nothing)
            remarks, _ = listed.get((root, audit.name, True), nothing)
            looked = Verdict.PASSED if counted.get(looked_at.get(audit.name, "")) else Verdict.NOTHING
            verdict = Verdict.FINDING if number else looked
            said = AuditResult(audit.name, audit.question, verdict, counted, evidence, number, remarks)
            results[root].append(said)
    return results


def _counted(audit: Audit, answer: Answer) -> DataFrame:
    counts = f.to_json(f.struct(*(f.col(f"`{name}`") for name in audit.counts))).alias("counts")
    return answer.counts.select("root", f.lit(audit.name).alias("audit"), counts)


def _listed_rows(
    answers: Sequence[tuple[Audit, Answer]], places: Sequence[Places]
) -> dict[tuple[int, str, bool], tuple[list[Row], int]]:
    """By storage, audit and whether they are remarks: the first rows, and how many there are."""
    parts = []
    for audit, answer in answers:
        for rows, remark in ((answer.findings, False), (answer.remarks, True)):
            if rows is not None:
                there = [
                    f.col(name) if name in rows.columns else f.lit(None).cast(kind).alias(name)
                    for name, kind in _PLACE.items()
                ]
                labels = (f.lit(audit.name).alias("audit"), f.lit(remark).alias("remark"))
                parts.append(rows.select("root", *labels, *there))
    of_audit = Window.partitionBy("root", "audit", "remark")
    chosen = (
        reduce(DataFrame.union, parts)
        .withColumn("place", f.row_number().over(of_audit.orderBy(*_PLACE)))
        .withColumn("all", f.count("*").over(of_audit))
        .where(f.col("place") <= MAX_ROWS)
    )
    found: dict[tuple[int, str, bool], tuple[list[Row], int]] = {}
    for row in sorted((row.asDict() for row in chosen.collect()), key=lambda row: int(row["place"])):
        root, audit_name, remark, number = (row.pop(name) for name in ("root", "audit", "remark", "all"))
        where = {name: row[name] for name in _PLACE if row[name] is not None}
        found.setdefault((root, audit_name, remark), ([], number))[0].append(_named(where, places[root]))
    return found


def _named(row: dict[str, Any], places: Places) -> Row:
    group = row.get("group")
    place = places.by_group.get(group) if group is not None else None
    topic = "(controller)" if group == CONTROLLER_GROUP else place.topic if place else None
    return {"topic": topic, "partition": place.partition if place else None, **row}


def _figures(frames: Frames, places: Sequence[Places]) -> list[Figures]:
    """Figures of the report, computed by Spark: a few rows, whatever the number of batches."""
    batches = frames.batches.where("newest")
    records = batches.groupBy("root", "group").agg(
        f.sum("record_count").alias("records"), f.sum("length").alias("bytes"), f.count("*").alias("batches")
    )
    bucket = f.pow(f.lit(2), f.ceil(f.log2("length"))).cast("long").alias("bytes")
    sizes = batches.groupBy("root", bucket).agg(f.count("*").alias("batches"))
    offsets = (
        batches.where("epoch is not null")
        .groupBy("root", "group", "epoch")
        .agg(f.max(f.col("base_offset") + f.col("record_count")).alias("end_offset"))
    )
    figures = [Figures([], [], []) for _ in places]
    for row in sorted(sizes.collect(), key=lambda row: int(row["bytes"])):
        figures[row["root"]].batch_bytes.append({"bytes": row["bytes"], "batches": row["batches"]})
    for frame, keep in ((records, "records"), (offsets, "offsets")):
        rows = [counted.asDict() for counted in frame.collect()]
        for counted_row in sorted(rows, key=lambda row: (row["group"], row.get("epoch", 0))):
            root = counted_row.pop("root")
            getattr(figures[root], keep).append(_named(counted_row, places[root]))
    return figures
