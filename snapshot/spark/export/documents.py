"""The documents of an export in its target: of each round a plan before its files, a manifest after them.

A round's plan says which offsets it takes and which file has which of them. It is made once, so a run that
was killed and all that come after it write the same files. The manifest lists the files that there are then;
the round has happened once it is there. Both are JSON. See docs/export.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeVar

from strandline.snapshot.spark.export.errors import ExportError
from strandline.snapshot.spark.export.json_columns import SCALARS, Fields
from strandline.snapshot.spark.export.target import STATE
from strandline.snapshot.spark.json_schema import Kind

FORMAT: Final = 4
"""Rises with a change that earlier builds would misread; earlier ones are read as well."""
_BYTES_FORMAT: Final = 2
"""Format of the documents of a target whose values are bytes: builds without columns of values know it."""
_COLUMNS_FORMAT: Final = 3
"""Format of those of a target that is not partitioned by a column of values."""
FIXED: Final = ("none", "partition", "day", "hour")
"""Values of `partition_by` for any target; `day` and `hour` are of the timestamp, in UTC."""
BYTES: Final = "bytes"
"""Values as they are, in the column `value`."""
JSON: Final = "json"
"""Values as columns, where they are JSON objects."""
_ROUNDS: Final = f"{STATE}rounds/"
_PLAN: Final = ".plan.json"
_MANIFEST: Final = ".manifest.json"
Document = TypeVar("Document")
_EXPORTED: Final = re.compile(r"topic=[^/]+/(?:[^/]+/)?\d{8,}-\d{5,}\.parquet")
ANOTHER_TARGET: Final = "restore the file, or export to another place"


@dataclass(frozen=True)
class Settings:
    """The choices that all rounds of a target have in common."""

    partition_by: str = "none"
    """One of FIXED, or a column of values."""
    format: str = "parquet"
    """`parquet` for files alone; `delta` or `iceberg` for files that a table's log or catalog lists."""
    value: str = BYTES
    """`bytes`, or `json` where the fields of values that are JSON objects are columns."""


@dataclass(frozen=True)
class Range:
    """Offsets `[first, end)` of a partition."""

    partition: int
    first: int
    end: int


@dataclass(frozen=True)
class Unit:
    """Offsets of one topic that are one file, or where a target is partitioned one for each of its values."""

    topic: str
    ranges: tuple[Range, ...]


@dataclass(frozen=True)
class Plan:
    """A round before it happens."""

    round: int
    settings: Settings
    units: tuple[Unit, ...]
    next: Mapping[str, Mapping[str, str | int]]
    """By topic its `topic_id`, and by partition the first offset that no round has taken after this one."""
    lost: tuple[str, ...]
    """Records that were deleted before they could be exported, a line for each range."""
    cluster: str | None = None
    """Id of the cluster that has the topics; None in documents of the first format."""
    columns: Mapping[str, Fields] = field(default_factory=dict)
    """By topic the fields of its values that have columns, for all topics of the target."""
    given: tuple[str, ...] = ()
    """The topics whose columns were given: none are inferred for them."""


@dataclass(frozen=True)
class File:
    """A file of a round; `unit` is the position of its unit in the plan."""

    path: str
    unit: int
    records: int
    bytes: int
    sha256: str
    unfit: int = 0
    """Records that have a `value` beside columns of values, which do not say all of it."""


@dataclass(frozen=True)
class Manifest:
    """A round that has happened."""

    plan: Plan
    files: tuple[File, ...]
    lost: tuple[str, ...]

    def by_topic(self) -> Iterator[tuple[str, list[File]]]:
        """The topics that the round has files of, each with these."""
        found: dict[str, list[File]] = {}
        for file in self.files:
            found.setdefault(self.plan.units[file.unit].topic, []).append(file)
        yield from found.items()


def plan_name(number: int) -> str:
    return f"{_ROUNDS}{number:08d}{_PLAN}"


def manifest_name(number: int) -> str:
    return f"{_ROUNDS}{number:08d}{_MANIFEST}"


def topic_folder(topic: str) -> str:
    """The folder of a topic's files, or of its table, with a slash at its end."""
    return f"topic={topic}/"


def file_name(number: int, unit: int) -> str:
    """Last part of the name of each file of a unit."""
    return f"{number:08d}-{unit:05d}.parquet"


def is_exported(path: str) -> bool:
    """Whether a file of an export may have this path, whatever its round and unit."""
    return _EXPORTED.fullmatch(path) is not None


def done_name(number: int, unit: int) -> str:
    """Name of the document that has the files of a unit, for as long as its round has no manifest."""
    return f"{done_prefix(number)}{unit:05d}.json"


def done_prefix(number: int) -> str:
    return f"{STATE}done/{number:08d}/"


