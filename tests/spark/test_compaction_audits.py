"""The audits of compaction: each finds what it looks for, and what was removed rightly is no finding.

A cluster whose topic was cleaned and published is copied once for each kind of damage; all copies are audited
in one pass, with those of other modules.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from crc32c import crc32c

from strandline.node.compaction.chunk import chunks
from strandline.node.compaction.rewriting import rewritten, settled
from strandline.snapshot.aborted import NOTHING_ABORTED
from strandline.snapshot.local_document import (
    LocalDocument,
    bound,
    key_hash,
)
from strandline.snapshot.local_rows import LOCAL_ROWS, rows_of
from strandline.snapshot.names import local_name
from strandline.snapshot.spark.audits import AuditRun, ClusterStorage, Verdict
from strandline.snapshot.storage import open_storage
from tests.spark.compacted_cluster import TOPIC, CompactedCluster, build_compacted
from tests.spark.damage import (
    Copy,
    Part,
    change_aborted,
    change_level_one,
    change_local,
    change_rows,
    part_of,
    rewrite_holes,
    set_removals,
)
from tests.spark.stored_cluster import CLUSTER, NODES
from tests.spark.verdicts import result

# All storages are audited by the test that comes first.
pytestmark = pytest.mark.timeout(300)

REMOVAL, CLEAN, LATEST = "removal_offsets_monotone", "level_one_is_clean", "latest_value_survives"
KEPT, RESURRECTED, AGREE = "tombstones_kept", "nothing_resurrected", "local_logs_agree"
ROWS, ABORTED = "rows_match_markers", "aborted_index_equals_replay"
REFERENCES, OFFSETS, SEQUENCES = "references_exist_and_crc", "offsets_contiguous", "producer_sequences"
LEVELS = "level_one_holds_level_zero"
PLACE = {"topic": TOPIC, "partition": 0}
BASE_SEQUENCE_AT, RECORDS_AT, DELTA_AT = 53, 57, 64


class Damage(NamedTuple):
    """What is done to a copy, which audits must find it, and what the first of them must say and where."""

    do: Callable[[Copy, CompactedCluster], Any]
    found_by: Set[str] = frozenset()
    says: str = ""
    place: Mapping[str, Any] = MappingProxyType({})


def state(copy: Copy, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the first partition's newest documents; no log says otherwise."""
    copy.without_logs().change_newest(copy.group(TOPIC, 0), change)


def without_local(copy: Copy) -> Copy:
    for path in copy.root.glob("snapshots/*/*/*/*.local"):
        path.unlink()
    return copy


def without(offset: int) -> Callable[[list[Part]], list[Part]]:
    """Drop the batch that begins at an offset."""

    def change(parts: list[Part]) -> list[Part]:
        kept = [part for part in parts if part[1] != offset]
        assert len(kept) == len(parts) - 1
        return kept

    return change


def put_back(raw: bytes, base: int) -> Callable[[list[Part]], list[Part]]:
    """Put a batch where it was, also in place of what is left of it."""

    def change(parts: list[Part]) -> list[Part]:
        others = [part for part in parts if part[1] != base]
        return sorted([*others, part_of(raw, base)], key=lambda part: part[1])

    return change


def first_object(copy: Copy, change: Callable[[list[Part]], list[Part]], number: int = 0) -> None:
    """Change the object in which level one is clean."""
    rewrite_holes(copy, TOPIC, number, 0, change)


def raw_at(made: CompactedCluster, number: int, offset: int) -> tuple[bytes, int]:
    """The batch that had an offset before anything was removed."""
    raw = made.logs[number][0].raw
    base = max(base for base in raw if base <= offset)
    return raw[base], base


def settled_at(made: CompactedCluster, key: str, value: str) -> tuple[bytes, int]:
    """The same of a committed record in the first partition, settled."""
    raw, base = raw_at(made, 0, made.offsets[0, key, value])
    (one,) = settled(raw, NOTHING_ABORTED)
    return bytes(one.data), base


