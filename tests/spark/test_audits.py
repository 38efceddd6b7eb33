"""Each audit finds what it looks for, and nothing else turns red but what has to.

Two clusters are stored, one that keeps everything and one that was collected. They are copied once for each
kind of damage, and all copies are audited in one pass, with those of other modules.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgpack
import numpy as np
import pytest
from pyspark.sql import SparkSession

from strandline.snapshot.document import decode
from strandline.snapshot.extent_rows import EXTENT_ROWS, LEVEL_ONE_ROWS
from strandline.snapshot.level_one_format import parse as parse_level_one
from strandline.snapshot.names import checkpoint_prefix, snapshot_name
from strandline.snapshot.spark.audits import (
    AuditRun,
    ClusterStorage,
    NothingToAudit,
    Verdict,
    answering,
    documents,
    run,
    run_audits,
    write_report,
)
from strandline.snapshot.spark.audits import __main__ as command
from strandline.snapshot.spark.audits.documents import Listing, document_rows, listing
from strandline.snapshot.spark.audits.replay import NOT_COVERED, replay_rows
from strandline.snapshot.storage import FolderStorage, NoAnswer, open_storage
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP
from strandline.statemachine.object_names import object_name
from strandline.statemachine.partition.extent import ObjectExtent
from strandline.statemachine.partition.level_one import level_one_name
from tests.spark.collected_cluster import build_collected
from tests.spark.damage import Copy, change_extents, change_level_one, set_extent, set_fields
from tests.spark.stored_cluster import CLUSTER, StoredCluster, build_cluster
from tests.spark.verdicts import NO_COMPACTION, result

# All copies are audited by the test that comes first: some 20 seconds on two idle cores.
pytestmark = pytest.mark.timeout(300)

PRODUCER_EPOCH_AT, BASE_SEQUENCE_AT, COUNT_AT = 51, 53, 57


class Damage(NamedTuple):
    """What is done to a copy, which audits must find it, and what the first of them must say and where."""

    do: Callable[[Copy], Any]
    found_by: Set[str] = frozenset()
    says: str = ""
    place: Mapping[str, Any] = MappingProxyType({})
    collected: bool = False
    """Whether it is done to the cluster that was collected."""


def _batch(copy: Copy, topic: str, number: int, producer: int, nth: int) -> ObjectExtent:
    """The nth extent of a partition that a producer wrote."""
    found = []
    for extent in copy.extents(copy.group(topic, number)):
        data = copy.path(extent.object_name).read_bytes()[extent.position :][: extent.length]
        if struct.unpack_from(">q", data, 43)[0] == producer:
            found.append(extent)
    return found[nth]


def _set(form: str, at: int, change: Callable[[int], int]) -> Callable[[bytearray], None]:
    def do(batch: bytearray) -> None:
        struct.pack_into(form, batch, at, change(struct.unpack_from(form, batch, at)[0]))

    return do


def _newest(copy: Copy, topic: str, number: int, change: Callable[[dict[str, Any]], None]) -> None:
    """Change all replicas alike; no log says otherwise, so that nothing can be replayed."""
    copy.without_logs().change_newest(copy.group(topic, number), change)


def _one_replica(copy: Copy) -> None:
    group = copy.group("clicks", 0)
    copy.change_state(group, copy.indexes(group)[-1], lambda s: s.update(time=s["time"] + 1), nodes=[2])


def _rot_document(copy: Copy) -> None:
    group = copy.group("clicks", 0)
    copy.flip(snapshot_name(CLUSTER, group, copy.indexes(group)[0], 3), 200)


def _misplace_document(copy: Copy) -> None:
    group = copy.group("clicks", 1)
    first, second, _ = copy.indexes(group)
    for node in (1, 2, 3):
        name = snapshot_name(CLUSTER, group, second, node)
        shutil.copy(copy.path(snapshot_name(CLUSTER, group, first, node)), copy.path(name))
    copy.without_logs()


def _remove_documents(copy: Copy, *nodes: int) -> None:
    group = copy.group("orders", 1)
    for node in nodes:
        copy.path(snapshot_name(CLUSTER, group, copy.indexes(group)[-1], node)).unlink()


def _leave_over(copy: Copy) -> None:
    """Checkpoints that are retained no more, and of which one document is there: the rest was deleted, or a
    node that started again has published its own once more."""
    group = copy.group("orders", 1)
    removed = copy.indexes(group)[0]
    _newest(copy, "orders", 1, lambda state: state.update(checkpoints=state["checkpoints"][1:]))
    for node in (1, 3):
        copy.path(snapshot_name(CLUSTER, group, removed, node)).unlink()
        copy.path(snapshot_name(CLUSTER, CONTROLLER_GROUP, copy.indexes(CONTROLLER_GROUP)[0], node)).unlink()


def _old_only(copy: Copy) -> tuple[int, Any]:
    """The first extent that only an older, leased checkpoint still names; and that checkpoint."""
    group = copy.group("orders", 0)
    index = copy.indexes(group)[0]
    document = decode(copy.path(snapshot_name(CLUSTER, group, index, 1)).read_bytes())
    return index, np.frombuffer(msgpack.unpackb(document.state)["extents"], EXTENT_ROWS)[0]


def _rot_old_object(copy: Copy) -> None:
    _, extent = _old_only(copy)
    copy.flip(object_name(int(extent["epoch"]), bytes(extent["object_id"])), int(extent["position"]) + 70)


def _rot_batch(copy: Copy) -> None:
    extent = copy.extents(copy.group("clicks", 0))[5]
    copy.flip(extent.object_name, extent.position + extent.length - 1)


def _rot_footer(copy: Copy) -> None:
    extent = copy.extents(copy.group("clicks", 0))[5]
    copy.flip(extent.object_name, copy.path(extent.object_name).stat().st_size - 30)


def _remove_object(copy: Copy) -> None:
    copy.path(copy.extents(copy.group("clicks", 0))[5].object_name).unlink()


def _swap_objects(copy: Copy) -> None:
    first, second = (copy.extents(copy.group("clicks", 0))[n].object_name for n in (5, 6))
    shutil.copy(copy.path(second), copy.path(first))


def _other_partition(copy: Copy) -> None:
    """The fifth batch of one partition is named where the other's is; same counts, so offsets stay right."""
    extents = copy.extents(copy.group("orders", 1))
    other = next(
        extent
        for extent in copy.extents(copy.group("orders", 0))
        if extent.record_count == extents[5].record_count and extent.epoch <= 8
    )

    def change(rows: Any) -> Any:
        row = rows[5:6].copy()
        for name in ("max_timestamp", "length", "epoch", "position"):
            row[name] = getattr(other, name)
        row["object_id"] = np.void(other.object_id)
        rows[5] = row[0]
        return rows

    _newest(copy, "orders", 1, change_extents(change))