def round_of_done(key: str) -> int | None:
    """The round of a key below `done/`."""
    number = key.removeprefix(f"{STATE}done/").partition("/")[0]
    return int(number) if number.isdecimal() else None


ROUNDS: Final = _ROUNDS
DONE: Final = f"{STATE}done/"


def rounds(keys: list[str]) -> tuple[set[int], set[int]]:
    """The rounds that have a plan, and those that have a manifest, by the names below `ROUNDS`."""
    planned: set[int] = set()
    ended: set[int] = set()
    for key in keys:
        name = key.removeprefix(_ROUNDS)
        for suffix, found in ((_PLAN, planned), (_MANIFEST, ended)):
            number = name.removesuffix(suffix)
            if number != name and number.isdecimal():
                found.add(int(number))
    return planned, ended


def spans(units: Sequence[Unit]) -> dict[tuple[str, int], tuple[int, int]]:
    """The offsets that a round takes of each partition: the first, and the end."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for unit in units:
        for one in unit.ranges:
            first, end = found.get((unit.topic, one.partition), (one.first, one.end))
            found[unit.topic, one.partition] = min(first, one.first), max(end, one.end)
    return found


def encode(document: Plan | Manifest) -> bytes:
    told = {"format": FORMAT, **asdict(document)}
    settings = told.get("plan", told)["settings"]
    if settings["value"] == BYTES:
        told["format"] = _BYTES_FORMAT
        del settings["value"]
    elif settings["partition_by"] in FIXED:
        told["format"] = _COLUMNS_FORMAT
    return (json.dumps(told, indent=1) + "\n").encode()


def encode_files(files: tuple[File, ...]) -> bytes:
    return json.dumps([asdict(file) for file in files]).encode()


def plan_of(key: str, data: bytes) -> Plan:
    """Decode the plan at a key. Raises ExportError."""
    return _read(key, data, _plan)


def manifest_of(key: str, data: bytes) -> Manifest:
    """Decode the manifest at a key. Raises ExportError."""
    return _read(key, data, _manifest)


def files_of(key: str, data: bytes) -> tuple[File, ...]:
    """Decode the list of files at a key. Raises ExportError."""
    try:
        return _files(json.loads(data))
    except (ValueError, TypeError, KeyError) as error:
        raise _damaged(key, error) from error


def _read(key: str, data: bytes, make: Callable[[Any], Document]) -> Document:
    try:
        found = json.loads(data)
        if found["format"] not in range(1, FORMAT + 1):
            raise ExportError(
                f"{key} has format {found['format']!r}, and this build knows formats up to {FORMAT}",
                "export with the build that wrote it, or a later one",
            )
        return make(found)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _damaged(key, error) from error


def _damaged(key: str, error: Exception) -> ExportError:
    return ExportError(f"{key} is damaged ({type(error).__name__}: {error})", ANOTHER_TARGET)


def _plan(found: Any) -> Plan:
    units = tuple(
        Unit(_text(unit["topic"]), tuple(Range(*map(_number, _row(row))) for row in unit["ranges"]))
        for unit in found["units"]
    )
    return Plan(
        _number(found["round"]),
        Settings(**{name: _text(value) for name, value in found["settings"].items()}),
        units,
        {topic: dict(offsets) for topic, offsets in found["next"].items()},
        _texts(found["lost"]),
        None if found.get("cluster") is None else _text(found["cluster"]),
        {topic: _fields(fields) for topic, fields in found.get("columns", {}).items()},
        _texts(found.get("given", [])),
    )


def _fields(found: Any) -> Fields:
    return {name: _kind(kind) for name, kind in found.items()}


def _kind(found: Any) -> Kind:
    if isinstance(found, dict) and found:
        return {name: _kind(kind) for name, kind in found.items()}
    if isinstance(found, list) and len(found) == 1:
        return [_kind(found[0])]
    if found not in SCALARS:
        raise TypeError(f"{found!r} is no type of a column")
    return str(found)


def _manifest(found: Any) -> Manifest:
    return Manifest(_plan(found["plan"]), _files(found["files"]), _texts(found["lost"]))


def _row(found: Any) -> tuple[Any, Any, Any]:
    return found["partition"], found["first"], found["end"]


def _files(found: Any) -> tuple[File, ...]:
    return tuple(
        File(
            _text(one["path"]),
            _number(one["unit"]),
            _number(one["records"]),
            _number(one["bytes"]),
            _text(one["sha256"]),
            _number(one.get("unfit", 0)),
        )
        for one in found
    )


def _texts(found: Any) -> tuple[str, ...]:
    return tuple(map(_text, found))


def _text(found: Any) -> str:
    if not isinstance(found, str):
        raise TypeError(f"{found!r} is not text")
    return found


def _number(found: Any) -> int:
    if type(found) is not int or found < 0:
        raise TypeError(f"{found!r} is not a number")
    return found
