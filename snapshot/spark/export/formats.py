"""The tables of a target by its format; none of their libraries is imported where no target needs it."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.snapshot.extras import require
from strandline.snapshot.spark.export.documents import Settings
from strandline.snapshot.spark.export.errors import ExportError
from strandline.snapshot.spark.export.tables import Tables
from strandline.snapshot.spark.export.target import Target


def open_tables(settings: Settings, target: Target, catalog: Mapping[str, str]) -> Tables | None:
    """The tables of a target, None for files alone; `catalog` are pyiceberg's properties of one.

    Raises ExportError, and ExtraMissing if the format's libraries are not installed.
    """
    if catalog and settings.format != "iceberg":
        raise ExportError("--catalog is of --format iceberg", "leave out one of them")
    if settings.format == "parquet":
        return None
    require("export")
    # Each takes seconds to import where the machine is busy, and a target needs one of them at most.
    if settings.format == "delta":
        from strandline.snapshot.spark.export.delta import DeltaTables

        return DeltaTables(target, settings)
    from strandline.snapshot.spark.export.iceberg import IcebergTables

    return IcebergTables(target, settings, catalog)