def _drop_entry(copy: Copy) -> None:
    group = copy.group("orders", 0)
    copy.change_log(group, copy.indexes(group)[1], lambda entries: entries.pop(3))


def _rot_log(copy: Copy) -> None:
    for path in copy.root.glob(f"snapshots/*/{copy.group('orders', 0):010d}/*/log-*"):
        copy.flip(path.relative_to(copy.root).as_posix(), 100)


def _all_replicas(copy: Copy) -> None:
    copy.change_newest(copy.group("orders", 2), lambda state: state.update(time=state["time"] + 5))


def _unlink(copy: Copy, name: str) -> None:
    copy.path(name).unlink()


def _removed_name(copy: Copy) -> str:
    """An object that was merged, and that a leased checkpoint still names."""
    partition = copy.cluster.partitions["visits", 0]
    one = partition.machine.removed[1]
    return level_one_name(partition.topic_id, 0, one.term, one.unique)


def _rot_block(copy: Copy) -> None:
    """In the base offset of its first batch, which Kafka's checksum does not cover."""
    name = copy.level_one("visits", 1)[1]
    copy.flip(name, parse_level_one(name, copy.path(name).read_bytes()).blocks[1].position + 7)


def _rot_level_one_footer(copy: Copy) -> None:
    name = copy.level_one("visits", 1)[1]
    copy.flip(name, copy.path(name).stat().st_size - 30)


def _swap_level_one(copy: Copy) -> None:
    first, second = copy.level_one("visits", 1)[:2]
    shutil.copy(copy.path(second), copy.path(first))


def _start_below_the_objects(state: dict[str, Any]) -> None:
    state["start_offset"] -= 1


def _forget_the_last_object(state: dict[str, Any]) -> None:
    """Retention of everything, undone by hand: the last reconciled offset with it."""
    rows = np.frombuffer(state["level_one"], LEVEL_ONE_ROWS)
    state["next_offset"] = int(rows["base_offset"][-1])
    state["level_one"] = rows[:-1].tobytes()


