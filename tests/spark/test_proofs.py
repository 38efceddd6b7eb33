"""What is taken from a proof is what reading would give, and what it cannot show is found by spot checks.

Audits are queries on the rows of batches, so those are compared, with a proof and without, for every damage
that the modules of this folder plant. Each was planted after the proof, which is of the undamaged storage.
"""

from __future__ import annotations

import errno
import inspect
import json
import os
import shutil
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession

from strandline.snapshot.level_one_format import parse as parse_level_one
from strandline.snapshot.spark.audits import AuditRun, ClusterStorage, Verdict, audit_storages, proofs, run
from strandline.snapshot.spark.audits import __main__ as command
from strandline.snapshot.spark.audits.batches import SAME, BatchFrames, batch_rows
from strandline.snapshot.spark.audits.checks_version import checks_version
from strandline.snapshot.spark.audits.documents import listing
from strandline.snapshot.spark.audits.proofs import Proof, known_rows, newest_number, newest_proof, publish
from strandline.snapshot.spark.audits.result import Figures, ProofUse
from strandline.snapshot.spark.audits.run import find_places, without_gone
from strandline.snapshot.spark.audits.stored import stored_objects
from strandline.snapshot.spark.audits.work import tasks
from strandline.snapshot.spark.export import target
from strandline.snapshot.storage import open_storage
from tests.spark.damage import Copy, set_extent
from tests.spark.stored_cluster import CLUSTER, build_cluster
from tests.spark.verdicts import result

pytestmark = pytest.mark.timeout(300)

SEQUENCE_AT: Final = 53
"""In a batch: its first sequence (KIP-98)."""
Rows = Counter[tuple[Any, ...]]


def _rot(copy: Copy) -> None:
    extent = copy.extents(copy.group("clicks", 0))[5]
    copy.flip(extent.object_name, extent.position + extent.length - 1)


def _rot_level_one(copy: Copy) -> None:
    name = copy.level_one("visits", 1)[1]
    copy.flip(name, parse_level_one(name, copy.path(name).read_bytes()).blocks[1].position + 7)


def _another_sequence(copy: Copy) -> None:
    """Bytes that are right by all checksums, and that no producer sent."""

    def change(batch: bytearray) -> None:
        (first,) = struct.unpack_from(">i", batch, SEQUENCE_AT)
        struct.pack_into(">i", batch, SEQUENCE_AT, first + 2)

    copy.rewrite_batch(copy.extents(copy.group("orders", 1))[-1], change)


def _remove(copy: Copy) -> None:
    copy.path(copy.extents(copy.group("clicks", 0))[5].object_name).unlink()


def _claim(copy: Copy) -> None:
    copy.without_logs().change_newest(copy.group("clicks", 0), set_extent(4, max_timestamp=5))


DAMAGES: dict[str, tuple[Callable[[Copy], Any], str | None]] = {
    "none": (lambda copy: None, None),
    "a batch rots": (_rot, "references_exist_and_crc"),
    "a block of level one rots": (_rot_level_one, "references_exist_and_crc"),
    "another sequence": (_another_sequence, "producer_sequences"),
    "an object is gone": (_remove, "references_exist_and_crc"),
    "another claim": (_claim, "references_exist_and_crc"),
}
"""Damage to objects, and to what is claimed of one; the audit that finds it."""
UNSEEN: Final = ", unseen"
"""Files keep their times, as those of a disk that rots do: a listing tells of nothing."""
BLIND: Final = ("a batch rots", "a block of level one rots", "another sequence")


def storages(root: Path) -> dict[str, ClusterStorage]:
    """Copies of a cluster, damaged in either way."""
    whole = build_cluster(root / "whole")
    damaged = {}
    for number, (name, (do, _)) in enumerate(DAMAGES.items()):
        for kept in ("", UNSEEN):
            copy = Copy(whole, root / f"{number}{kept}")
            do(copy)
            for path in [path for path in copy.root.rglob("*") if kept and path.is_file()]:
                before = (whole.root / path.relative_to(copy.root)).stat()
                os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
            damaged[name + kept] = ClusterStorage(open_storage(str(copy.root)), CLUSTER)
    return damaged


