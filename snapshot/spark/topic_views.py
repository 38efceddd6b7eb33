"""Topics as views of a Spark session, made when a query first names one.

The topic of a view over topics (docs/views.md) is the view's present rows: the last record of each key,
without keys that are deleted. Any other topic is all of its records.

A view has the columns of a topic's JSON values where a sample of them are objects, else `key` and `value` as
text; and `_partition`, `_offset`, `_timestamp`, as views over topics have them. A query that names no such
column does not read it: Spark tells a source in Python nothing of the columns that a query uses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql.functions import col, desc, from_json, row_number

from strandline.snapshot.spark.json_schema import Kind, ddl, infer, quoted
from strandline.snapshot.spark.newest import check_wanted, wanted_checkpoints, wanted_places
from strandline.snapshot.spark.options import ReadOptions, SourceError, parse
from strandline.snapshot.spark.sample import sampled
from strandline.snapshot.spark.views import newest_views
from strandline.snapshot.storage import Storage, open_storage
from strandline.statemachine.controller.view_state import owner_of

MOST_TOPICS: Final = 100
"""Topics of one query."""
CORRUPT: Final = "_corrupt_record"
_JSON: Final = "json"
_RANK: Final = "rank"
_PART: Final = re.compile(r"`((?:[^`]|``)*)`")
_SPARK_TYPES: Final = {
    "key": "BINARY",
    "value": "BINARY",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
}
_COUNT_ALL: Final = re.compile(r"count\s*\(\s*\*\s*\)", re.IGNORECASE)
_ALL: Final = re.compile(
    r"\*|\|>|\b(natural|pivot|table|describe|show)\b|(^|\()\s*(from|desc)\b", re.IGNORECASE
)
"""Words of a query that is about columns that it does not name: `*`, NATURAL JOIN, `TABLE t`, `FROM t |>`,
and PIVOT, which has a row for each value of all that it does not name."""


def check_storage(options: Mapping[str, str]) -> None:
    """Raise SourceError, StorageError if a storage has no checkpoint, without Spark.

    `options` are those of the data source, without a topic.
    """
    read = parse({**options, "subscribePattern": ".*"})
    wanted_checkpoints(open_storage(read.url, read.storage), read).controller()


class TopicViews:
    """The topics of one cluster in a session; options are those of the data source, without a topic."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        self._spark = spark
        self._options = dict(options)
        self._known: dict[str, _Topic] = {}

    def query(self, text: str) -> DataFrame:
        """The query's frame, over topics as they are at this moment.

        Raises SourceError for a topic that is not there, StorageError, BadObject, and what Spark raises.
        """
        for name in self._known:
            self._spark.catalog.dropTempView(name)
        self._known = {}  # records may have other fields by now, or the topic be another
        added: set[str] = set()
        whole = False
        while True:
            try:
                return self._spark.sql(text)
            except AnalysisException as error:
                missing = _missing(error)
                if missing in added or len(added) == MOST_TOPICS or (missing is None and whole):
                    raise
            if missing is not None:
                self._add(missing, text)
                added.add(missing)
                continue
            whole = True  # the error shall tell of all columns
            for name in added:
                self._add(name, "*")

    def _add(self, topic: str, text: str) -> None:
        if topic not in self._known:
            options = parse({**self._options, "topic": topic})
            self._known[topic] = _sampled(open_storage(options.url, options.storage), options)
        wanted = _columns(self._known[topic])
        if _ALL.search(_COUNT_ALL.sub("", text)) is None:
            lowered = text.lower()
            wanted = [one for one in wanted if one.name.lower() in lowered]
        read = {one.source for one in wanted} or {"offset"}
        if self._known[topic].of_program:
            read |= {"key", "value", "offset"}
        schema = ", ".join(f"{quoted(name)} {_SPARK_TYPES[name]}" for name in sorted(read))
        frame = (
            self._spark.read.format("strandline")
            .options(**{**self._options, "topic": topic})
            .schema(schema)
            .load()
        )
        if self._known[topic].of_program:
            frame = latest(frame)
        fields = self._known[topic].fields
        if fields is not None and any(one.field is not None for one in wanted):
            kind = f"{ddl(fields)}, {quoted(CORRUPT)} STRING"
            how = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
            frame = frame.withColumn(_JSON, from_json(col("value").cast("string"), kind, how))
        frame.select(*(one.made() for one in wanted)).createOrReplaceTempView(quoted(topic))


@dataclass(frozen=True)
class _Topic:
    """The shape of a topic's records, as a sample of them has it."""

    fields: dict[str, Kind] | None
    """The fields of values that are JSON objects; None for other values."""
    key_is_text: bool
    value_is_text: bool
    of_program: bool
    """Whether a program of views writes it."""


def latest(frame: DataFrame) -> DataFrame:
    """Give the last record of each key, without keys that are deleted; needs `key`, `value` and `offset`."""
    newest = Window.partitionBy("key").orderBy(desc("offset"))
    ranked = frame.where("key is not null").withColumn(_RANK, row_number().over(newest))
    return ranked.where(f"{_RANK} = 1 and value is not null").drop(_RANK)


class _Column(NamedTuple):
    """A column of a view, and the column of the source that it is made from."""

    name: str
    source: str
    text: bool = False
    field: str | None = None
    """The field of the value's JSON."""

    def made(self) -> Column:
        if self.field is not None:
            return col(_JSON).getField(self.field).alias(self.name)
        found = col(self.source)
        return (found.cast("string") if self.text else found).alias(self.name)


def _columns(topic: _Topic) -> list[_Column]:
    """All columns of a view; a field of the JSON has precedence over what has its name."""
    before = "" if topic.fields is None else "_"
    found = [_Column(name, "value", field=name) for name in topic.fields or ()]
    beside = [
        _Column(f"{before}key", "key", topic.key_is_text),
        _Column(f"{before}value", "value", topic.value_is_text),
        _Column("_partition", "partition"),
        _Column("_offset", "offset"),
        _Column("_timestamp", "timestamp"),
        _Column("_headers", "headers"),
    ]
    if topic.fields is not None:
        beside.append(_Column(CORRUPT, "value", field=CORRUPT))
    taken = {one.name.lower() for one in found}
    return found + [one for one in beside if one.name.lower() not in taken]


def _missing(error: AnalysisException) -> str | None:
    """The table that a query names and the session does not have."""
    if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
        return None
    name = (error.getMessageParameters() or {}).get("relationName", "")
    parts = _PART.findall(name)
    if len(parts) != 1:
        plain = ".".join(part.replace("``", "`") for part in parts)
        raise SourceError(
            f"there is no table {plain!r}: a topic's name with dots goes in backquotes, `{plain}`"
        )
    return str(parts[0].replace("``", "`"))


def _sampled(storage: Storage, options: ReadOptions) -> _Topic:
    """Look at the first and last records of some partitions; raises SourceError, StorageError, BadObject."""
    checkpoints = wanted_checkpoints(storage, options)
    state = checkpoints.controller()
    check_wanted(state, options)
    views = newest_views(checkpoints, wanted_places(state, options), options.committed)
    keys: list[bytes] = []
    values: list[bytes] = []
    for batch in sampled(storage, (view for view in views.values() if view is not None), ("key", "value")):
        keys += (key for key in batch.column("key").to_pylist() if key is not None)
        values += (value for value in batch.column("value").to_pylist() if value is not None)
    (name,) = options.topics
    of_program = owner_of(state.view_programs, state.by_name[name].topic_id) is not None
    return _Topic(infer(values), all(map(_is_text, keys)), all(map(_is_text, values)), of_program)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
