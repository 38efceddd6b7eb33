"""JSON values to columns of an export: what the columns say of a value, and whether that is all of it.

A value that the columns say wholly is left out of the column `value`; every other value stays there as it is,
so nothing is lost where a field is new, has another type, or is no JSON. A round's plan fixes its columns.
Later rounds add columns and never change one: tables allow for that, and readers too. See docs/export.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa  # type: ignore[import-untyped]

from strandline.snapshot.decode import COLUMNS
from strandline.snapshot.spark.export.errors import ExportError
from strandline.snapshot.spark.json_schema import MOST_FIELDS, Kind, infer

Fields = Mapping[str, Kind]
"""The fields of a topic's values that have columns, in the order of these."""

SCALARS: Final = {
    "BOOLEAN": pa.bool_(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "DATE": pa.date32(),
}
"""Types that have no others inside; moments and days are text in JSON, and never inferred."""
FOLDER_KINDS: Final = ("BOOLEAN", "BIGINT", "STRING", "DATE")
"""Types of a column whose values can be names of folders; for moments there are days and hours."""
_TAKEN: Final = {name.lower() for name in COLUMNS} | {"day", "hour"}
"""Columns of every record, and of folders."""
_NAME: Final = re.compile(r"""[^\s,;{}()=.`"'\x00-\x1f\x7f]{1,128}""")
"""Names that Parquet, Delta and Iceberg take for a column without quoting or mapping it."""
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")
_FINER: Final = re.compile(r"[.,]\d{7}")
_LARGEST: Final = 2**63
NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
"""Folder of rows that have no value in the column of folders; readers take it for null."""
_LONGEST_FOLDER: Final = 120
"""Most bytes of a value in a folder's name: with a column's name at most 255, as file systems have it."""
_EXACT: Final = 2**53
"""Whole numbers up to this one are the same as a fraction of 64 bits."""


def column_name(field: str) -> str:
    """The column of a field: its own name, or with `value_` before it where each record has such a column."""
    return f"value_{field}" if field.lower() in _TAKEN else field


def is_column_name(field: str) -> bool:
    """Whether a field, or one inside of a struct, can have a column by its name."""
    return _NAME.fullmatch(field) is not None


def grown(before: Fields, sample: Iterable[bytes]) -> dict[str, Kind]:
    """The fields that have columns after a sample of values: those from before, then new ones.

    A field gets no column if its name cannot be one, or if it was null each time.
    """
    fields = dict(before)
    names = {column_name(field).lower() for field in fields}
    for field, kind in (infer(sample) or {}).items():
        settled, name = _settled(kind), column_name(field).lower()
        if settled is None or name in names or not is_column_name(field) or len(fields) == MOST_FIELDS:
            continue
        fields[field] = settled
        names.add(name)
    return fields


def extended(topic: str, before: Fields, given: Fields) -> dict[str, Kind]:
    """The columns of a topic with those that are given; raises ExportError where these contradict them."""
    for field, kind in given.items():
        if before.get(field, kind) != kind:
            raise ExportError(
                f"column {field!r} of topic {topic!r} is {kind}, and the target has it as {before[field]}",
                "give it as the target has it, or export to another place",
            )
    found = {**before, **given}
    if len({column_name(field).lower() for field in found}) < len(found) or len(found) > MOST_FIELDS:
        raise ExportError(
            f"topic {topic!r} would have columns whose names differ in case alone, or over {MOST_FIELDS}",
            "give others, or export to another place",
        )
    return found


def _settled(kind: Kind) -> Kind:
    """A type that can be a column's for good: text where nothing but null is known of a part of it."""
    if isinstance(kind, list):
        return [_settled(kind[0]) or "STRING"]
    if isinstance(kind, dict):
        found = {name: settled for name, one in kind.items() if (settled := _settled(one)) is not None}
        return found if found and all(map(is_column_name, found)) else "STRING"
    return kind


def arrow_fields(fields: Fields) -> list[Any]:
    """The columns as Arrow has them."""
    return [pa.field(column_name(field), _arrow(kind)) for field, kind in fields.items()]


def _arrow(kind: Kind) -> Any:
    if isinstance(kind, list):
        return pa.list_(pa.field("element", _arrow(kind[0])))
    if isinstance(kind, dict):
        return pa.struct([pa.field(name, _arrow(one)) for name, one in kind.items()])
    return SCALARS[str(kind)]


def is_folder(text: str) -> bool:
    """Whether a text can be a folder's name: a file system takes it, and readers do not take it for null."""
    return 0 < len(quote(text, safe="")) <= _LONGEST_FOLDER and text != NO_VALUE and text.isprintable()


class JsonColumns:
    """Decodes the values of one topic into its columns.

    `folders` is the column whose values are names of folders, if one is: a text that cannot be one has no
    place in that column.
    """

    def __init__(self, fields: Fields, folders: str | None = None) -> None:
        self._fields = arrow_fields(fields)
        self._columns = {field: number for number, field in enumerate(fields)}
        self._take = [self._taker(kind) for kind in fields.values()]
        for number, (field, kind) in enumerate(fields.items()):
            if column_name(field) == folders and kind == "STRING":
                self._take[number] = self._folder
        self._whole = True
        """Whether the columns say all of the value that is being taken."""
        self._decode = json.JSONDecoder(parse_constant=_refuse_constant).decode

    def added(self, batch: Any) -> Any:
        """The batch with the columns; `value` has no more than the values that these do not say wholly."""
        values = batch.column("value").to_pylist()
        rows: list[list[Any]] = [[None] * len(values) for _ in self._fields]
        kept: list[bytes | None] = [None] * len(values)
        for number, value in enumerate(values):
            if value is not None and not self._said(value, number, rows):
                kept[number] = value
        at = batch.schema.get_field_index("value")
        batch = batch.set_column(at, "value", pa.array(kept, pa.binary()))
        for field, column in zip(self._fields, rows, strict=True):
            batch = batch.append_column(field, pa.array(column, field.type))
        return batch

    def _said(self, value: bytes, number: int, rows: list[list[Any]]) -> bool:
        """Fill row `number` of the columns from a value; returns whether they say all of it."""
        try:
            text = value.decode()
            found = self._decode(text)
            if "\\u" in text:
                json.dumps(found, ensure_ascii=False).encode()  # half of a surrogate pair is no text
        except (ValueError, RecursionError):
            return False
        if not isinstance(found, dict):
            return False
        self._whole = True
        some = False
        # As `_struct` does it, without a dict in between: with one it is a tenth slower.
        for field, one in found.items():
            if one is None:
                continue  # a column says the same of null and of a field that is not there
            column = self._columns.get(field)
            if column is None:
                self._whole = False
            else:
                taken = self._take[column](one)
                rows[column][number] = taken
                some |= taken is not None
        # An object of nulls would look like a record without a value.
        return self._whole and some

    def _taker(self, kind: Kind) -> Callable[[Any], Any]:
        """Turns a decoded value, which is not null, into what a column of a type takes."""
        if isinstance(kind, list):
            element = self._taker(kind[0])
            return lambda value: (
                [None if one is None else element(one) for one in value]
                if isinstance(value, list)
                else self._misfit()
            )
        if isinstance(kind, dict):
            return self._struct({name: self._taker(one) for name, one in kind.items()})
        return {
            "BOOLEAN": lambda value: value if isinstance(value, bool) else self._misfit(),
            "BIGINT": self._bigint,
            "DOUBLE": self._double,
            "STRING": self._string,
            "TIMESTAMP": self._timestamp,
            "DATE": self._date,
        }[str(kind)]

    def _misfit(self) -> Any:
        """Nothing, of a value that the columns have no place for."""
        self._whole = False
        return None

    def _struct(self, takers: Mapping[str, Callable[[Any], Any]]) -> Callable[[Any], Any]:
        def take(value: Any) -> Any:
            if not isinstance(value, dict):
                return self._misfit()
            found = {}
            for name, one in value.items():
                if one is None:
                    continue
                if name in takers:
                    found[name] = takers[name](one)
                else:
                    self._whole = False
            return found

        return take

    def _bigint(self, value: Any) -> Any:
        fits = type(value) is int and -_LARGEST <= value < _LARGEST
        return value if fits else self._misfit()

    def _double(self, value: Any) -> Any:
        if type(value) is float and abs(value) != float("inf"):
            return value
        if type(value) is int and -_EXACT <= value <= _EXACT:
            return float(value)
        return self._misfit()

    def _string(self, value: Any) -> Any:
        if isinstance(value, str):
            return value
        try:
            return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        except ValueError:  # a number that is too large for 64 bits
            return self._misfit()

    def _folder(self, value: Any) -> Any:
        found = self._string(value)
        return found if found is None or is_folder(found) else self._misfit()

    def _timestamp(self, value: Any) -> Any:
        """A moment of ISO 8601 that names its zone, and has microseconds at most."""
        if not isinstance(value, str) or _FINER.search(value):
            return self._misfit()
        try:
            found = datetime.fromisoformat(value)
            return found.astimezone(UTC) if found.tzinfo is not None else self._misfit()
        except (ValueError, OverflowError):  # the years before 1 and after 9999
            return self._misfit()

    def _date(self, value: Any) -> Any:
        if not isinstance(value, str) or not _DAY.fullmatch(value):
            return self._misfit()
        try:
            return date.fromisoformat(value)
        except ValueError:
            return self._misfit()


def _refuse_constant(name: str) -> Any:
    """NaN and Infinity are JavaScript's, not JSON's."""
    raise ValueError(f"{name} is no JSON")