@pytest.fixture(scope="module")
def runs(audited: dict[str, dict[str, AuditRun]]) -> dict[str, AuditRun]:
    return audited[__name__]


def frames_of(
    spark: SparkSession, stored: Sequence[ClusterStorage], proved: Sequence[Proof | None]
) -> tuple[BatchFrames, DataFrame]:
    """The rows of references and batches, and the versions that were listed before."""
    whole = [listing(storage) for storage in stored]
    places = [find_places(storage, found) for storage, found in zip(stored, whole, strict=True)]
    listings = [without_gone(found, place) for found, place in zip(whole, places, strict=True)]
    versions = stored_objects(spark, stored, False).select("root", "object", "version").localCheckpoint()
    known = known_rows(spark, stored, proved)
    if known is not None:
        known = known.dropDuplicates(["root", *SAME, "place"])  # several undamaged storages have one object
    by_group = [place.by_group for place in places]
    return batch_rows(spark, stored, listings, by_group, versions, known, False), versions


def rows_of(frames: BatchFrames, count: int) -> list[tuple[Rows, set[bool]]]:
    """Of each storage the rows of its batches, and whether they were proven."""
    rows: list[tuple[Rows, set[bool]]] = [(Counter(), set()) for _ in range(count)]
    for row in frames.batches.collect():
        fields = row.asDict()
        those, proven = rows[fields.pop("root")]
        if fields["object"] is not None:
            proven.add(fields["proven"])
        del fields["proven"]
        those[tuple(fields.items())] += 1
    return rows


def looked(
    spark: SparkSession, given: Sequence[tuple[ClusterStorage, Proof | None]]
) -> list[tuple[Rows, set[bool]]]:
    frames, _ = frames_of(spark, [storage for storage, _ in given], [proof for _, proof in given])
    rows = rows_of(frames, len(given))
    for frame in frames:
        frame.unpersist()
    return rows


Places = dict[tuple[str, str], tuple[ClusterStorage, Proof]]


@pytest.fixture(scope="module")
def looked_at(
    spark: SparkSession, audited_storages: dict[str, dict[str, ClusterStorage]]
) -> tuple[Places, dict[tuple[str, str], Rows]]:
    """All storages with a proof of what is right in those beside them; and their rows without one.

    Of other modules those are right that have no bad batch: what else is changed has another version. Files
    of this one keep theirs, so only the undamaged storage will do.
    """
    every = {(module, name): one for module, named in audited_storages.items() for name, one in named.items()}
    stored = list(every.values())
    frames, versions = frames_of(spark, stored, [None] * len(stored))
    rows = dict(zip(every, (rows for rows, _ in rows_of(frames, len(stored))), strict=True))
    right = [
        root
        for root, (module, name) in enumerate(every)
        if (
            name == "none"
            if module == __name__
            else all(dict(row)["problem"] is None for row in rows[module, name])
        )
    ]
    known = frames.right(versions).cache()
    right = _without_repeats(right, [module for module, _ in every], known)
    publish(spark, stored, right, known, {root: {} for root in right})
    known.unpersist()
    for frame in frames:
        frame.unpersist()
    places: Places = {}
    for place, storage in every.items():
        files = []
        for root in right:
            if list(every)[root][0] == place[0]:
                proof = newest_proof(stored[root])
                assert proof is not None
                for file in proof.files:
                    path = Path(storage.storage.url, file.name)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    if stored[root] is not storage:
                        shutil.copy(Path(stored[root].storage.url, file.name), path)
                    files.append(file)
        if files:
            places[place] = (storage, Proof(1, tuple(files)))
    return places, rows