def bring_back(copy: Copy, made: CompactedCluster, key: str | None, value: str, number: int = 0) -> None:
    first_object(copy, put_back(*raw_at(made, number, made.offsets[number, key, value])), number)


def old_value_in_local(copy: Copy, made: CompactedCluster) -> None:
    """A key that was deleted has its value in one replica's log."""
    row = np.array([(key_hash(b"b"), made.offsets[0, "b", "1"], False)], LOCAL_ROWS)
    change = change_rows(lambda rows: np.concatenate([row, rows]))
    change_local(copy, copy.group(TOPIC, 0), [2], change)


def without_row(key: str) -> Callable[[LocalDocument], LocalDocument]:
    return change_rows(lambda rows: rows[rows["key"] != np.void(key_hash(key.encode()))])


def other_offset(rows: Any) -> Any:
    rows["offset"][rows["key"] == np.void(key_hash(b"h"))] -= 1
    return rows


def marker_gone(copy: Copy, made: CompactedCluster) -> None:
    """The marker that ended the second round's last transaction."""
    first_object(copy, without(made.offsets[0, "o", "1"] + 1))


def far_sequence(parts: list[Part]) -> list[Part]:
    """A plain producer's batch where level one is clean, with a sequence for which there were no offsets."""
    changed = []
    for part in parts:
        batch = bytearray(part[0])
        if part[1] == 22:
            (sequence,) = struct.unpack_from(">i", batch, BASE_SEQUENCE_AT)
            struct.pack_into(">i", batch, BASE_SEQUENCE_AT, sequence + 1000)
            struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
        changed.append((bytes(batch), *part[1:]))
    return changed


def other_value(parts: list[Part]) -> list[Part]:
    """The record of h, which is the last of its batch: its value is followed by the number of headers."""
    changed = []
    for part in parts:
        batch = bytearray(part[0])
        if part[1] == 10:
            batch[-2] ^= 1
            struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
        changed.append((bytes(batch), *part[1:]))
    return changed


def one_record_less(parts: list[Part]) -> list[Part]:
    """The batch at 35 without its first record, as cleaning would leave it."""
    changed = []
    for part in parts:
        data = part[0]
        if part[1] == 35:
            (chunk,) = chunks(data)
            (one,) = rewritten(chunk, np.array([False, True]))
            data = bytes(one.data)
        changed.append((data, *part[1:]))
    return changed


def rot(copy: Copy) -> None:
    copy.flip(copy.level_one(TOPIC, 0)[0], 100)


def rot_local(copy: Copy) -> None:
    group = copy.group(TOPIC, 0)
    copy.flip(local_name(CLUSTER, group, copy.indexes(group)[-1], 2), 90)


def drop_rows(made: CompactedCluster, **removals: int) -> Callable[[dict[str, Any]], None]:
    def change(fields: dict[str, Any]) -> None:
        fields["aborted"] = type(made.partition(0).machine.aborted)().packed()
        fields["removals"].update(removals)

    return change


def aborted_in_local(copy: Copy, made: CompactedCluster) -> None:
    """One replica's log has what was aborted, as the newest record of its key."""
    row = np.array([(key_hash(b"h"), made.offsets[0, "h", "poison"], False)], LOCAL_ROWS)
    change = change_rows(lambda rows: np.concatenate([rows, row]))
    change_local(copy, copy.group(TOPIC, 0), [3], change)


def overlapping(copy: Copy) -> None:
    """The state's second object begins where the first has not ended."""

    def change(rows: Any) -> Any:
        rows["base_offset"][1] -= 3
        return rows

    copy.without_logs().change_newest(copy.group(TOPIC, 0), change_level_one(change))


def begins_earlier(rows: Any) -> Any:
    rows["first_offset"] -= 1
    return rows


def committed_is_aborted(made: CompactedCluster) -> Callable[[Any], Any]:
    """A row for the transaction that wrote m, which was committed."""

    def change(rows: Any) -> Any:
        row = rows[:1].copy()
        row["producer_id"], row["first_offset"] = 101, made.offsets[0, "m", "1"]
        row["last_offset"] = made.offsets[0, "m", "1"] + 1
        return np.sort(np.concatenate([rows, row]), order="last_offset")

    return change


