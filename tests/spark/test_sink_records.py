"""What the sink makes of a frame: columns, partitions, batches, options; no cluster is needed."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from aiokafka.record.default_records import DefaultRecordBatch  # type: ignore[import-untyped]
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from strandline.node.kafka.wire.record_batch import BatchLimits, validate_produced
from strandline.snapshot.compression import Compression
from strandline.snapshot.producing.errors import SinkError
from strandline.snapshot.producing.partitioning import partitions_of
from strandline.snapshot.producing.record_batch import headers, record_batch, tails
from strandline.snapshot.producing.transactions import Producer
from strandline.snapshot.spark.sink.columns import Columns
from strandline.snapshot.spark.sink.options import parse
from strandline.snapshot.spark.sink.progress import is_task_id, task_id
from tests.kafka.wire.batches import varint

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # its import reads resources in an old way
    from kafka.partitioner.default import murmur2  # type: ignore[import-untyped]

LEAST = {"kafka.bootstrap.servers": "a:9092", "topic": "out"}
BYTES = st.none() | st.binary(max_size=9) | st.sampled_from([b"x" * 63, b"y" * 64, b"z" * 20_000])
RECORD = st.tuples(
    st.integers(0, 1 << 41),
    BYTES,
    BYTES,
    st.lists(st.tuples(st.text(max_size=4).map(str.encode), BYTES), max_size=3),
)
FEW = settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@FEW
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=60), st.integers(1, 50))
def test_a_key_goes_where_kafkas_clients_send_it(keys: list[bytes], count: int) -> None:
    wanted = [(murmur2(key) & 0x7FFFFFFF) % count for key in keys]
    assert partitions_of(keys, count).tolist() == wanted


@FEW
@given(st.lists(RECORD, min_size=1, max_size=150), st.sampled_from(Compression), st.integers(0, 1 << 30))
def test_other_readers_read_a_batch(records: list[Any], compression: Compression, sequence: int) -> None:
    packed = [headers(pairs) for _, _, _, pairs in records]
    found = tails([one[1] for one in records], [one[2] for one in records], packed)
    producer = Producer("id", 1 << 40, 7)
    data = record_batch(found, [one[0] for one in records], producer, sequence, compression)
    (header,) = validate_produced(data, version=9, limits=BatchLimits(1 << 40))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (1 << 40, 7, sequence)
    assert header.is_transactional
    assert header.max_timestamp == max(one[0] for one in records)
    read = [
        (one.timestamp, one.key, one.value, [(key.encode(), value) for key, value in one.headers])
        for one in DefaultRecordBatch(data)
    ]
    assert read == records


@FEW
@given(st.lists(st.tuples(BYTES, BYTES), min_size=1, max_size=9), st.sampled_from([1, 30_000]))
def test_records_of_one_time_and_without_headers(records: list[Any], repeated: int) -> None:
    """They are made by tables, unless there are more of them than a table has."""
    records = records[:1] * repeated if repeated > 1 and len(records[0][1] or b"") < 100 else records
    found = tails([one[0] for one in records], [one[1] for one in records], None)
    data = record_batch(found, [7] * len(records), Producer("id", 1, 1), 0, Compression.NONE)
    validate_produced(data, version=9, limits=BatchLimits(1 << 40))
    read = [(one.timestamp, one.key, one.value, [*one.headers]) for one in DefaultRecordBatch(data)]
    assert read == [(7, key, value, []) for key, value in records]


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_numbers_of_any_size(number: int) -> None:
    from strandline.snapshot.producing import record_batch as module

    assert module.varint(number) == varint(number)


TYPES = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "strings": ArrayType(StringType()),
    "headers": ArrayType(StructType().add("key", StringType()).add("value", BinaryType())),
}


def schema(text: str) -> StructType:
    """Columns as `name type, name type`."""
    found = StructType()
    for column in text.split(", "):
        name, kind = column.split()
        found.add(name, TYPES[kind])
    return found


class Row(NamedTuple):
    topic: str
    partition: int
    time: int | None
    tail: bytes


def rows(text: str, topic: str | None = "out", *values: Any, first: int = 0) -> list[Row]:
    columns = Columns(schema(text), topic)
    names = schema(text).names
    batch = pa.RecordBatch.from_pylist([dict(zip(names, row, strict=True)) for row in values])
    found = columns.rows(batch, {"out": 3, "other": 2}.__getitem__, first)
    times = found.times or [None] * len(found.tails)
    return [Row(*row) for row in zip(found.topics, found.partitions, times, found.tails, strict=True)]


def test_each_column_has_its_place_in_the_record() -> None:
    pairs = [{"key": "h", "value": b"1"}, {"key": "i", "value": None}]
    moment = EPOCH + timedelta(milliseconds=1_700_000_000_123, microseconds=456)
    (row,) = rows(
        "key string, value binary, topic string, partition int, timestamp timestamp, offset bigint, "
        "headers headers",
        None,
        ("k", b"v", "other", 1, moment, 7, pairs),
    )
    tail = b"\x02k" + b"\x02v" + b"\x04" + b"\x02h\x021" + b"\x02i\x01"
    assert row == Row("other", 1, 1_700_000_000_123, tail)
    assert rows("value string", "out", ("vä",), first=4) == [Row("out", 1, None, b"\x01\x06v\xc3\xa4\x00")]


def test_the_option_goes_before_the_column_and_rows_without_key_take_turns() -> None:
    found = rows("value string, topic string, key binary", "out", ("v", "other", None), ("w", None, None))
    assert [(row.topic, row.partition) for row in found] == [("out", 0), ("out", 1)]
    (keyed,) = rows("value string, partition int, key binary", "out", ("v", None, b"k"), first=2)
    assert keyed.partition == (murmur2(b"k") & 0x7FFFFFFF) % 3


def test_a_null_value_is_a_tombstone() -> None:
    assert rows("key string, value string", "out", ("k", None))[0].tail == b"\x02k\x01\x00"


@pytest.mark.parametrize(
    ("text", "topic", "says"),
    [
        ("key string", "out", "column 'value' is missing"),
        ("value string, carrier string", "out", "no place for column 'carrier' .* to_json"),
        ("value bigint", "out", "column 'value' is bigint, not string or binary: CAST"),
        ("value string, partition bigint", "out", "column 'partition' is bigint, not int"),
        ("value string, headers strings", "out", "column 'headers' is array<string>, not array<struct"),
        ("value string", None, "no topic: give the option 'topic', or a column"),
    ],
)
def test_a_schema_that_does_not_fit(text: str, topic: str | None, says: str) -> None:
    with pytest.raises(SinkError, match=says):
        Columns(schema(text), topic)


@pytest.mark.parametrize(
    ("text", "row", "says"),
    [
        ("value string, topic string", ("v", None), "a row has no topic"),
        ("value string, topic string, partition int", ("v", "out", 3), "partition 3 of 'out', which has 3"),
        ("value string, topic string, partition int", ("v", "out", -1), "partition -1 of 'out'"),
        (
            "value string, topic string, headers headers",
            ("v", "out", [{"key": None, "value": b"1"}]),
            "a header without key",
        ),
    ],
)
def test_a_row_that_cannot_be_a_record(text: str, row: Any, says: str) -> None:
    with pytest.raises(SinkError, match=says):
        rows(text, None, row)


def test_options() -> None:
    options = parse({**LEAST, "checkpointLocation": "/c", "queryName": "q"}, streaming=True)
    assert [str(one) for one in options.bootstrap] == ["a:9092"]
    assert (options.topic, options.progress_topic, options.query, options.batch) == ("out", "out", None, None)
    assert (options.transaction_seconds, options.patience_seconds) == (900.0, 120.0)
    assert not options.write_unknown
    assert not options.accept_loss
    given = {"bootstrap": "a:1, [::1]:2", "progress_topic": "kept", "query": "q-1", "batch": "7"}
    options = parse({**given, "compression": "LZ4"}, streaming=False)
    assert [*options.bootstrap] == [("a", 1), ("::1", 2)]
    assert (options.topic, options.progress_topic, options.query, options.batch) == (None, "kept", "q-1", 7)
    assert options.compression is Compression.LZ4


@pytest.mark.parametrize(
    ("given", "streaming", "says"),
    [
        ({"kafka.bootstrap.servers": ""}, True, "option 'kafka.bootstrap.servers' is missing"),
        ({"kafka.bootstrap.servers": "a"}, True, "'bootstrap' is 'a', not host:port"),
        ({"bootstrap": "b:1"}, True, "is given twice: 'a:9092' and 'b:1'"),
        ({"tpoic": "x"}, True, "there is no option 'tpoic' for writing: bootstrap, topic"),
        ({"topic": ""}, True, "no place for the query's progress"),
        ({"query": "a.b"}, True, "'query' is 'a.b', not at most 200"),
        ({"batch": "1"}, True, "option 'batch' is for spark.write"),
        ({"batch": "1"}, False, "options 'query' and 'batch' go together"),
        ({"query": "a", "batch": "1", "progressTopic": "p"}, False, "'topic' and 'progressTopic' do not go"),
        ({"query": "a", "batch": "-1"}, False, "'batch' is '-1', not a number from 0 on"),
        ({"compression": "lzma"}, True, "'compression' is 'lzma', not none, gzip"),
        ({"transactionTimeoutSeconds": "0"}, True, "not a positive number of seconds"),
        ({"lostTransactions": "yes"}, True, "'losttransactions' is 'yes', not fail or accept"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], streaming: bool, says: str) -> None:
    with pytest.raises(SinkError, match=says):
        parse({**LEAST, **given}, streaming=streaming)


def test_ids_of_one_query_are_not_taken_for_anothers() -> None:
    mine = task_id("flights", 3, 0)
    assert is_task_id("flights", mine)
    others = [task_id("flight", 3, 0), task_id("flights-1", 3, 0), "strandline-flights", f"{mine}x", "x"]
    assert not any(is_task_id("flights", other) for other in others)