def _without_repeats(right: Sequence[int], modules: Sequence[str], known: DataFrame) -> list[int]:
    """Those storages of each module whose proof has what no earlier one's has: most copies differ in nothing
    that a proof says, and to read the same of each costs a minute."""
    said: defaultdict[int, set[tuple[Any, ...]]] = defaultdict(set)
    for root, name, version, claim, place in known.select("root", *SAME, "place").collect():
        said[root].add((name, version, bytes(claim), place))
    seen: defaultdict[str, set[tuple[Any, ...]]] = defaultdict(set)
    kept = []
    for root in right:
        if not said[root] <= seen[modules[root]]:
            seen[modules[root]] |= said[root]
            kept.append(root)
    return kept


@pytest.fixture(scope="module")
def proven(looked_at: tuple[Places, dict[tuple[str, str], Rows]]) -> Places:
    return looked_at[0]


@pytest.fixture(scope="module")
def full(looked_at: tuple[Places, dict[tuple[str, str], Rows]]) -> dict[tuple[str, str], Rows]:
    return looked_at[1]


def test_a_run_without_a_finding_leaves_a_proof_and_no_other(
    audited: dict[str, dict[str, AuditRun]], audited_storages: dict[str, dict[str, ClusterStorage]]
) -> None:
    for module, named in audited.items():
        for name, told in named.items():
            assert told.proof.refused is None
            assert told.finding is (told.proof.published is None), (module, name)
            there = newest_number(audited_storages[module][name])
            assert told.finding or there >= (told.proof.published or 0) > 0
    for name, (_, audit) in DAMAGES.items():
        for kept in ("", UNSEEN):
            told = audited[__name__][name + kept]
            found = {one.name for one in told.results if one.findings}
            assert audit in found if audit else not found