def more_records(parts: list[Part]) -> list[Part]:
    """The batch at 10 says that it has a record more than it has."""
    changed = []
    for part in parts:
        batch = bytearray(part[0])
        if part[1] == 10:
            (count,) = struct.unpack_from(">i", batch, RECORDS_AT)
            struct.pack_into(">i", batch, RECORDS_AT, count + 1)
            struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
        changed.append((bytes(batch), *part[1:]))
    return changed


def another_delta(parts: list[Part]) -> list[Part]:
    """The record of h, which is left of its batch, is given the offset of the one before it."""
    changed = []
    for part in parts:
        batch = bytearray(part[0])
        if part[1] == 10:
            # Length, attributes and the time's delta are one byte each.
            assert batch[DELTA_AT] == 2
            batch[DELTA_AT] = 0
            struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
        changed.append((bytes(batch), *part[1:]))
    return changed


DAMAGES = {
    "none": Damage(lambda copy, made: None),
    "no local documents": Damage(lambda copy, made: without_local(copy)),
    "mtro goes back": Damage(
        lambda copy, made: state(copy, set_removals(mtro=0)),
        {REMOVAL},
        "MTRO goes back from 22 to 0",
        PLACE,
    ),
    "mtro above level one": Damage(
        lambda copy, made: state(copy, set_removals(mtro=34)),
        {REMOVAL},
        "MTRO, 34, is above the offset to which level one is clean, 33",
        PLACE,
    ),
    "settled above what is decided": Damage(
        lambda copy, made: state(copy, set_removals(level_one_settled=42)),
        {REMOVAL},
        "is above the last stable offset, 41",
        PLACE,
    ),
    **{
        f"{field} goes back": Damage(
            lambda copy, made, field=field: state(copy, set_removals(**{field: 0})),  # type: ignore[misc]
            found_by,
            says,
            PLACE,
        )
        for field, says, found_by in (
            ("mxro", "MXRO goes back from", {REMOVAL}),
            ("ripe_tombstones", "tombstones may go goes back from", {REMOVAL, KEPT, LATEST}),
            ("ripe_markers", "markers may go goes back from", {REMOVAL, KEPT}),
            ("level_one_clean", "is clean goes back from", {REMOVAL, OFFSETS, REFERENCES}),
            ("level_one_settled", "is settled goes back from", {REMOVAL, OFFSETS, ABORTED, SEQUENCES}),
        )
    },
    "superseded value put back": Damage(
        lambda copy, made: bring_back(copy, made, "a", "2"),
        {CLEAN},
        " is there 2 times",
        {**PLACE, "base_offset": 10},
    ),
    "record without a key put back": Damage(
        lambda copy, made: bring_back(copy, made, None, "nobody's", number=1),
        {CLEAN},
        "1 records from here on have no key",
        {"topic": TOPIC, "partition": 1, "base_offset": 5},
    ),
    "transaction put back": Damage(
        lambda copy, made: bring_back(copy, made, "o", "1"),
        {CLEAN},
        "a batch of a transaction lies where level one is settled, below 33",
        {**PLACE, "base_offset": 25},
    ),
    "aborted record put back": Damage(
        lambda copy, made: bring_back(copy, made, "h", "poison"),
        {CLEAN, LATEST, AGREE},
        "a batch of a transaction lies where level one is settled, below 33",
        PLACE,
    ),
    "aborted record on one replica": Damage(
        aborted_in_local, {AGREE}, " on node 3, in level one at 11", PLACE
    ),
    "objects overlap": Damage(
        lambda copy, made: overlapping(copy),
        {OFFSETS, REFERENCES},
        "a batch begins at offset 30, the one before ends at 33",
        PLACE,
    ),
    "object gone": Damage(
        lambda copy, made: copy.path(copy.level_one(TOPIC, 0)[0]).unlink(),
        {REFERENCES},
        "there is no such object",
        PLACE,
    ),
    "more records said than there are": Damage(
        lambda copy, made: first_object(copy, more_records),
        {REFERENCES},
        "its records cannot be read: 2 records do not fit",
        {**PLACE, "base_offset": 10},
    ),
    "other records than its header's last": Damage(
        lambda copy, made: first_object(copy, another_delta),
        {REFERENCES, LEVELS, LATEST, AGREE},
        "its records have the deltas [0] and so on, the header's last is 1",
        {**PLACE, "base_offset": 10},
    ),
    "row begins earlier": Damage(
        lambda copy, made: state(copy, change_aborted(begins_earlier)),
        {ABORTED},
        "begins at offset 39, and not at 38, as the state says",
        PLACE,
    ),
    "row of a committed transaction": Damage(
        lambda copy, made: state(copy, change_aborted(committed_is_aborted(made))),
        {ROWS, ABORTED},
        "a transaction of producer 101 was aborted here, says the state; no such marker is here",
        {**PLACE, "base_offset": 31},
    ),
    "live record gone": Damage(
        lambda copy, made: first_object(without_local(copy), without(10)),
        {LATEST},
        "had its latest value there, and has none any more",
        {**PLACE, "base_offset": 11},
    ),
    "live record gone that the replicas have": Damage(
        lambda copy, made: first_object(copy, without(10)),
        {LATEST, AGREE},
        "has its value at 11 on node 1, in level one at none",
        PLACE,
    ),
    "tombstone gone": Damage(
        lambda copy, made: first_object(copy, without(made.offsets[0, "n", None])),
        {KEPT},
        "has lost its tombstone, which may not go yet",
        {**PLACE, "base_offset": 24},
    ),
    "tombstone gone on one replica": Damage(
        lambda copy, made: change_local(copy, copy.group(TOPIC, 0), [3], without_row("n")),
        {KEPT},
        "has lost its tombstone on node 3",
        {**PLACE, "base_offset": 24},
    ),
    "ripe tombstone gone on one replica": Damage(
        lambda copy, made: change_local(copy, copy.group(TOPIC, 0), [3], without_row("i")),
    ),
    "marker gone": Damage(
        marker_gone, {KEPT}, "a marker that may not go yet was there", {**PLACE, "base_offset": 26}
    ),
    "deleted key in level one": Damage(
        lambda copy, made: first_object(without_local(copy), put_back(*settled_at(made, "f", "1"))),
        {RESURRECTED},
        "was deleted, and has this value again",
        {**PLACE, "base_offset": 5},
    ),
    "deleted key on one replica": Damage(
        old_value_in_local,
        {RESURRECTED, AGREE},
        "was deleted, and has this value again on node 2",
        {**PLACE, "base_offset": 1},
    ),
    "another offset on one replica": Damage(
        lambda copy, made: change_local(copy, copy.group(TOPIC, 0), [2], change_rows(other_offset)),
        {AGREE},
        "has its value at 10 on node 2, in level one at 11",
        PLACE,
    ),
    "local document rots": Damage(
        lambda copy, made: rot_local(copy), {AGREE}, "its local document: its SHA-256 digest", PLACE
    ),
    "log not in step": Damage(
        lambda copy, made: change_local(
            copy,
            copy.group(TOPIC, 0),
            [2],
            lambda one: one._replace(log_end=20, rows=rows_of(one)[rows_of(one)["offset"] < 20].tobytes()),
        ),
        {AGREE},
        "its log ends at 20, and its floor is 0: tombstones below 22 may be gone already",
        PLACE,
    ),
    "log ahead of the checkpoint": Damage(
        lambda copy, made: change_local(
            copy, copy.group(TOPIC, 0), [2], lambda one: one._replace(log_end=42, rows=b"")
        )
    ),
    "some of the keys": Damage(lambda copy, made: change_local(copy, copy.group(TOPIC, 0), NODES, _half)),
    "row gone": Damage(
        lambda copy, made: state(copy, drop_rows(made)),
        {ROWS, ABORTED},
        "was aborted, says its marker, and no row of the state",
        {**PLACE, "base_offset": 39},
    ),
    "rows gone too early": Damage(
        lambda copy, made: state(copy, drop_rows(made, mxro=41)),
        {ROWS, REMOVAL},
        "was aborted, says its marker, and no row of the state",
        {**PLACE, "base_offset": 39},
    ),
    "hole where level one is not settled": Damage(
        lambda copy, made: rewrite_holes(copy, TOPIC, 0, 1, without(34)),
        {OFFSETS},
        "a batch begins at offset 35, the one before ends at 34",
        PLACE,
    ),
    "another value where level one is clean": Damage(
        lambda copy, made: first_object(copy, other_value),
        {LEVELS},
        "level one differs from level zero in value",
        {**PLACE, "base_offset": 11},
    ),
    "record missing where level one is not clean": Damage(
        lambda copy, made: rewrite_holes(copy, TOPIC, 0, 1, one_record_less),
        {REFERENCES, OFFSETS, AGREE},
        "the extent says 2 records, the batch 1",
        {**PLACE, "base_offset": 35},
    ),
    "sequence without offsets": Damage(
        lambda copy, made: first_object(copy, far_sequence), {SEQUENCES}, "misses sequences", PLACE
    ),
    "object rots": Damage(lambda copy, made: rot(copy), {REFERENCES}, "checksum does not match", PLACE),
}


