"""One unit of a round to its Parquet files: a task, wherever it runs.

A file's name follows from the plan, and the first that makes it wins. So it does not matter how many
processes do the same unit, nor when one of them ends: each finds the same files, and says what lies there.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from strandline.snapshot.decode import COLUMNS
from strandline.snapshot.spark.export.documents import (
    FIXED,
    JSON,
    File,
    Plan,
    Unit,
    done_name,
    encode_files,
    file_name,
    files_of,
    topic_folder,
)
from strandline.snapshot.spark.export.errors import ExportError, TooManyFolders
from strandline.snapshot.spark.export.json_columns import NO_VALUE, JsonColumns, arrow_fields
from strandline.snapshot.spark.export.target import Target
from strandline.snapshot.spark.fetch import read_windows
from strandline.snapshot.spark.moved import MovedRecords
from strandline.snapshot.spark.options import TOPIC_ID
from strandline.snapshot.spark.pieces import Window
from strandline.snapshot.storage import ObjectMissing, Storage

ROW_GROUP_BYTES: Final = 16 * 1024 * 1024
"""Decompressed bytes of a row group; what is gathered before it is encoded, by each open file of a task."""
MOST_FOLDERS: Final = 1000
"""Values of the partition column in one unit: each is a file that is open until the unit ends."""
MADE_BY: Final = b"strandline.export"
"""Key of a file's metadata: the round and unit that it is of."""
_MICROSECONDS: Final = {"day": 86_400_000_000, "hour": 3_600_000_000}
FOLDER_OF_PARTITION: Final = re.compile(r"/partition=(\d+)/")
_CALENDAR: Final = (-62_135_596_800_000_000, 253_402_300_799_999_000)
"""The first and the last millisecond of the years 1 to 9999, in microseconds since 1970."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Job:
    """A unit with the places of its records."""

    storage: Storage
    target: Target
    plan: Plan
    number: int
    windows: Sequence[Window]

    @property
    def unit(self) -> Unit:
        return self.plan.units[self.number]

    def run(self) -> tuple[File, ...]:
        """Write the unit; returns its files. Raises ExportError, StorageError, BadObject."""
        files = tuple(self._written())
        if len(self.plan.units) == 1:
            return files  # it is written down that a unit is done where its round has others
        key = done_name(self.plan.round, self.number)
        if self.target.create(key, encode_files(files)):
            return files
        try:
            return files_of(key, self.target.get(key))
        except ObjectMissing:
            return files  # another run has ended the round meanwhile, and its manifest counts

    def _written(self) -> Iterator[File]:
        writers: dict[str, _Writer] = {}
        partition_by = self.plan.settings.partition_by
        topic = self.unit.topic
        values = None
        if self.plan.settings.value == JSON:
            values = JsonColumns(self.plan.columns[topic], partition_by)
        schema = file_schema(self.plan, topic).with_metadata({MADE_BY: made_by(self.plan, self.number)})
        read = pa.schema([(name, COLUMNS[name]) for name in COLUMNS if name != "topic"])
        moved = MovedRecords(self.storage, compacted=True)
        for batch in read_windows(self.storage, self.windows, read, moved):
            if self.plan.settings.format == "iceberg":
                batch = _in_calendar(batch)
            if values is not None:
                batch = values.added(batch)
            for folder, rows in _split(batch, partition_by):
                if folder not in writers:
                    if len(writers) == MOST_FOLDERS:
                        raise TooManyFolders(
                            f"{self.plan.settings.partition_by} has more than {MOST_FOLDERS} values in a "
                            f"file's part of topic {self.unit.topic!r}; of this round nothing is left",
                            "export to another place with a coarser --partition-by, or give a smaller "
                            "--file-mb",
                        )
                    writers[folder] = _Writer(schema)
                writers[folder].add(rows)
        for folder, writer in writers.items():
            path = f"{topic_folder(self.unit.topic)}{folder}{file_name(self.plan.round, self.number)}"
            yield self._stored(path, writer.finish())

    def _stored(self, path: str, data: Any) -> File:
        content = memoryview(data)
        if self.target.create(path, content):
            return _told(self.plan, self.number, path, content, pq.read_metadata(pa.BufferReader(data)))
        return found_file(self.plan, self.number, path, self.target.get(path))


def made_by(plan: Plan, position: int) -> bytes:
    """The value of MADE_BY in the metadata of a unit's files: another export's of the same offsets differ."""
    unit = plan.units[position]
    told: dict[str, Any] = {"round": plan.round, "unit": position, **asdict(unit)}
    if plan.cluster is not None:
        told |= {"cluster": plan.cluster, "topic_id": plan.next[unit.topic][TOPIC_ID]}
    return json.dumps(told).encode()


def file_schema(plan: Plan, topic: str) -> Any:
    """The columns of a round's files; the topic and what it is partitioned by are in their paths.

    Iceberg goes by the files alone, and takes nothing from their paths.
    """
    iceberg = plan.settings.format == "iceberg"
    left_out = {"topic"} if iceberg else {"topic", plan.settings.partition_by}
    fields = [pa.field(name, kind) for name, kind in COLUMNS.items()]
    fields += arrow_fields(plan.columns.get(topic, {}))
    return pa.schema([one for one in fields if one.name not in left_out])


def found_file(plan: Plan, position: int, path: str, data: bytes) -> File:
    """A file that lies there already; raises ExportError if the unit did not make it."""
    try:
        footer = pq.read_metadata(pa.BufferReader(data))
    except pa.ArrowException as error:
        raise ExportError(f"{path} lies in the way and is no whole Parquet file ({error})", _MOVE) from error
    if (footer.metadata or {}).get(MADE_BY) != made_by(plan, position):
        raise ExportError(f"{path} lies in the way: this export has not made it", _MOVE)
    return _told(plan, position, path, data, footer)


def _told(plan: Plan, position: int, path: str, data: bytes | memoryview, footer: Any) -> File:
    """A file as a manifest tells of it."""
    unfit = _values(footer) if plan.settings.value == JSON else 0
    return File(path, position, footer.num_rows, len(data), hashlib.sha256(data).hexdigest(), unfit)


def _values(footer: Any) -> int:
    """The number of records of a file that have something in the column `value`."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    at = footer.schema.to_arrow_schema().names.index("value")
    # The columns before it, key alone, are no nested ones, so the number of the leaf is the same.
    return int(sum(group.num_rows - group.column(at).statistics.null_count for group in groups))


