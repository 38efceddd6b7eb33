"""The columns of a frame that is written: those of Spark's Kafka sink, and `timestamp`.

`value` has to be there; `key`, `topic`, `partition`, `headers` and `timestamp` may be. The columns that the
source has besides are passed over, so what was read can be written. Any other is an error: it would be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.types import StructType

from strandline.snapshot.spark.sink.errors import SinkError
from strandline.snapshot.spark.sink.partitioning import partitions_of
from strandline.snapshot.spark.sink.record_batch import headers, sized

_BYTES: Final = ("string", "binary")
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "value": _BYTES,
    "key": _BYTES,
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
}
_PASSED_OVER: Final = ("offset", "timestampType", "leader_epoch")
_NO_HEADERS: Final = b"\0"
_MICROSECONDS: Final = 1000


class Row(NamedTuple):
    """A record on its way: where to, its time in Unix milliseconds or None for now, and all that follows."""

    topic: str
    partition: int
    timestamp: int | None
    tail: bytes


class Columns:
    """The columns of one frame. `topic`: the option, which stands for every row's."""

    def __init__(self, schema: StructType, topic: str | None) -> None:
        found = {field.name: field.dataType.simpleString() for field in schema.fields}
        for name, kind in found.items():
            if name in _PASSED_OVER:
                continue
            if name not in _TYPES:
                raise SinkError(
                    f"there is no place for column {name!r} in a record: leave it out, or put it into the "
                    "value, as in to_json(struct(*)) AS value"
                )
            if kind not in _TYPES[name]:
                raise SinkError(
                    f"column {name!r} is {kind}, not {' or '.join(_TYPES[name])}: "
                    f"CAST({name} AS {_TYPES[name][0]})"
                )
        if "value" not in found:
            raise SinkError("column 'value' is missing: the records' values, string or binary")
        if topic is None and "topic" not in found:
            raise SinkError("no topic: give the option 'topic', or a column of that name")
        self._names = frozenset(found)
        self._topic = topic

    def rows(self, batch: Any, partitions: Callable[[str], int], first: int) -> Iterator[Row]:
        """The rows of an Arrow batch. `partitions`: how many a topic has.

        Rows without key take turns over them, `first` is the turn of the first one. Raises SinkError for a
        row that cannot be a record.
        """
        size = batch.num_rows
        values = _bytes(batch, "value")
        keys: list[bytes | None] = _bytes(batch, "key") if "key" in self._names else [None] * size
        topics = [self._topic] * size if self._topic is not None else batch.column("topic").to_pylist()
        times = self._times(batch)
        packed = self._headers(batch)
        places = self._places(batch, keys, topics, partitions, first)
        for topic, place, time, key, value, more in zip(
            topics, places, times, keys, values, packed, strict=True
        ):
            yield Row(topic, place, time, sized(key) + sized(value) + more)

    def _times(self, batch: Any) -> list[int | None]:
        if "timestamp" not in self._names:
            return [None] * batch.num_rows
        micros = batch.column("timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
        return [None if one is None else one // _MICROSECONDS for one in micros]

    def _headers(self, batch: Any) -> list[bytes]:
        if "headers" not in self._names:
            return [_NO_HEADERS] * batch.num_rows
        found = []
        for pairs in batch.column("headers").to_pylist():
            for pair in pairs or ():
                if pair is None or pair["key"] is None:
                    raise SinkError("a header without key: give each one, or filter such headers out")
            found.append(headers([(pair["key"].encode(), pair["value"]) for pair in pairs or ()]))
        return found

    def _places(
        self,
        batch: Any,
        keys: list[bytes | None],
        topics: list[str | None],
        partitions: Callable[[str], int],
        first: int,
    ) -> list[int]:
        wanted = (
            batch.column("partition").to_pylist() if "partition" in self._names else [None] * batch.num_rows
        )
        places = np.empty(batch.num_rows, np.int64)
        for topic in dict.fromkeys(topics):
            if not topic:
                raise SinkError("a row has no topic: give the option 'topic', or fill the column")
            count = partitions(topic)
            rows = [number for number, name in enumerate(topics) if name == topic]
            by_key = [number for number in rows if wanted[number] is None and keys[number] is not None]
            places[by_key] = partitions_of([keys[number] or b"" for number in by_key], count)
            for number in rows:
                chosen = wanted[number]
                if chosen is not None:
                    if not 0 <= chosen < count:
                        raise SinkError(
                            f"a row names partition {chosen} of {topic!r}, which has {count}: "
                            "mend the column 'partition', or leave it null"
                        )
                    places[number] = chosen
                elif keys[number] is None:
                    places[number] = (first + number) % count
        found: list[int] = places.tolist()
        return found


def _bytes(batch: Any, name: str) -> list[bytes | None]:
    column = batch.column(name)
    found: list[bytes | None] = column.cast(
        pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary()
    ).to_pylist()
    return found
