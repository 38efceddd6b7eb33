"""Audits and reads of a cluster whose inline batches were stored in objects: some are, some are lifted since.

Each damage to what was stored is done to a copy of its own, and all copies are audited in one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgpack
import pytest

from strandline.snapshot.spark.audits import AuditRun, ClusterStorage, Verdict
from strandline.snapshot.spark.fetch import read_windows
from strandline.snapshot.spark.options import parse
from strandline.snapshot.spark.plan import plan
from strandline.snapshot.spark.source import SCHEMA, arrow_schema
from strandline.snapshot.storage import open_storage
from strandline.statemachine.partition.extent import ObjectExtent
from strandline.statemachine.partition.partition_commands import PartitionOpcode
from tests.spark.damage import Copy
from tests.spark.stored_cluster import CLUSTER, StoredCluster, build_cluster
from tests.spark.verdicts import result

pytestmark = pytest.mark.timeout(300)

TOPIC, NUMBER = "orders", 2


class Damage(NamedTuple):
    """What is done to a copy, and which audits must find it."""

    do: Callable[[Copy], Any]
    found_by: Set[str] = frozenset()


def build(root: Path) -> StoredCluster:
    """Of one partition two inline batches are stored; one of these is in level one since, one is not."""
    cluster = build_cluster(root)
    partition = cluster.partitions[TOPIC, NUMBER]
    cluster.store_inline(partition, 2)
    cluster.checkpoint()
    partition.reconcile(2)
    cluster.checkpoint()
    return cluster


def _stored(copy: Copy) -> ObjectExtent:
    """The batch that was inline, is stored, and is not lifted."""
    return copy.extents(copy.group(TOPIC, NUMBER))[0]


def _rot(copy: Copy) -> None:
    one = _stored(copy)
    copy.flip(one.object_name, one.position + 70)


def _names_another_place(copy: Copy) -> None:
    """The log says that the batches lie where they do not; the states are right."""
    group = copy.group(TOPIC, NUMBER)

    def change(entries: list[Any]) -> None:
        for number, (index, term, entry) in enumerate(entries):
            if isinstance(entry, int):
                continue
            made_in, time, commands = msgpack.unpackb(entry)
            if commands[0][0] == PartitionOpcode.STORE_INLINE:
                for row in commands[0][3]:
                    row[3] += 1
                entries[number] = (index, term, msgpack.packb([made_in, time, commands]))
                return
        raise AssertionError("no inline batch is stored in this log")

    copy.change_log(group, copy.indexes(group)[-2], change)


DAMAGES: Final = {
    "none": Damage(lambda copy: None),
    "rotten": Damage(_rot, {"references_exist_and_crc"}),
    "gone": Damage(
        lambda copy: copy.path(_stored(copy).object_name).unlink(),
        {"references_exist_and_crc", "nothing_deleted_above_m"},
    ),
    "another place": Damage(_names_another_place, {"replay"}),
}


def storages(root: Path) -> dict[str, ClusterStorage]:
    """Damaged copies, to be audited together."""
    whole = build(root / "whole")
    damaged = {}
    for number, (name, damage) in enumerate(DAMAGES.items()):
        copy = Copy(whole, root / str(number))
        damage.do(copy)
        damaged[name] = ClusterStorage(open_storage(str(copy.root)), CLUSTER)
    return damaged


@pytest.fixture(scope="module")
def runs(audited: dict[str, dict[str, AuditRun]]) -> dict[str, AuditRun]:
    return audited[__name__]


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_to_what_was_stored_is_found(name: str, runs: dict[str, AuditRun]) -> None:
    damage = DAMAGES[name]
    found = {one.name: one.evidence for one in runs[name].results if one.verdict is Verdict.FINDING}
    assert set(found) == damage.found_by, found
    places = {(row.get("topic"), row.get("partition")) for rows in found.values() for row in rows}
    assert places <= {(TOPIC, NUMBER), (None, None)}, found


def test_each_batch_counts_as_what_it_is_now(runs: dict[str, AuditRun], tmp_path: Path) -> None:
    counts = result(runs["none"], "references_exist_and_crc").counts
    assert counts["inline batches"] == 1, "of three, two are stored"
    levels = result(runs["none"], "level_one_holds_level_zero").counts
    assert levels["records of which level zero is gone"] == 0


def test_a_read_has_every_record_once(tmp_path: Path) -> None:
    cluster = build(tmp_path / "whole")
    partition = cluster.partitions[TOPIC, NUMBER]
    options = parse({"url": cluster.url, "topic": TOPIC, "min_partitions": "3"})
    found = {
        row["offset"]: row["value"]
        for windows in plan(open_storage(cluster.url), options, 2)
        for batch in read_windows(open_storage(cluster.url), windows, arrow_schema(SCHEMA))
        for row in batch.to_pylist()
        if row["partition"] == NUMBER
    }
    assert found == {one.offset: one.value for one in partition.readable}
