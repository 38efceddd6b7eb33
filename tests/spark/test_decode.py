"""The vectorised decoder against aiokafka's, record by record, and against batches that lie."""

from __future__ import annotations

from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from aiokafka.record.default_records import (  # type: ignore[import-untyped]
    DefaultRecordBatch,
    DefaultRecordBatchBuilder,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strandline.snapshot import decode
from strandline.snapshot.compression import Compression
from strandline.snapshot.decode import COLUMNS, Decoder
from strandline.snapshot.level_zero_format import BadObject
from tests.kafka.wire.batches import Record, build, compress, varint, xerial
from tests.spark.decoded import ALL, rows, stored

NOW = 1_700_000_000_000

Parts = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""timestamp, key, value, headers."""

BYTES = st.binary(max_size=9) | st.sampled_from([b"x" * 63, b"y" * 64, b"z" * 9000])
RECORDS = st.tuples(
    st.integers(0, 1 << 41) | st.integers(NOW - 70, NOW + 70),
    st.none() | BYTES,
    st.none() | BYTES,
    st.lists(st.tuples(st.text(max_size=4), st.none() | BYTES), max_size=3),
)
BATCHES = st.tuples(st.integers(0, 4), st.lists(RECORDS, min_size=1, max_size=200))


def encoded(codec: int, records: list[Parts]) -> bytes:
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 30)
    for delta, (timestamp, key, value, headers) in enumerate(records):
        builder.append(delta, timestamp, key, value, headers)
    return bytes(builder.build())


def as_aiokafka_reads(data: bytes, base: int) -> list[tuple[Any, ...]]:
    return [
        (r.offset + base, r.timestamp, r.key, r.value, [*r.headers] or None) for r in DefaultRecordBatch(data)
    ]


def as_we_read(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (
            row["offset"],
            round(row["timestamp"].timestamp() * 1000),
            row["key"],
            row["value"],
            row["headers"] and [(h["key"], h["value"]) for h in row["headers"]],
        )
        for row in found
    ]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(BATCHES, min_size=1, max_size=4), st.booleans(), st.booleans())
def test_the_same_records_as_aiokafka(
    batches: list[tuple[int, list[Parts]]], one_object: bool, small_chunks: bool
) -> None:
    data = [encoded(codec, records) for codec, records in batches]
    expected, wanted, base = [], [], 0
    whole = b"".join(data)
    start = 0
    for one in data:
        expected += as_aiokafka_reads(one, base)
        batch = stored(one, base)
        wanted.append(batch._replace(data=whole, start=start) if one_object else batch)
        base = wanted[-1].end_offset
        start += len(one)
    with pytest.MonkeyPatch.context() as patch:
        if small_chunks:
            patch.setattr(decode, "CHUNK_BYTES", 2000)
            patch.setattr(decode, "JOIN_BELOW", 100)
        assert as_we_read(rows(*wanted)) == expected


def test_batches_of_equal_records_are_read_as_aiokafka_does() -> None:
    records: list[Parts] = [(NOW + n // 7, None, b"%0100d" % n, []) for n in range(2_500)]
    data = encoded(0, [*records, (NOW, b"key", b"short", [])])
    assert as_we_read(rows(stored(data, 40))) == as_aiokafka_reads(data, 40)


@pytest.mark.parametrize("compression", Compression)
def test_columns_come_from_extent_and_header(compression: Compression) -> None:
    data = build([Record(b"v", NOW, b"k"), Record(b"w", NOW + 5)], compression=compression)
    first, second = rows(stored(data, 40))
    assert (first["topic"], first["partition"], first["leader_epoch"]) == ("orders", 3, 7)
    assert (first["offset"], second["offset"]) == (40, 41)
    assert (first["key"], second["key"]) == (b"k", None)
    assert (second["timestamp"] - first["timestamp"]).total_seconds() == 0.005
    assert first["timestampType"] == 0


def test_java_snappy() -> None:
    records = [Record(b"v" * 50_000), Record(b"w")]
    payload = xerial(build(records)[61:])
    data = build(records, payload=payload, attributes=Compression.SNAPPY)
    assert [row["value"] for row in rows(stored(data))] == [b"v" * 50_000, b"w"]


def test_log_append_time_is_the_newest_timestamp_for_all() -> None:
    data = build([Record(b"a", NOW), Record(b"b", NOW + 9)], attributes=0x08)
    found = rows(stored(data))
    assert [round(row["timestamp"].timestamp() * 1000) for row in found] == [NOW + 9] * 2
    assert [row["timestampType"] for row in found] == [1, 1]


def test_control_batches_have_no_rows() -> None:
    control = build([Record(b"\0\0\0\0\0\0")], attributes=0x30)
    assert [row["offset"] for row in rows(stored(build(), 0), stored(control, 3), stored(build(), 4))] == [
        *range(3),
        *range(4, 7),
    ]
    assert rows(stored(control)) == []


@pytest.mark.parametrize(("first", "end", "offsets"), [(11, 99, [11, 12]), (0, 11, [10]), (11, 12, [11])])
def test_records_outside_the_wanted_offsets_are_left_out(first: int, end: int, offsets: list[int]) -> None:
    records: list[Parts] = [(NOW, None, b"%d" % n, [("h", b"%d" % n)]) for n in range(3)]
    batch = stored(encoded(0, records), 10, first=first, end=end)
    found = rows(batch)
    assert [row["offset"] for row in found] == offsets
    assert [row["value"] for row in found] == [b"%d" % (offset - 10) for offset in offsets]
    assert [row["headers"][0]["value"] for row in found] == [row["value"] for row in found]
    assert rows(batch._replace(first=13)) == []


def test_several_topics_in_one_chunk() -> None:
    found = rows(stored(build(), 0), stored(build(), 5, topic="clicks", partition=1, leader_epoch=9))
    assert [(r["topic"], r["partition"], r["leader_epoch"], r["offset"]) for r in found] == [
        *[("orders", 3, 7, n) for n in range(3)],
        *[("clicks", 1, 9, n) for n in range(5, 8)],
    ]


@pytest.mark.parametrize("name", COLUMNS)
def test_each_column_alone_is_as_among_all(name: str) -> None:
    records: list[Parts] = [(NOW + n, b"k" if n % 2 else None, b"v", [("h", None)] * n) for n in range(4)]
    batch = stored(encoded(3, records), 5, first=6)
    alone = rows(batch, schema=pa.schema([(name, COLUMNS[name])]))
    assert [row[name] for row in alone] == [row[name] for row in rows(batch)]
    assert len(alone) == 3


def test_batches_of_one_object_in_another_order_than_they_lie_in() -> None:
    """As when topics are read in another order than their batches were gathered in."""
    first, second = build([Record(b"1", NOW, b"a")]), build([Record(b"2", NOW), Record(b"3", NOW)])
    data = first + second
    earlier = stored(data, 0, 1, length=len(first))
    later = stored(data, 5, 2, start=len(first), length=len(second), topic="clicks")
    found = [(row["topic"], row["offset"], row["key"], row["value"]) for row in rows(later, earlier)]
    assert sorted(found) == [("clicks", 5, None, b"2"), ("clicks", 6, None, b"3"), ("orders", 0, b"a", b"1")]


def test_header_keys_that_are_not_text_are_replaced() -> None:
    body = b"\0\0\0" + varint(-1) + varint(-1) + varint(1) + varint(2) + b"\xffa" + varint(1) + b"v"
    data = build([Record(b"")], payload=varint(len(body)) + body)
    assert rows(stored(data))[0]["headers"] == [{"key": "\ufffda", "value": b"v"}]


def test_timestamps_that_spark_cannot_express_become_the_last_it_can() -> None:
    data = build([Record(b"", (1 << 62))])
    schema = pa.schema([("timestamp", COLUMNS["timestamp"])])
    (found,) = Decoder(schema).decode([stored(data)])
    assert found.column(0).cast(pa.int64())[0].as_py() == ((1 << 63) // 1000 - 1) * 1000


def test_every_flipped_byte_is_found_but_those_a_broker_writes() -> None:
    data = build(compression=Compression.ZSTD)
    for position in (*range(8, 12), *range(16, len(data))):
        bad = bytearray(data)
        bad[position] ^= 0x04
        with pytest.raises(BadObject, match="object l0/some, bytes 16 to"):
            rows(stored(bytes(bad), count=3))


@pytest.mark.parametrize("wrong", [2, 4])
def test_a_count_that_is_not_the_partitions_is_named(wrong: int) -> None:
    with pytest.raises(BadObject, match=f"3 records, where its partition has {wrong}"):
        rows(stored(build(), count=wrong))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\0\0\0" + varint(50) + b"k" + varint(-1) + b"\0", "leaves its record"),
        (b"\0\0\0" + varint(-2) + varint(-1) + b"\0", "leaves its record"),
        (b"\0\0\0" + varint(-1) + varint(-1) + varint(60), "more headers than bytes"),
        (b"\0\0\0" + varint(-1) + varint(-1) + varint(-1), "more headers than bytes"),
        (b"\0\0\0" + varint(-1) + varint(-1) + varint(1) + varint(-1) + varint(-1), "header has no key"),
        (b"\0\0\0" + varint(-1) + varint(-1) + b"\0" + b"more", "does not end with its headers"),
        (b"\0" + b"\xff" * 11 + varint(-1) + varint(-1) + b"\0", "longer than ten bytes"),
    ],
)
def test_records_that_lie_under_a_right_checksum_are_named(body: bytes, reason: str) -> None:
    data = build([Record(b"")], payload=varint(len(body)) + body)
    good = stored(build(), 5, name="l0/good")
    with pytest.raises(BadObject, match=reason) as caught:
        rows(good, stored(data), good)
    assert caught.value.name == "l0/some"


@pytest.mark.parametrize("extra", [b"more", b"\0"])
def test_bytes_after_the_last_record_are_refused(extra: bytes) -> None:
    records = [Record(b"one"), Record(b"two")]
    data = build(records, payload=build(records)[61:] + extra)
    with pytest.raises(BadObject, match="2 records end at byte"):
        rows(stored(data))


def test_large_runs_of_one_object_are_not_joined_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "JOIN_BELOW", 10)
    one, other = build(), build([Record(b"four")])
    apart = [stored(one), stored(other, 3)]
    whole = one + other
    together = [apart[0]._replace(data=whole), apart[1]._replace(data=whole, start=len(one))]
    assert [len(found) for found in Decoder(ALL).decode(apart)] == [3, 1]
    assert [len(found) for found in Decoder(ALL).decode(together)] == [4]
    assert [len(found) for found in Decoder(ALL).decode(together[::-1])] == [1, 3]


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), st.integers(1, 5), st.sampled_from(Compression))
def test_any_bytes_are_decoded_or_refused(payload: bytes, count: int, compression: Compression) -> None:
    for packed in (payload, compress(compression, payload)):
        data = build(payload=packed, count=count, attributes=compression, max_timestamp=NOW)
        try:
            assert len(rows(stored(data))) == count
        except BadObject:
            continue


def test_compression_types_that_do_not_exist_are_refused() -> None:
    with pytest.raises(BadObject, match="cannot be decompressed"):
        rows(stored(build(attributes=6)))


def test_a_batch_with_holes_has_fewer_records_than_offsets_and_no_more() -> None:
    """What compaction left of a batch keeps its offsets' distances from the base."""
    plain = encoded(0, [(1, b"k%d" % n, b"v", []) for n in range(4)])
    with pytest.raises(BadObject, match="4 records, where its partition has 6"):
        rows(stored(plain, 10, 6))
    found = rows(stored(plain, 10, 6, holes=True))
    assert [row["offset"] for row in found] == [10, 11, 12, 13]
    with pytest.raises(BadObject, match="4 records, where its partition has 3"):
        rows(stored(plain, 10, 3, holes=True))
    ends = rows(stored(plain, 10, 6, holes=True, end=12), stored(plain, 20, 4))
    assert [row["offset"] for row in ends] == [10, 11, 20, 21, 22, 23]
