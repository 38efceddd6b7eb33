"""The module by which Spark finds the source `strandline` in any session, without a call.

Spark 4 looks through the Python path for modules whose names begin with `pyspark_`, and takes the class
`DefaultSource` of each. It does so once, when a source is first asked for that Spark itself has not. If one
module cannot be imported, the sources of all others are left out too. So this one needs nothing but PySpark,
and imports the rest when a topic is read.

Programs import `strandline.spark`; see docs/spark.md.
"""

from __future__ import annotations

from strandline.snapshot.extras import require

try:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType
except ModuleNotFoundError:
    require("spark")
    raise

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """The source as Spark finds it, made for each read; ExtraMissing unless the extra `spark` is whole."""

    def __init__(self, options: dict[str, str]) -> None:
        from strandline.snapshot.spark.source import StrandlineSource

        super().__init__(options)
        self._source = StrandlineSource(options)

    @classmethod
    def name(cls) -> str:
        return "strandline"

    def schema(self) -> StructType:
        return self._source.schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return self._source.reader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return self._source.writer(schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return self._source.streamWriter(schema, overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return self._source.streamReader(schema)