def _half(document: LocalDocument) -> LocalDocument:
    rows = rows_of(document)
    share = rows[[bytes(key) < bound(1) for key in rows["key"]]]
    assert 0 < share.size < rows.size
    return document._replace(share_bits=1, rows=share.tobytes())


def storages(root: Path) -> dict[str, ClusterStorage]:
    """Damaged copies, to be audited together."""
    made = build_compacted(root / "stored")
    damaged = {}
    for number, (name, damage) in enumerate(DAMAGES.items()):
        copy = Copy(made.cluster, root / str(number))
        damage.do(copy, made)
        damaged[name] = ClusterStorage(open_storage(str(copy.root)), CLUSTER)
    return damaged


@pytest.fixture(scope="module")
def runs(audited: dict[str, dict[str, AuditRun]]) -> dict[str, AuditRun]:
    return audited[__name__]


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_by_the_audit_that_looks_for_it_and_no_other(
    name: str, runs: dict[str, AuditRun]
) -> None:
    damage, run = DAMAGES[name], runs[name]
    found = {result.name: result.evidence for result in run.results if result.verdict is Verdict.FINDING}
    assert set(found) == damage.found_by, found
    if damage.found_by:
        texts = [row for rows in found.values() for row in rows if damage.says in str(row["problem"])]
        assert texts, found
        assert {key: texts[0][key] for key in damage.place} == damage.place


def test_the_undamaged_cluster_was_looked_at_as_a_whole(runs: dict[str, AuditRun]) -> None:
    run = runs["none"]
    looked = {one.name for one in run.results if one.verdict is Verdict.PASSED}
    assert looked >= {REMOVAL, CLEAN, LATEST, KEPT, RESURRECTED, AGREE, ROWS, LEVELS, OFFSETS, SEQUENCES}
    assert not result(run, AGREE).remarks


def test_what_replicas_did_not_publish_is_a_remark(runs: dict[str, AuditRun]) -> None:
    agree = result(runs["no local documents"], AGREE)
    assert agree.verdict is Verdict.NOTHING
    assert len(agree.remarks) == 2 * len(NODES)
    assert agree.remarks[0]["problem"] == "there is no local document of this node"
    (ahead,) = result(runs["log ahead of the checkpoint"], AGREE).remarks
    assert ahead["problem"] == "its log ends at 42, above the checkpoint's records"
    assert ahead["node"] == 2


def test_only_the_keys_that_all_documents_have_are_compared(runs: dict[str, AuditRun]) -> None:
    some, every = (result(runs[name], AGREE).counts["keys compared"] for name in ("some of the keys", "none"))
    assert 0 < some < every