def test_with_a_proof_every_damage_looks_as_it_does_to_a_full_audit(
    spark: SparkSession,
    proven: Places,
    full: dict[tuple[str, str], Rows],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that a listing does not tell of look undamaged; a spot check of all objects finds them too."""
    monkeypatch.setattr(proofs, "SPOT_SHARE", 1 << 30)
    taken = set()
    whole = full[__name__, "none"]
    for (module, name), (rows, were_proven) in zip(proven, looked(spark, list(proven.values())), strict=True):
        taken |= {(module, name)} if True in were_proven else set()
        if module == __name__ and name.removesuffix(UNSEEN) in BLIND and name.endswith(UNSEEN):
            assert rows == whole != full[module, name]
        else:
            assert rows == full[module, name], (module, name)
        if (module, name) == (__name__, "none"):
            assert were_proven == {True}, "nothing was read"
    assert taken == set(proven), "something of each was taken from its proof"

    monkeypatch.setattr(proofs, "SPOT_SHARE", 1)
    mine = {place: given for place, given in proven.items() if place[0] == __name__}
    for place, (rows, were_proven) in zip(mine, looked(spark, list(mine.values())), strict=True):
        assert rows == full[place]
        assert were_proven == {False}


def test_spot_checks_come_to_each_object_in_turn(
    spark: SparkSession,
    proven: Places,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proofs, "SPOT_SHARE", 3)
    monkeypatch.setattr(proofs, "_drawn_share", lambda: -1)
    storage, proof = proven[__name__, "none"]
    turns = [proof._replace(number=number) for number in (6, 7, 8)]
    rows = known_rows(spark, [storage] * 3, list(turns))
    assert rows is not None
    times = Counter(row["object"] for row in rows.select("root", "object").distinct().collect())
    assert len(times) > 20
    assert set(times.values()) == {2}, "one of three turns is each object's"

    found = []
    for drawn in (1, 2):  # the proof stays the same: its audits can publish none
        monkeypatch.setattr(proofs, "_drawn_share", lambda drawn=drawn: drawn)
        taken = known_rows(spark, [storage], turns[:1])
        assert taken is not None
        found.append({row["object"] for row in taken.collect()})
    assert found[0]
    assert found[1]
    assert not found[0] & found[1], "each reads another share beside the one whose turn it is"


def test_whole_audits_with_a_proof(
    spark: SparkSession,
    proven: Places,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proofs, "SPOT_SHARE", 1 << 30)
    names = ("none", "another sequence", "another sequence" + UNSEEN)
    given = [proven[__name__, name][0] for name in names]
    of_none = newest_proof(given[0])
    assert of_none is not None
    for storage in given[1:]:
        for file in of_none.files:
            shutil.copy(Path(given[0].storage.url, file.name), Path(storage.storage.url, file.name))
    monkeypatch.setattr(run, "newest_proof", lambda storage: of_none)
    whole, seen, unseen = audit_storages(spark, given, full=False, leave_proofs=True)
    counts = result(whole, "references_exist_and_crc").counts
    assert counts["objects proven before"] == counts["objects"] > 0
    assert whole.proof.used == of_none.number
    assert whole.proof.published == newest_number(given[0]) == of_none.number + 1
    assert [one.name for one in seen.results if one.findings] == ["producer_sequences"]
    assert seen.proof.published is None
    assert not unseen.finding, "see the spot checks"
    assert result(whole, "producer_sequences").verdict is Verdict.PASSED

    said = json.loads(given[0].storage.get(f"audits/{CLUSTER}/{whole.proof.published:08d}.json"))
    partitions = {(one["topic"], one["partition"]): one for one in said["audited"].values()}
    assert partitions["clicks", 0]["end_offset"] == 36
    assert partitions["clicks", 0]["log_index"] > 0
    (again,) = looked(spark, [(given[0], newest_proof(given[0]))])
    assert again[1] == {True}, "a proof has what it took from the one before"


@pytest.fixture
def copy(proven: Places, tmp_path: Path) -> tuple[ClusterStorage, Proof]:
    """An undamaged storage with a proof, for one test alone."""
    shutil.copytree(proven[__name__, "none"][0].storage.url, tmp_path / "objects")
    storage = ClusterStorage(open_storage(str(tmp_path / "objects")), CLUSTER)
    proof = newest_proof(storage)
    assert proof is not None
    return storage, proof


def test_a_proof_that_is_damaged_or_of_other_checks_counts_for_nothing(
    spark: SparkSession, copy: tuple[ClusterStorage, Proof], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, proof = copy
    first = Path(storage.storage.url, proof.files[0].name)
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1
    first.write_bytes(data)
    monkeypatch.setattr(proofs, "SPOT_SHARE", 1 << 30)
    (without,) = looked(spark, [(storage, None)])
    (rows,) = looked(spark, [(storage, proof)])
    assert rows[0] == without[0]
    assert False in rows[1]

    assert newest_proof(storage) is not None
    with monkeypatch.context() as patched:
        patched.setattr(proofs, "checks_version", lambda: "of a later release")
        assert newest_proof(storage) is None
    manifest = Path(storage.storage.url, "audits", CLUSTER, f"{newest_number(storage):08d}.json")
    said = json.loads(manifest.read_text())
    with monkeypatch.context() as patched:
        patched.setattr(inspect, "getsource", lambda module: "of a release that is installed meanwhile")
        assert checks_version() == said["checks"], "what runs is what was loaded"
        patched.setattr(proofs, "checks_version", lambda: None)  # Python has no source
        manifest.write_text(json.dumps({**said, "checks": None}))
        assert newest_proof(storage) is None, "nothing tells whose checks these were"
        refused = publish(spark, [storage], [0], spark.range(0), {0: {}})[0]
        assert (refused.number, "no source" in str(refused.refused)) == (None, True)
    for other in ("{", '{"format": 2}', "[]"):
        manifest.write_text(other)
        assert newest_proof(storage) is None


def test_of_proofs_the_newest_two_stay_and_one_that_cannot_be_written_is_told(
    spark: SparkSession, copy: tuple[ClusterStorage, Proof], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, _ = copy
    frames, versions = frames_of(spark, [storage], [None])
    right = frames.right(versions).cache()

    def published() -> proofs.Published:
        return publish(spark, [storage], [0], right, {0: {}})[0]

    folder = Path(storage.storage.url, "audits", CLUSTER)
    before = newest_number(storage)
    monkeypatch.setattr(proofs, "FILE_ROWS", 2)
    unfinished = folder.parent / "_strandline" / "unfinished" / "killed"
    for number in (before + 1, before + 2, before + 3):
        (folder / f"{number:08d}-{'0' * 32}.parquet").write_bytes(b"of an audit that was killed")
        unfinished.write_bytes(b"likewise")
        assert published() == (number, None, None)
        kept = newest_proof(storage)
        assert kept is not None
        assert len(kept.files) > tasks(spark), "a task has several"
        assert sum(file.rows for file in kept.files) == right.count()
    assert kept is not None
    for file in kept.files[::2]:  # what the others have is no part of a claim
        Path(storage.storage.url, file.name).write_bytes(b"")
    monkeypatch.setattr(proofs, "SPOT_SHARE", 1 << 30)
    (whole,), (rows,) = looked(spark, [(storage, None)]), looked(spark, [(storage, kept)])
    assert rows == (whole[0], {True, False})
    assert {int(path.name[:8]) for path in folder.iterdir()} == {before + 2, before + 3}
    assert not list(folder.glob("*-" + "0" * 32 + ".parquet"))
    assert not unfinished.exists()
    there = sorted(folder.iterdir())

    with monkeypatch.context() as patched:  # two audits at once are given one number
        patched.setattr(proofs, "newest_number", lambda storage: before + 2)
        second = published()
    assert second == (None, f"another audit published proof {before + 3} meanwhile", None)
    assert sorted(folder.iterdir()) == there, "what comes to nothing leaves nothing"

    unlink = os.unlink

    def may_not(path: str) -> None:
        if "unfinished" not in path:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        unlink(path)

    empty = spark.createDataFrame([], proofs._WRITTEN)
    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", may_not)
        patched.setattr(target._FolderTarget, "sweep", lambda self: 0)
        patched.setattr(proofs, "_written", lambda *_: empty)
        create = target._FolderTarget.create
        patched.setattr(target._FolderTarget, "create", lambda *given: create(*given) and False)
        told = published()
    assert (told.number, told.refused) == (before + 4, None)
    assert "Operation not permitted" in str(told.left)
    line = AuditRun("", "", [], Figures([], [], []), 0.0, ProofUse(None, *told)).proof_line
    assert f"published proof {before + 4}; older proofs could not be removed" in str(line)

    shutil.rmtree(folder.parent)
    folder.parent.write_text("a file where a folder should be")
    refused = published().refused
    assert refused is not None
    assert "audits" in refused
    assert newest_proof(storage) is None, "what may not be read is no reason to audit nothing"
    right.unpersist()
    for frame in frames:
        frame.unpersist()


def test_the_command_reads_all_again_if_told_so_and_tells_of_proofs(
    runs: dict[str, AuditRun], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    audited_storages: dict[str, dict[str, ClusterStorage]],
) -> None:  # fmt: skip
    asked = []

    def told(*given: Any, full: bool, **more: Any) -> AuditRun:
        asked.append(full)
        return runs["none"]

    monkeypatch.setattr(command, "run_audits", told)
    where = ["--url", audited_storages[__name__]["none"].storage.url, "--cluster", CLUSTER]
    assert command.main(where) == command.main([*where, "--full"]) == 0
    assert asked == [False, True]
    assert capsys.readouterr().out.splitlines()[-1] == f"published proof {runs['none'].proof.published}"
