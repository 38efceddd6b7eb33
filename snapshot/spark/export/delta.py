"""Tables of Delta Lake, by the package deltalake: a round is one commit that adds its files.

The commit has a transaction identifier of Delta's protocol: this application and the round's number. A table
tells the newest that it has, and of two commits with the same identifier at once the second is refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa  # type: ignore[import-untyped]
from deltalake import CommitProperties, DeltaTable
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, Transaction

from strandline.snapshot.spark.export.documents import File, Manifest, Settings, topic_folder
from strandline.snapshot.spark.export.errors import ExportError, TableFailed
from strandline.snapshot.spark.export.json_columns import NO_VALUE, arrow_fields
from strandline.snapshot.spark.export.parquet import file_schema
from strandline.snapshot.spark.export.tables import Tables
from strandline.snapshot.spark.export.target import Target

APPLICATION: Final = "strandline-export"
_COLUMN: Final = {"day": pa.date32(), "hour": pa.string(), "partition": pa.int32()}
"""Type of the column that a table is partitioned by, whose values are the names of folders; of a column of
values it is that column's."""


class DeltaTables(Tables):
    """One table of Delta Lake for each topic."""

    def __init__(self, target: Target, settings: Settings) -> None:
        super().__init__(target)
        by = settings.partition_by
        self._partition_by = [] if by == "none" else [by]
        self._options = dict(target.options)
        if self._options.get("endpoint", "").startswith("http://"):
            self._options["allow_http"] = "true"

    def _open(self, topic: str) -> DeltaTable | None:
        try:
            return DeltaTable(self.place(topic), storage_options=self._options)
        except TableNotFoundError:
            return None

    def round_of(self, topic: str) -> int | None:
        with self._told(topic):
            table = self._open(topic)
            return None if table is None else self._round(topic, table)

    def _round(self, topic: str, table: DeltaTable) -> int:
        found = table.transaction_version(APPLICATION)
        if found is None and table.file_uris():
            raise self._refuse_stranger(topic, f"{self.place(topic)} has files, and no round")
        return found or 0

    def _committed(self, topic: str, files: list[File], manifest: Manifest) -> bool:
        number = manifest.plan.round
        with self._told(topic):
            try:
                table = self._open(topic)
                schema = self._schema(topic, manifest)
                if table is None:
                    self._make(topic, schema)
                    return False  # look again: another run may have made it, and have committed
                if self._round(topic, table) >= number:
                    return True
                if manifest.plan.columns and self._add_columns(topic, table, schema):
                    return False  # look again; a run that is killed here leaves columns without values
                table.create_write_transaction(
                    [self._added(topic, file) for file in files],
                    mode="append",
                    schema=schema,
                    partition_by=self._partition_by,
                    commit_properties=CommitProperties(
                        custom_metadata={"strandline": {"round": number, "next": manifest.plan.next[topic]}},
                        app_transactions=[Transaction(APPLICATION, number)],
                    ),
                )
            except CommitFailedError:
                return False
        return True

    def _schema(self, topic: str, manifest: Manifest) -> Any:
        """The columns of a round's files, and those of their folders."""
        columns = file_schema(manifest.plan, topic)
        of_values = {field.name: field.type for field in arrow_fields(manifest.plan.columns.get(topic, {}))}
        for name in self._partition_by:
            columns = columns.append(pa.field(name, _COLUMN.get(name) or of_values[name]))
        return columns

    def _add_columns(self, topic: str, table: DeltaTable, schema: Any) -> bool:
        """Add the columns that a round's files have and the table has not; whether there were some."""
        has = {field.name: field.type for field in table.schema().fields}
        wanted = DeltaSchema.from_arrow(schema).fields
        for field in wanted:
            if has.get(field.name, field.type) != field.type:
                raise self._refuse_column(topic, field.name)
        added = [field for field in wanted if field.name not in has]
        if added:
            table.alter.add_columns(added)
        return bool(added)

    def _make(self, topic: str, schema: Any) -> None:
        try:
            DeltaTable.create(
                self.place(topic),
                schema,
                mode="ignore",
                partition_by=self._partition_by,
                storage_options=self._options,
            )
        except DeltaError:
            if self._open(topic) is None:
                raise

    def _added(self, topic: str, file: File) -> AddAction:
        path = file.path.removeprefix(topic_folder(topic))
        values = {}
        for name in self._partition_by:
            value = path.partition("/")[0].removeprefix(f"{name}=")
            values[name] = None if value == NO_VALUE else unquote(value)
        stats = json.dumps({"numRecords": file.records})
        # The library writes paths as URIs.
        return AddAction(path, file.bytes, values, int(time.time() * 1000), True, stats)

    def offsets(self, topic: str) -> Iterator[Any]:
        with self._told(topic):
            table = self._open(topic)
            if table is not None:
                yield from table.to_pyarrow_dataset().scanner(columns=["partition", "offset"]).to_batches()

    compacts = True

    def compact(self, topic: str) -> int:
        with self._told(topic):
            table = self._open(topic)
            if table is None:
                return 0
            try:
                done = table.optimize.compact()
                table.vacuum(dry_run=False)  # what Delta keeps for a week is kept
            except CommitFailedError as error:
                raise ExportError(
                    f"{self.place(topic)} has a commit of another writer, and is not compacted",
                    "run it again",
                ) from error
            return int(done["numFilesRemoved"])

    @contextmanager
    def _told(self, topic: str) -> Iterator[None]:
        """Errors of the library as one line."""
        try:
            yield
        except (DeltaError, OSError, ValueError) as error:
            line = str(error).partition("\n")[0] or type(error).__name__
            raise TableFailed(f"{self.place(topic)}: {line}", "mend the table, and run it again") from error
