"""Holds the files of an export against its manifests: nothing lost, nothing doubled, no byte changed.

The manifests alone say which offsets are in which file, without a gap and without an overlap; each file is
then read, and its records' offsets are held against that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from strandline.snapshot.spark.export.documents import (
    ROUNDS,
    File,
    Manifest,
    Plan,
    Unit,
    file_name,
    manifest_name,
    manifest_of,
    plan_name,
    plan_of,
    rounds,
    topic_folder,
)
from strandline.snapshot.spark.export.errors import ExportError
from strandline.snapshot.spark.export.formats import open_tables
from strandline.snapshot.spark.export.parquet import FOLDER_OF_PARTITION
from strandline.snapshot.spark.export.planning import offsets_of
from strandline.snapshot.spark.export.table_check import Expected, check_table, expect
from strandline.snapshot.spark.export.tables import Tables
from strandline.snapshot.spark.export.target import STATE, Target
from strandline.snapshot.storage import ObjectMissing

MOST_PROBLEMS: Final = 1000
"""Problems that are told; a damaged target may have one for each of a million files."""


@dataclass
class Checked:
    """The counts and findings of a check."""

    rounds: int = 0
    files: int = 0
    records: int = 0
    bytes: int = 0
    unfinished: int | None = None
    """A round that was planned and has not happened: its files are not counted."""
    lost: list[str] = field(default_factory=list)
    """Records that were deleted before they could be exported, as the manifests say."""
    problems: list[str] = field(default_factory=list)

    def problem(self, line: str) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(line)


def check(
    target: Target,
    catalog: Mapping[str, str] | None = None,
    tell: Callable[[Checked], None] = lambda _: None,
) -> Checked:
    """Check all rounds of a target; raises StorageError, and ExportError if it has none or one is damaged.

    Tables are read by their libraries: `catalog` is for `open_tables`, which raises ExtraMissing.
    """
    planned, ended = rounds(target.list(ROUNDS))
    if not planned and not ended:
        raise ExportError(f"{target.url} has no export", "name the folder or bucket that --to named")
    found = Checked(rounds=max(ended, default=0))
    told: set[str] = set()
    next_offsets: dict[str, tuple[bytes, dict[int, int]]] = {}
    tables: Tables | None = None
    expected: dict[str, Expected] = {}
    for number in range(1, found.rounds + 1):
        if number not in planned or number not in ended:
            missing = manifest_name(number) if number in planned else plan_name(number)
            found.problem(f"{missing} is missing")
            continue
        plan = plan_of(plan_name(number), target.get(plan_name(number)))
        manifest = manifest_of(manifest_name(number), target.get(manifest_name(number)))
        if manifest.plan != plan:
            found.problem(f"{manifest_name(number)} is of another plan than {plan_name(number)}")
        _check_offsets(manifest, next_offsets, found)
        found.lost += manifest.lost
        tables = tables or open_tables(plan.settings, target, catalog or {})
        if tables is not None:
            uncommitted = tables.missing(manifest) if number == found.rounds else []
            if uncommitted:
                found.unfinished = number
            expect(manifest, uncommitted, expected)
            continue
        for position, unit in enumerate(plan.units):
            files = [file for file in manifest.files if file.unit == position]
            _check_unit(target, plan, unit, files, found)
            tell(found)
        told.update(file.path for file in manifest.files)
    if planned and max(planned) > found.rounds:
        found.unfinished = max(planned)
    if tables is None:
        _check_names(target, told, found)
        return found
    for topic, one in sorted(expected.items()):
        found.files += one.files
        found.bytes += one.bytes
        found.records += check_table(tables, topic, one, found.problem)
        tell(found)
    return found


def _check_offsets(
    manifest: Manifest, reached: dict[str, tuple[bytes, dict[int, int]]], found: Checked
) -> None:
    """Each range begins where the one before it ended, and the last ends at the round's `next`."""
    name = manifest_name(manifest.plan.round)
    after = offsets_of(manifest.plan.next)
    for topic, offsets in after.items():
        topic_id, known = reached.get(topic, (offsets.topic_id, {}))
        if topic_id != offsets.topic_id:
            known = {}
        reached[topic] = (offsets.topic_id, known)
    lost = " ".join((*manifest.plan.lost, *manifest.lost))
    for unit in manifest.plan.units:
        for one in unit.ranges:
            place = f"{unit.topic}-{one.partition}"
            known = reached[unit.topic][1] if unit.topic in reached else {}
            begin = known.get(one.partition, one.first)
            if one.first < begin:
                found.problem(f"{name}: {place} has offsets {one.first} to {begin - 1} twice")
            elif one.first > begin and f"{place}:" not in lost:
                found.problem(f"{name}: {place} has no offsets {begin} to {one.first - 1}")
            known[one.partition] = one.end
    for topic, offsets in after.items():
        known = reached[topic][1]
        for partition, end in offsets.offsets.items():
            if known.setdefault(partition, end) != end:
                found.problem(f"{name}: {topic}-{partition} ends at {known[partition]}, and should at {end}")