_MOVE: Final = "move it away, or export to another place"


def _split(batch: Any, partition_by: str) -> Iterator[tuple[str, Any]]:
    """The rows of a batch by the folder that they belong to, in their order."""
    if partition_by == "none":
        yield "", batch
        return
    if partition_by not in FIXED:
        yield from _split_by_values(batch, partition_by)
        return
    if partition_by == "partition":
        values = batch.column("partition").to_numpy()
    else:
        values = batch.column("timestamp").cast(pa.int64()).to_numpy() // _MICROSECONDS[partition_by]
    for value in np.unique(values).tolist():
        chosen = values == value
        rows = batch if chosen.all() else batch.filter(pa.array(chosen))
        yield f"{partition_by}={_folder(partition_by, value)}/", rows


def _split_by_values(batch: Any, column: str) -> Iterator[tuple[str, Any]]:
    coded = batch.column(column).dictionary_encode(null_encoding="encode")
    codes = coded.indices.to_numpy()
    for code, value in enumerate(coded.dictionary.to_pylist()):
        chosen = codes == code
        rows = batch if chosen.all() else batch.filter(pa.array(chosen))
        yield f"{column}={quote(text_of(value), safe='')}/", rows


def text_of(value: Any) -> str:
    """A column's value as the name of its folder, before it is quoted."""
    if value is None:
        return NO_VALUE
    return str(value).lower() if isinstance(value, bool) else str(value)


def _in_calendar(batch: Any) -> Any:
    """The batch with times outside the years 1 to 9999 as the first or last moment of these.

    pyiceberg cannot tell the bounds of a file that has others.
    """
    times = batch.column("timestamp").cast(pa.int64()).to_numpy()
    within = np.clip(times, *_CALENDAR)
    if (times == within).all():
        return batch
    number = batch.schema.get_field_index("timestamp")
    return batch.set_column(number, "timestamp", pa.array(within).view(COLUMNS["timestamp"]))


def _folder(partition_by: str, value: int) -> str:
    if partition_by == "partition":
        return str(value)
    try:
        moment = _EPOCH + timedelta(microseconds=value * _MICROSECONDS[partition_by])
    except OverflowError:
        return NO_VALUE  # a producer may write any number as a time
    day = moment.date().isoformat()
    return day if partition_by == "day" else f"{day}-{moment.hour:02d}"


class _Writer:
    """A Parquet file in memory: a unit has bounded bytes, and a bucket takes a file in one piece."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(self._sink, schema, compression="zstd")
        self._rows: list[Any] = []
        self._bytes = 0

    def add(self, rows: Any) -> None:
        self._rows.append(rows.select(self._schema.names))
        self._bytes += rows.nbytes
        if self._bytes >= ROW_GROUP_BYTES:
            self._write()

    def finish(self) -> Any:
        """The file's bytes."""
        self._write()
        self._writer.close()
        return self._sink.getvalue()

    def _write(self) -> None:
        if self._rows:
            table = pa.Table.from_batches(self._rows).cast(self._schema)
            self._writer.write_table(table, row_group_size=table.num_rows)
        self._rows, self._bytes = [], 0
