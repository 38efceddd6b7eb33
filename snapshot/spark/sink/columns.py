"""The columns of a frame that is written: those of Spark's Kafka sink, and `timestamp`.

`value` has to be there; `key`, `topic`, `partition`, `headers` and `timestamp` may be. The columns that the
source has besides are passed over, so what was read can be written. Any other is an error: it would be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.types import StructType

from strandline.snapshot.producing.errors import SinkError
from strandline.snapshot.producing.partitioning import partitions_of
from strandline.snapshot.producing.record_batch import headers, tails

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
_MICROSECONDS: Final = 1000


class Rows(NamedTuple):
    """Records on their way, a list for each part of them."""

    topics: list[str]
    partitions: Any
    """An array."""
    times: list[int | None] | None
    """Unix milliseconds, None for now; None for all of them."""
    tails: list[bytes]
    """Each one's key, value and headers."""


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

    def rows(self, batch: Any, partitions: Callable[[str], int], first: int) -> Rows:
        """The rows of an Arrow batch. `partitions`: how many a topic has.

        Rows without key take turns over them, `first` is the turn of the first one. Raises SinkError for a
        row that cannot be a record.
        """
        size = batch.num_rows
        keys: list[bytes | None] = _bytes(batch, "key") if "key" in self._names else [None] * size
        topics = [self._topic] * size if self._topic is not None else batch.column("topic").to_pylist()
        return Rows(
            topics,
            self._places(batch, keys, topics, partitions, first),
            self._times(batch),
            tails(keys, _bytes(batch, "value"), self._headers(batch)),
        )

    def _times(self, batch: Any) -> list[int | None] | None:
        if "timestamp" not in self._names:
            return None
        micros = batch.column("timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
        return [None if one is None else one // _MICROSECONDS for one in micros]

    def _headers(self, batch: Any) -> list[bytes] | None:
        if "headers" not in self._names:
            return None
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
    ) -> Any:
        size = batch.num_rows
        keyed = np.fromiter((key is not None for key in keys), np.bool_, size)
        free = np.ones(size, np.bool_)
        wanted = np.zeros(size, np.int64)
        if "partition" in self._names:
            column = batch.column("partition").cast(pa.int32())
            free = column.is_null().to_numpy(zero_copy_only=False)
            wanted = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        places = first + np.arange(size)
        for topic, rows in by_name(topics):
            if not topic:
                raise SinkError("a row has no topic: give the option 'topic', or fill the column")
            count = partitions(topic)
            wrong = wanted[rows][~free[rows] & ((wanted[rows] < 0) | (wanted[rows] >= count))]
            if wrong.size:
                raise SinkError(
                    f"a row names partition {wrong[0]} of {topic!r}, which has {count}: "
                    "mend the column 'partition', or leave it null"
                )
            places[rows] %= count
            hashed = rows[free[rows] & keyed[rows]]
            places[hashed] = partitions_of([keys[number] or b"" for number in hashed.tolist()], count)
        places[~free] = wanted[~free]
        return places


def by_name(names: Sequence[str | None]) -> list[tuple[str | None, Any]]:
    """The numbers of the rows of each topic, as arrays."""
    if len(set(names)) == 1:
        return [(names[0], np.arange(len(names)))]
    found: dict[str | None, list[int]] = {}
    for number, name in enumerate(names):
        found.setdefault(name, []).append(number)
    return [(name, np.array(numbers)) for name, numbers in found.items()]


def _bytes(batch: Any, name: str) -> list[bytes | None]:
    column = batch.column(name)
    found: list[bytes | None] = column.cast(
        pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary()
    ).to_pylist()
    return found