def _set_row(name: str, value: int) -> Callable[[Any], Any]:
    """Set a field of the first row."""

    def change(rows: Any) -> Any:
        rows[name][0] = value
        return rows

    return change


def _no_lease_kept_it(copy: Copy) -> None:
    """A removed object that the checkpoint of a grace before says could go."""
    group = copy.group("visits", 0)
    removed = [[3, 1, bytes(15) + b"\xff", 5]]
    for index in copy.without_logs().indexes(group)[-2:]:
        copy.change_state(group, index, lambda state: state.update(removed=removed + state["removed"]))
    copy.put_level_one("visits", 0, 1)


def _bring_back_documents(copy: Copy) -> None:
    """The group of a topic that was deleted before the last grace has its documents still."""
    for index in copy.without_logs().indexes(CONTROLLER_GROUP)[-2:]:
        copy.change_state(CONTROLLER_GROUP, index, lambda state: state.update(next_group=50))
    for node in (1, 2):
        name = snapshot_name(CLUSTER, 40, 7, node)
        copy.path(name).parent.mkdir(parents=True, exist_ok=True)
        copy.path(name).write_bytes(b"half of it")


def _m_back(copy: Copy) -> None:
    """A partition that never had a checkpoint was, it is said now, created long ago."""
    group = copy.group("clicks", 1)
    shutil.rmtree(copy.path(checkpoint_prefix(CLUSTER, group, 0)).parent)

    def change(state: dict[str, Any]) -> None:
        partition = next(p for topic in state["topics"] for p in topic[2] if p[0] == group)
        partition[2] = 1

    copy.without_logs().change_newest(CONTROLLER_GROUP, change)


def _only_a_log_names(copy: Copy) -> str:
    """The level-zero object of the collected cluster's last write, which level one has since."""
    (name,) = [path.relative_to(copy.root).as_posix() for path in copy.root.glob("l0/*/*24/*")]
    return name


def _other_record(batch: bytearray, stamped: list[int]) -> None:
    batch[-5] ^= 1


def _other_leader_epoch(batch: bytearray, stamped: list[int]) -> None:
    stamped[2] += 1


def _first_of_level_one(copy: Copy, change: Callable[[bytearray, list[int]], None]) -> None:
    """The first batch, which is not compressed, of an object of which level zero is still there."""
    copy.rewrite_level_one(copy.level_one("visits", 1)[0], change, 0)


REFERENCES, OFFSETS, SEQUENCES = "references_exist_and_crc", "offsets_contiguous", "producer_sequences"
EPOCHS, AGREE, REPLAY, WINDOW = "epochs_never_regress", "replicas_agree", "replay", "no_window"
NO_TRANSACTIONS = {
    "aborted_index_equals_replay",
    "every_marker_has_its_transaction",
    "transactions_are_whole",
    "tombstones_kept",
    "rows_match_markers",
    "views_equal_their_sql",
    "operators_equal_their_replay",
}
"""What has nothing to look at here: test_transaction_audits.py has a cluster with transactions."""
STABLE = "last_stable_offset_is_right"
LEVELS, MONOTONE = "level_one_holds_level_zero", "collectable_epochs_monotone"
LEFT, DELETED = "nothing_collectable_left", "nothing_deleted_above_m"
VISITS = {"topic": "visits", "partition": 1}
ORDERS, CLICKS = {"topic": "orders", "partition": 0}, {"topic": "clicks", "partition": 0}