def _check_unit(target: Target, plan: Plan, unit: Unit, files: list[File], found: Checked) -> None:
    """The files are as the manifest says, and have offsets of the unit alone, each once."""
    seen: dict[int, list[Any]] = {}
    for file in files:
        found.files += 1
        found.bytes += file.bytes
        found.records += file.records
        try:
            data = target.get(file.path)
        except ObjectMissing:
            found.problem(f"{file.path} is missing")
            continue
        if len(data) != file.bytes or hashlib.sha256(data).hexdigest() != file.sha256:
            found.problem(f"{file.path} is not what was exported: its SHA-256 is another one")
            continue
        if not file.path.startswith(topic_folder(unit.topic)) or not file.path.endswith(
            "/" + file_name(plan.round, file.unit)
        ):
            found.problem(f"{file.path} is no file of round {plan.round} and unit {file.unit}")
        count = 0
        for partition, offsets in _offsets(file, data):
            seen.setdefault(partition, []).append(offsets)
            count += offsets.size
        if count != file.records:
            found.problem(f"{file.path} has {count} records, and the manifest says {file.records}")
    for partition, parts in seen.items():
        offsets = np.concatenate(parts)
        within = np.zeros(offsets.size, bool)
        for one in unit.ranges:
            if one.partition == partition:
                within |= (offsets >= one.first) & (offsets < one.end)
        if not within.all():
            wrong = int(offsets[~within][0])
            found.problem(f"{files[0].path}: {unit.topic}-{partition} offset {wrong} is not of this unit")
        twice = offsets.size - np.unique(offsets).size
        if twice:
            found.problem(f"{files[0].path}: {unit.topic}-{partition} has {twice} records twice")


def _offsets(file: File, data: bytes) -> Iterator[tuple[int, Any]]:
    """The offsets of a file by partition."""
    in_path = FOLDER_OF_PARTITION.search(file.path)
    columns = ["offset"] if in_path else ["partition", "offset"]
    table = pq.ParquetFile(pa.BufferReader(data)).read(columns)
    offsets = table.column("offset").to_numpy()
    if in_path:
        yield int(in_path[1]), offsets
        return
    partitions = table.column("partition").to_numpy()
    for partition in np.unique(partitions).tolist():
        yield partition, offsets[partitions == partition]


def _check_names(target: Target, told: set[str], found: Checked) -> None:
    """No reader that goes by names alone reads a file that is in no manifest."""
    unfinished = f"/{found.unfinished:08d}-" if found.unfinished is not None else None
    for path in target.list(""):
        if path.startswith(STATE) or path in told or not path.endswith(".parquet"):
            continue
        if unfinished is None or unfinished not in path:
            found.problem(f"{path} is in no manifest")
