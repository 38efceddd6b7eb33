"""Tables of Iceberg, by the package pyiceberg: a round is one snapshot that adds its files.

The commit sets a property of the table to the round's number, so a commit that is repeated is found, also
when its snapshot has expired; the snapshot has the number and the offsets as well. Of two commits at once the
catalog refuses the second.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform

from strandline.snapshot.spark.export.documents import File, Manifest, Settings
from strandline.snapshot.spark.export.errors import ExportError, TableFailed
from strandline.snapshot.spark.export.parquet import file_schema
from strandline.snapshot.spark.export.tables import Tables
from strandline.snapshot.spark.export.target import STATE, Target
from strandline.snapshot.storage import is_bucket

ROUND: Final = "strandline.round"
NEXT: Final = "strandline.next"
NAMESPACE: Final = "strandline"
"""Namespace of the tables, unless the catalog's properties have another `namespace`."""
_TRANSFORMS: Final = {
    "day": ("timestamp", DayTransform()),
    "hour": ("timestamp", HourTransform()),
    "partition": ("partition", IdentityTransform()),
}
_RETRIES: Final = "commit.retry.num-retries"
_BUCKET_OPTIONS: Final = {
    "endpoint": "s3.endpoint",
    "region": "s3.region",
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
}
"""pyiceberg's names of the options of an S3 bucket; those of other stores are given as the catalog's."""


class IcebergTables(Tables):
    """One table of Iceberg for each topic, in one catalog: by default a file of SQLite in the target."""

    def __init__(self, target: Target, settings: Settings, catalog: Mapping[str, str]) -> None:
        """`catalog` are properties as pyiceberg's `load_catalog` takes them, and `namespace`.

        Raises ExportError.
        """
        super().__init__(target)
        self._by = settings.partition_by
        properties = dict(catalog)
        self._namespace = properties.pop("namespace", NAMESPACE)
        if not properties:
            if is_bucket(target.url):
                raise ExportError(
                    f"{target.url} is a bucket, which has no Iceberg catalog",
                    "name one, as --catalog type=rest --catalog uri=URL",
                )
            folder = os.path.join(target.url, STATE)
            properties = {"type": "sql", "uri": f"sqlite:///{folder}catalog.db"}
        for name, theirs in _BUCKET_OPTIONS.items():
            if name in target.options:
                properties.setdefault(theirs, target.options[name])
        self._properties = properties
        self._loaded: Catalog | None = None

    def _catalog(self) -> Catalog:
        if self._loaded is None:
            self._loaded = load_catalog("strandline", **self._properties)
            self._loaded.create_namespace_if_not_exists(self._namespace)
        return self._loaded

    def _open(self, topic: str) -> Table | None:
        try:
            return self._catalog().load_table((self._namespace, topic))
        except NoSuchTableError:
            return None

    def _make(self, topic: str, schema: Any) -> None:
        try:
            with self._catalog().create_table_transaction(
                (self._namespace, topic), schema, location=self.place(topic)
            ) as making:
                if self._by != "none":
                    with making.update_spec() as spec:
                        column, transform = _TRANSFORMS.get(self._by, (self._by, IdentityTransform()))
                        spec.add_field(column, transform, f"by_{self._by}")
        except (CommitFailedException, TableAlreadyExistsError):
            if self._open(topic) is None:
                raise

    def round_of(self, topic: str) -> int | None:
        with self._told(topic):
            table = self._open(topic)
            return None if table is None else self._round(topic, table)

    def _round(self, topic: str, table: Table) -> int:
        if _plain(table.location()) != _plain(self.place(topic)):
            raise self._refuse_stranger(topic, f"{self._namespace}.{topic} lies at {table.location()}")
        if ROUND not in table.properties and table.current_snapshot() is not None:
            raise self._refuse_stranger(topic, f"{self._namespace}.{topic} has rows, and no round")
        return int(table.properties.get(ROUND, 0))

    _another_name = " with another --catalog namespace=NAME"

    def _committed(self, topic: str, files: list[File], manifest: Manifest) -> bool:
        number = manifest.plan.round
        with self._told(topic):
            table = self._open(topic)
            schema = file_schema(manifest.plan, topic)
            if table is None:
                self._make(topic, schema)
                return False  # look again: another run may have made it, and have committed
            if self._round(topic, table) >= number:
                return True
            # pyiceberg would commit again on top of another's commit, which may have been this very round.
            table.metadata.properties[_RETRIES] = "0"
            told = {ROUND: str(number), NEXT: json.dumps(manifest.plan.next[topic])}
            try:
                with table.transaction() as adding:
                    adding.set_properties({ROUND: str(number)})
                    if manifest.plan.columns:
                        with adding.update_schema() as columns:
                            columns.union_by_name(schema)
                    paths = [f"{self._target.url}/{file.path}" for file in files]
                    adding.add_files(paths, snapshot_properties=told, check_duplicate_files=False)
            except CommitFailedException:
                return False
        return True

    def offsets(self, topic: str) -> Iterator[Any]:
        with self._told(topic):
            table = self._open(topic)
            if table is not None:
                yield from table.scan(selected_fields=("partition", "offset")).to_arrow_batch_reader()

    @contextmanager
    def _told(self, topic: str) -> Iterator[None]:
        """Errors of the library, of the catalog and of the network as one line."""
        try:
            yield
        except ExportError:
            raise
        except Exception as error:  # a catalog's client raises what its transport raises
            line = str(error).partition("\n")[0] or type(error).__name__
            raise TableFailed(
                f"{self.place(topic)}: {line}", "mend the table or its catalog, and run it again"
            ) from error


def _plain(location: str) -> str:
    """A location as all catalogs tell it: some add a slash, or name S3 as Hadoop does."""
    scheme, separator, rest = location.rstrip("/").rpartition("://")
    return (
        rest if scheme in ("", "file") else f"{'s3' if scheme in ('s3a', 's3n') else scheme}{separator}{rest}"
    )