DAMAGES = {
    "none": Damage(lambda copy: None),
    "logs gone": Damage(Copy.without_logs),
    "one document missing": Damage(lambda copy: _remove_documents(copy, 2)),
    "one replica differs": Damage(_one_replica, {AGREE, REPLAY}, "replicas differ: nodes 1, 3: ", CLICKS),
    "document rots": Damage(_rot_document, {AGREE}, "node 3's document: snapshot's SHA-256", CLICKS),
    "documents misplaced": Damage(
        _misplace_document, {AGREE}, "these are the bytes of group 5, entry 2", {"partition": 1}
    ),
    "one document left": Damage(
        lambda copy: _remove_documents(copy, 1, 3), {AGREE}, "only one replica", {"partition": 1}
    ),
    "leftovers of a removed one": Damage(_leave_over),
    "window in a state": Damage(
        lambda copy: _newest(copy, "orders", 0, set_fields(window=[4, 8])), {WINDOW}, "a field window", ORDERS
    ),
    "previous epoch goes back": Damage(
        lambda copy: _newest(copy, "orders", 0, set_fields(previous_applied_epoch=2)),
        {EPOCHS, MONOTONE},
        "the previous applied epoch goes back from 3 to 2",
        ORDERS,
    ),
    "highest epoch goes back": Damage(
        lambda copy: _newest(copy, "clicks", 0, set_fields(max_applied_epoch=3, previous_applied_epoch=3)),
        {EPOCHS},
        "the highest applied epoch goes back from 4 to 3",
        CLICKS,
    ),
    "cluster epoch goes back": Damage(
        lambda copy: copy.without_logs().change_newest(0, set_fields(cluster_epoch=3)),
        {EPOCHS},
        "the cluster epoch goes back from 4 to 3",
        {"topic": "(controller)"},
    ),
    "term goes back": Damage(
        lambda copy: _newest(copy, "clicks", 0, set_fields(term=3)),
        {EPOCHS},
        "the term goes back from 4 to 3",
    ),
    "previous above highest": Damage(
        lambda copy: _newest(copy, "orders", 0, set_fields(previous_applied_epoch=9)),
        {EPOCHS},
        "the previous applied epoch 9 is above the highest, 8",
        ORDERS,
    ),
    "creation above previous": Damage(
        lambda copy: _newest(copy, "orders", 0, set_fields(creation_epoch=5)),
        {EPOCHS},
        "the creation epoch 5 is above the previous applied one, 4",
        ORDERS,
    ),
    "object gone": Damage(_remove_object, {REFERENCES, DELETED}, "there is no such object"),
    "object under another's name": Damage(_swap_objects, {REFERENCES}, "these are the bytes of l0/"),
    "batch rots": Damage(_rot_batch, {REFERENCES}, "checksum does not match", CLICKS),
    "footer rots": Damage(_rot_footer, {REFERENCES}, "footer's checksum"),
    "old object rots": Damage(_rot_old_object, {REFERENCES}, "checksum does not match", ORDERS),
    "timestamp of an extent": Damage(
        lambda copy: _newest(copy, "clicks", 0, set_extent(4, max_timestamp=5)),
        {REFERENCES},
        "the extent's newest timestamp is 5, the batch's",
        CLICKS,
    ),
    "another partition's batch": Damage(
        _other_partition, {REFERENCES, SEQUENCES}, "the bytes are of partition 0", {"partition": 1}
    ),
    "extent missing": Damage(
        lambda copy: _newest(copy, "clicks", 0, change_extents(lambda rows: np.delete(rows, 4))),
        {OFFSETS},
        "begins at offset 10, the one before ends at 8",
        {**CLICKS, "base_offset": 10},
    ),
    "first extent missing": Damage(
        lambda copy: _newest(copy, "clicks", 0, change_extents(lambda rows: rows[1:])),
        {OFFSETS, MONOTONE},
        "the first batch, at 2, does not hold the start, 0",
        CLICKS,
    ),
    "last extent missing": Damage(
        lambda copy: _newest(copy, "clicks", 0, change_extents(lambda rows: rows[:-1])),
        {OFFSETS},
        "the batches end at offset 34, the high watermark is 36",
        CLICKS,
    ),
    "extents all missing": Damage(
        lambda copy: _newest(copy, "clicks", 0, change_extents(lambda rows: rows[:0])),
        {OFFSETS, MONOTONE},
        "no batch from offset 0 to 36",
        CLICKS,
    ),
    "batch holds more records": Damage(
        lambda copy: copy.rewrite_batch(
            copy.extents(copy.group("clicks", 0))[3], _set(">i", COUNT_AT, lambda count: count + 1)
        ),
        {OFFSETS, REFERENCES},
        "the batch holds 3 records, its offsets are counted for 2",
        {**CLICKS, "base_offset": 6},
    ),
    "sequence twice": Damage(
        lambda copy: copy.rewrite_batch(
            _batch(copy, "orders", 0, 7, 3), _set(">i", BASE_SEQUENCE_AT, lambda first: first - 3)
        ),
        {SEQUENCES},
        " twice: ",
        ORDERS,
    ),
    "sequence missing": Damage(
        lambda copy: copy.rewrite_batch(
            _batch(copy, "orders", 1, 8, -1), _set(">i", BASE_SEQUENCE_AT, lambda first: first + 2)
        ),
        {SEQUENCES},
        "producer 8 epoch 0 misses sequences from 63 to 65",
        {"topic": "orders", "partition": 1},
    ),
    "producer's epoch goes back": Damage(
        lambda copy: copy.rewrite_batch(
            _batch(copy, "orders", 0, 9, -1), _set(">h", PRODUCER_EPOCH_AT, lambda epoch: epoch - 1)
        ),
        {SEQUENCES},
        "producer 9 epoch 0 goes back from epoch 1",
        ORDERS,
    ),
    "all replicas differ from the log": Damage(
        _all_replicas, {REPLAY}, "its state differs in time", {"topic": "orders", "partition": 2}
    ),
    "entry missing in a log": Damage(_drop_entry, {REPLAY}, "after replaying from 13: node 1: ", ORDERS),
    "log rots": Damage(_rot_log, {REPLAY}, "SHA-256", ORDERS),
    "level-one object gone": Damage(
        lambda copy: _unlink(copy, copy.level_one("visits", 1)[0]),
        {REFERENCES},
        "there is no such object",
        {**VISITS, "base_offset": 0},
    ),
    "level-one object gone that a lease keeps": Damage(
        lambda copy: _unlink(copy, _removed_name(copy)), {REFERENCES}, "there is no such object"
    ),
    "block rots": Damage(_rot_block, {REFERENCES}, "the block's checksum does not match", VISITS),
    "level-one footer rots": Damage(_rot_level_one_footer, {REFERENCES}, "the footer's checksum", VISITS),
    "level-one object under another's name": Damage(
        _swap_level_one, {REFERENCES}, "these are the bytes of l1/", VISITS
    ),
    "level one's newest timestamp": Damage(
        lambda copy: _newest(copy, "visits", 1, change_level_one(_set_row("max_timestamp", 5))),
        {REFERENCES},
        "in place of 5",
        VISITS,
    ),
    "level-one object missing": Damage(
        lambda copy: _newest(copy, "visits", 1, change_level_one(lambda rows: np.delete(rows, 1))),
        {OFFSETS},
        "the one before ends at",
        VISITS,
    ),
    "start below level one": Damage(
        lambda copy: _newest(copy, "visits", 1, set_fields(start_offset=1)),
        # Below its start offset level one counts as clean, and it never was.
        {OFFSETS, MONOTONE, "level_one_is_clean"},
        "does not hold the start, 1",
        VISITS,
        collected=True,
    ),
    "another record in level one": Damage(
        lambda copy: _first_of_level_one(copy, _other_record),
        {LEVELS},
        "level one differs from level zero in value",
        {**VISITS, "base_offset": 0},
    ),
    "another leader epoch in level one": Damage(
        lambda copy: _first_of_level_one(copy, _other_leader_epoch),
        {LEVELS},
        "level one differs from level zero in leader_epoch",
        VISITS,
    ),
    "start offset goes back": Damage(
        lambda copy: _newest(copy, "visits", 0, _start_below_the_objects),
        {MONOTONE},
        "the start offset goes back from 4 to 3",
        {"topic": "visits", "partition": 0},
    ),
    "last reconciled offset goes back": Damage(
        lambda copy: copy.without_logs().change_newest(copy.group("visits", 1), _forget_the_last_object),
        {MONOTONE, STABLE},
        "the last reconciled offset goes back",
        VISITS,
        collected=True,
    ),
    "reconciled without an entry": Damage(
        lambda copy: copy.without_logs().change_newest(
            copy.group("visits", 1), lambda s: s.update(last_reconciled_log_index=1)
        ),
        {MONOTONE},
        "the log index of the last reconciled offset goes back",
        VISITS,
    ),
    "reconciled by an entry to come": Damage(
        lambda copy: _newest(copy, "visits", 1, set_fields(last_reconciled_log_index=1 << 40)),
        {MONOTONE},
        "the last reconciled offset came later, with entry",
        VISITS,
    ),
    "M(p) goes back": Damage(
        lambda copy: _newest(copy, "clicks", 0, lambda s: s["checkpoints"].append([99, 1 << 60, 1])),
        {MONOTONE},
        "M(p), the highest collectable epoch, goes back from 2 to 0",
        CLICKS,
    ),
    "M goes back": Damage(_m_back, {MONOTONE}, "M, the cluster's, goes back from 2 to 0"),
    "collected": Damage(lambda copy: None, collected=True),
    "object above M gone that a log names": Damage(
        lambda copy: _unlink(copy, _only_a_log_names(copy)),
        {DELETED},
        "an object of epoch 24 is gone, while M cannot be above 21",
        {"topic": "visits", "partition": 0},
        collected=True,
    ),
    "level-zero object left": Damage(
        lambda copy: copy.put_level_zero(7),
        {LEFT},
        "an object of epoch 7 is left, M was 7",
        collected=True,
    ),
    "level-zero object above M": Damage(lambda copy: copy.put_level_zero(8), collected=True),
    "level-zero object while paused": Damage(
        lambda copy: (
            copy.without_logs().change_newest(CONTROLLER_GROUP, set_fields(collection_paused=True)),
            copy.put_level_zero(7),
        ),
        collected=True,
    ),
    "orphan": Damage(
        lambda copy: copy.put_level_one("visits", 0, 2),
        {LEFT},
        "nothing names it: it is of term 2, its partition was in 3",
        {"topic": "visits", "partition": 0},
        collected=True,
    ),
    "undecided": Damage(lambda copy: copy.put_level_one("visits", 0, 3), collected=True),
    "removed object left": Damage(
        _no_lease_kept_it, {LEFT}, "it was removed, and no lease kept it", collected=True
    ),
    "documents of a deleted topic left": Damage(
        _bring_back_documents, {LEFT}, "2 published objects of a group are left", collected=True
    ),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> StoredCluster:
    return build_cluster(tmp_path_factory.mktemp("stored") / "objects")


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> StoredCluster:
    return build_collected(tmp_path_factory.mktemp("collected") / "objects")


def storages(root: Path) -> dict[str, ClusterStorage]:
    """Damaged copies, to be audited together."""
    whole, collected = build_cluster(root / "whole"), build_collected(root / "collected")
    damaged = {}
    for number, (name, damage) in enumerate(DAMAGES.items()):
        copy = Copy(collected if damage.collected else whole, root / str(number))
        damage.do(copy)
        damaged[name] = ClusterStorage(open_storage(str(copy.root)), CLUSTER)
    return damaged


@pytest.fixture(scope="module")
def runs(audited: dict[str, dict[str, AuditRun]]) -> dict[str, AuditRun]:
    return audited[__name__]


def test_checkpoints_that_go_while_they_are_read_are_left_out_but_the_newest(
    spark: SparkSession, cluster: StoredCluster, tmp_path: Path
) -> None:
    copy = Copy(cluster, tmp_path / "copy")
    group = copy.group("orders", 1)
    storage = ClusterStorage(open_storage(str(copy.root)), CLUSTER)
    found = listing(storage)
    first, *_, last = copy.indexes(group)
    for index in (first, last):
        copy.path(snapshot_name(CLUSTER, group, index, 2)).unlink()
    for path in copy.root.glob(f"snapshots/*/{group:010d}/*/log-*"):
        path.unlink()
    rows = document_rows(spark, [storage], [found]).where(f"group = {group}").collect()
    assert {row["log_index"] for row in rows} == set(copy.indexes(group)) - {first}
    assert [(row["log_index"], row["node"]) for row in rows if row["error"]] == [(last, 2)]
    replayed = replay_rows(spark, [storage], [found], [{}])
    replays = replayed.where(f"group = {group} and outcome is not null").collect()
    assert {row["outcome"] for row in replays} == {NOT_COVERED}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_by_the_audit_that_looks_for_it_and_no_other(
    name: str, runs: dict[str, AuditRun]
) -> None:
    damage, run = DAMAGES[name], runs[name]
    found = {result.name: result.evidence for result in run.results if result.verdict is Verdict.FINDING}
    assert set(found) == damage.found_by, found
    assert run.finding is bool(damage.found_by)
    if damage.found_by:
        texts = [row for rows in found.values() for row in rows if damage.says in str(row["problem"])]
        assert texts, found
        assert {key: texts[0][key] for key in damage.place} == damage.place


def test_the_undamaged_cluster_was_looked_at_as_a_whole(
    runs: dict[str, AuditRun], cluster: StoredCluster
) -> None:
    run = runs["none"]
    without = {result.name for result in run.results if result.verdict is Verdict.NOTHING}
    assert without == NO_TRANSACTIONS | NO_COMPACTION
    assert not run.finding
    partitions = cluster.partitions.values()
    checkpoints = sum(map(len, (p.checkpoint_indexes for p in partitions))) + 3
    assert result(run, AGREE).counts == {
        "documents": 3 * checkpoints,
        "checkpoints": checkpoints,
        "missing documents": 0,
    }
    assert result(run, REPLAY).counts["replayed"] == checkpoints
    assert result(run, OFFSETS).counts["partitions"] == 7
    # Whole batches and objects: the first one may begin below the start offset.
    extents = [[*p.machine.level_one, *p.machine.extents] for p in partitions]
    assert result(run, OFFSETS).counts["records"] == sum(
        held[-1].end_offset - held[0].base_offset for held in extents if held
    )
    zero, one = (
        len([path for path in (cluster.root / level).rglob("*") if path.is_file()]) for level in ("l0", "l1")
    )
    references = result(run, REFERENCES).counts
    assert references["inline batches"] == 3
    # Two were removed before a checkpoint could name them.
    assert references["level-one objects"] == one - 2
    assert result(run, SEQUENCES).counts["producers"] == 4
    named = result(run, DELETED).counts
    assert named == {"objects above M": zero, "named objects": zero, "collected": 0}
    left = result(run, LEFT).counts
    assert (left["level-zero objects"], left["level-one objects"]) == (zero, one)
    assert left["judged objects"] == zero + one
    levels = result(run, LEVELS).counts
    both, whole = (cluster.partitions["visits", number].machine for number in range(2))
    begin = next(iter(both.level_one)).base_offset
    assert levels["records compared"] == both.level_one.end_offset - begin + whole.next_offset
    assert levels["records of which level zero is gone"] == 0


def test_the_collected_cluster_was_looked_at_as_well(
    runs: dict[str, AuditRun], collected: StoredCluster
) -> None:
    run = runs["collected"]
    assert not run.finding
    zero, one = (
        len([path for path in (collected.root / level).rglob("*") if path.is_file()])
        for level in ("l0", "l1")
    )
    assert zero == 2
    # Of the topic that was deleted a moment ago nobody can tell.
    assert result(run, LEFT).counts == {
        "judged objects": zero + one - 1,
        "level-zero objects": zero,
        "level-one objects": one,
        "undecided": 1,
        "foreign names": 0,
        # A grace ago there was a topic, deleted since, that was created in epoch 8: it may have held M back.
        "collectable epoch": 7,
    }
    assert result(run, DELETED).counts["objects above M"] == 2
    assert result(run, DELETED).counts["collected"] > 20
    assert result(run, LEVELS).counts["records compared"] == 13
    assert result(run, LEVELS).counts["records of which level zero is gone"] > 300
    assert result(run, MONOTONE).counts["M"] == 18


def test_a_pause_and_a_missing_old_checkpoint_are_told(runs: dict[str, AuditRun]) -> None:
    (remark,) = result(runs["level-zero object while paused"], LEFT).remarks
    assert remark["problem"] == "collecting is, or was until lately, paused: nothing of level zero is due"


def test_without_logs_replay_says_nothing_and_that_it_says_nothing(runs: dict[str, AuditRun]) -> None:
    replay = result(runs["logs gone"], REPLAY)
    assert replay.verdict is Verdict.NOTHING
    assert replay.counts["not covered"] == len(replay.remarks) == 24
    assert replay.remarks[0]["problem"] == "not covered: no log was published"


def test_a_missing_document_is_a_remark(runs: dict[str, AuditRun]) -> None:
    agree = result(runs["one document missing"], AGREE)
    assert agree.counts["missing documents"] == 1
    (remark,) = agree.remarks
    assert remark == {
        "topic": "orders",
        "partition": 1,
        "group": 2,
        "log_index": 23,
        "problem": "no document of node 2",
    }


def test_only_the_batches_in_a_bad_section_are_named(runs: dict[str, AuditRun]) -> None:
    evidence = result(runs["batch rots"], REFERENCES).evidence
    assert [(row["topic"], row["base_offset"]) for row in evidence] == [("clicks", 10)]
    everything = result(runs["footer rots"], REFERENCES).evidence
    assert {row["topic"] for row in everything} == {"orders", "clicks"}
    assert len({row["object"] for row in everything}) == 1


def test_a_checkpoint_under_a_lease_is_looked_at_for_what_only_it_names(runs: dict[str, AuditRun]) -> None:
    evidence = result(runs["old object rots"], REFERENCES).evidence
    assert [(row["log_index"], row["base_offset"]) for row in evidence] == [(13, 0)]


def test_batches_that_cannot_be_read_are_no_gap_in_a_producers_sequence(runs: dict[str, AuditRun]) -> None:
    sequences = result(runs["object gone"], SEQUENCES)
    assert sequences.verdict is Verdict.PASSED
    assert sequences.counts["unreadable batches"] == result(runs["object gone"], REFERENCES).findings > 1


def test_which_replica_is_wrong_is_told_by_the_replay(runs: dict[str, AuditRun]) -> None:
    (row,) = result(runs["one replica differs"], REPLAY).evidence
    assert "node 2: its state differs in time" in str(row["problem"])
    assert "node 1" not in str(row["problem"])


def test_reports(runs: dict[str, AuditRun], tmp_path: Path) -> None:
    run = runs["one replica differs"]
    write_report(run, json=tmp_path / "audit.json", html=tmp_path / "audit.html")
    told = json.loads((tmp_path / "audit.json").read_text())
    assert told["finding"] is True
    assert [audit["verdict"] for audit in told["audits"]].count("finding") == 2
    assert told["audits"][0]["evidence"][0]["topic"] == "clicks"
    page = (tmp_path / "audit.html").read_text()
    assert page.count("<svg") == page.count("<figure") == 3
    assert "2 of 24 audits found something" in page
    assert "replicas differ: nodes 1, 3: " in page
    assert "orders-0" in page
    for outside in ("<script", "<link", "@import", 'src="', "url(http"):
        assert outside not in page
    write_report(run, html=tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text() == page


def test_the_command_prints_verdicts_and_exits_by_them(
    runs: dict[str, AuditRun],
    cluster: StoredCluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    arguments = ["--url", cluster.url, "--cluster", CLUSTER, "--json", str(tmp_path / "a.json")]
    for name, code in (("none", 0), ("sequence missing", 1)):
        monkeypatch.setattr(command, "run_audits", lambda *args, name=name, **more: runs[name])
        assert command.main(arguments) == code
        assert json.loads((tmp_path / "a.json").read_text())["finding"] is bool(code)
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("passed   replicas_agree: 72 documents, 24 checkpoints")
    assert any("misses sequences from" in line for line in out)


@pytest.mark.parametrize(
    ("url", "cluster_id", "reason"),
    [
        ("/nonexistent/objects", CLUSTER, "there is no such folder"),
        (None, "elsewhere", "has no checkpoint of cluster elsewhere"),
        (None, "no/such", "cannot stand in an object's name"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    url: str | None, cluster_id: str, reason: str, cluster: StoredCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--url", url or cluster.url, "--cluster", cluster_id]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line


def test_a_storage_without_checkpoints_is_no_pass(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NothingToAudit, match="take one with `strandline checkpoint`, wait"):
        run_audits(str(tmp_path), {}, CLUSTER, spark=spark)


@pytest.mark.parametrize("in_tasks", [False, True])
def test_storage_that_stops_to_answer_is_no_finding(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_tasks: bool
) -> None:
    """Each of its objects would be missing."""
    own = build_cluster(tmp_path / "objects")
    find_places = run.find_places

    def lost(storage: ClusterStorage, found: Listing) -> run.Places:
        places = find_places(storage, found)
        own.root.rename(tmp_path / "away")
        return places

    monkeypatch.setattr(run, "find_places", lost)
    monkeypatch.setattr(answering, "PATIENCE_SECONDS", 0.0)
    if in_tasks:
        monkeypatch.setattr(documents, "is_little", lambda listings: False)
    with pytest.raises(NothingToAudit) as told:
        run_audits(own.url, {}, CLUSTER, spark=spark)
    assert str(told.value) == (
        f"{own.url}: the folder is gone, or empty: bring it back, or mount it; "
        "the audit has no verdict: begin it again"
    )


def test_one_object_that_cannot_be_read_is_a_finding(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is, as a bad sector: storage that answers all else is not waited for."""
    own = build_cluster(tmp_path / "objects")
    broken = str(min(path.relative_to(own.root) for path in (own.root / "l0").rglob("*") if path.is_file()))
    read = FolderStorage.get

    def get(storage: FolderStorage, key: str) -> bytes:
        if key == broken:
            raise NoAnswer(f"{key}: Input/output error")
        return read(storage, key)

    monkeypatch.setattr(FolderStorage, "get", get)
    monkeypatch.setattr(
        FolderStorage, "get_range", lambda storage, key, at, size: get(storage, key)[at : at + size]
    )
    monkeypatch.setattr(answering, "FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(answering, "PATIENCE_SECONDS", 0.0)
    results = run_audits(own.url, {}, CLUSTER, spark=spark).results
    assert "references_exist_and_crc" in {one.name for one in results if one.verdict is Verdict.FINDING}
