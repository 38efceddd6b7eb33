"""Produced batches are judged as Kafka's broker judges them, and stamped without touching the records."""

from __future__ import annotations

import random
import struct
from contextlib import suppress
from typing import Any

import pytest
from aiokafka.record.default_records import (  # type: ignore[import-untyped]
    DefaultRecordBatch,
    DefaultRecordBatchBuilder,
)
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.error_codes import code_of
from strandline.node.kafka.wire.record_batch import (
    MAX_NAMED_RECORDS,
    BatchHeader,
    BatchLimits,
    InvalidBatch,
    boundaries,
    read_header,
    stamped,
    validate_at_once,
    validate_produced,
)
from strandline.node.kafka.wire.record_keys import keyless_records
from strandline.node.kafka.wire.record_lengths import WrongRecords, check_records, same_size_run
from strandline.node.kafka.wire.record_lookup import Found, first_at_or_after, newest
from strandline.node.refusal import Reason
from strandline.snapshot.compression import Compression, DecompressionError, TooLarge, decompress
from tests.kafka.wire.batches import Record, build, compress, encode_records, varint, xerial

ALL = list(Compression)
START = 1_700_000_000_000
HUGE = 1 << 26


def judge(records: bytes | None, *, version: int = 9, **limits: Any) -> list[BatchHeader]:
    return validate_produced(records, version=version, limits=BatchLimits(**limits))


def refused(records: bytes | None, code: ErrorCode, why: str, *, version: int = 9, **limits: Any) -> None:
    with pytest.raises(InvalidBatch, match=why) as caught:
        judge(records, version=version, **limits)
    assert code_of(caught.value.refusal) is code


@pytest.mark.parametrize("compression", ALL)
@pytest.mark.parametrize("size", [0, 1, 60, 70, 9000, 70_000, 1_100_000])
def test_what_clients_send_is_accepted(compression: Compression, size: int) -> None:
    records = [Record(bytes(size), START + i, b"k" if i % 2 else None) for i in range(3)]
    (header,) = judge(build(records, compression=compression), max_batch_bytes=1 << 22)
    assert (header.record_count, header.next_offset, header.compression) == (3, 3, compression)
    assert (header.base_timestamp, header.max_timestamp) == (START, START + 2)


def test_what_another_library_builds_is_accepted() -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=1,
        producer_id=5,
        producer_epoch=6,
        base_sequence=7,
        batch_size=1 << 20,
    )
    for offset in range(100):
        builder.append(offset, START, b"key", b"v" * offset, [("h", b"x")])
    (header,) = judge(bytes(builder.build()))
    assert (header.record_count, header.is_transactional, header.is_control) == (100, True, False)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 6, 7)


def test_several_batches_where_they_are_allowed() -> None:
    blob = build() + build([Record(b"x")])
    refused(blob, ErrorCode.invalid_record, "more than 1")
    headers = validate_produced(blob, version=9, limits=BatchLimits(), max_batches=2)
    assert [(header.position, header.record_count) for header in headers] == [(0, 3), (len(build()), 1)]
    assert [(header.position, header.end) for header in headers] == list(boundaries(blob))


@pytest.mark.parametrize("records", [None, b""])
def test_a_partition_without_records(records: bytes | None) -> None:
    refused(records, ErrorCode.invalid_record, "without a record batch")


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats(magic: int) -> None:
    refused(build(magic=magic), ErrorCode.invalid_record, f"magic {magic}")


@pytest.mark.parametrize("magic", [3, -1])
def test_unknown_formats(magic: int) -> None:
    refused(build(magic=magic), ErrorCode.corrupt_message, f"magic {magic}")


def test_a_bad_crc() -> None:
    refused(build(crc=1), ErrorCode.corrupt_message, "CRC-32C is [0-9]+, the record batch says 1")


def test_every_flipped_bit_that_the_crc_covers_is_found() -> None:
    batch = build()
    for position in range(17, len(batch)):
        broken = bytearray(batch)
        broken[position] ^= 4
        with pytest.raises(InvalidBatch):
            judge(bytes(broken))


@pytest.mark.parametrize("error", [1, 1000, 2**30])
def test_a_batch_longer_than_what_was_sent(error: int) -> None:
    refused(build(length_error=error), ErrorCode.invalid_record, "of which")


@pytest.mark.parametrize("length", [48, 0, -1, -(2**31)])
def test_a_batch_shorter_than_its_header(length: int) -> None:
    batch = bytearray(build())
    struct.pack_into(">i", batch, 8, length)
    refused(bytes(batch), ErrorCode.corrupt_message, "smaller than its own header")


def test_bytes_after_the_batch() -> None:
    refused(build() + b"x", ErrorCode.invalid_record, "more than 1")
    with pytest.raises(InvalidBatch, match="too few"):
        validate_produced(build() + b"x", version=9, limits=BatchLimits(), max_batches=2)


def test_size_limit_is_that_of_the_whole_batch() -> None:
    batch = build()
    judge(batch, max_batch_bytes=len(batch))
    refused(batch, ErrorCode.message_too_large, "above the limit", max_batch_bytes=len(batch) - 1)


@pytest.mark.parametrize(
    ("wrong", "code", "why"),
    [
        ({"base_offset": 1}, ErrorCode.invalid_record, "base offset"),
        ({"count": 0}, ErrorCode.invalid_record, "0 records"),
        ({"count": 0, "payload": b""}, ErrorCode.invalid_record, "0 records"),
        ({"count": -3}, ErrorCode.invalid_record, "-3 records"),
        ({"count": 4}, ErrorCode.invalid_record, "fewer than the declared 4"),
        ({"count": 2}, ErrorCode.invalid_record, "more than the declared 2"),
        ({"count": 2**31 - 1}, ErrorCode.invalid_record, "do not fit"),
        ({"last_offset_delta": 3}, ErrorCode.invalid_record, "last offset delta is 3"),
        ({"attributes": 0x20}, ErrorCode.invalid_record, "control"),
        ({"attributes": 0x40}, ErrorCode.invalid_record, "delete horizon"),
        ({"attributes": 0x10}, ErrorCode.invalid_record, "transactional"),
        ({"producer": (5, 0, -1)}, ErrorCode.invalid_record, "sequence -1"),
        ({"producer": (5, -1, 0)}, ErrorCode.invalid_record, "epoch -1"),
        ({"producer": (-2, 0, 0)}, ErrorCode.invalid_record, "producer id -2"),
        ({"attributes": 0x08}, ErrorCode.invalid_timestamp, "log append time"),
        ({"max_timestamp": START - 1}, ErrorCode.invalid_timestamp, "before the first"),
        ({"attributes": 5}, ErrorCode.unsupported_compression_type, "compression type 5"),
        ({"attributes": 7}, ErrorCode.unsupported_compression_type, "compression type 7"),
        ({"payload": b"\x01" + b"\0" * 40}, ErrorCode.invalid_record, "negative length"),
        ({"payload": (b"\x0f" + bytes(7)) * 20, "count": 20}, ErrorCode.invalid_record, "negative length"),
        ({"payload": b"\xff" * 40}, ErrorCode.invalid_record, "not a varint"),
        ({"payload": b"\x80" * 4 + b"\x01" + b"\0" * 40}, ErrorCode.invalid_record, "fewer"),
        ({"payload": b"\0" * 21 + b"\x80"}, ErrorCode.invalid_record, "more"),
    ],
)
def test_headers_that_contradict_themselves_or_their_records(wrong: Any, code: ErrorCode, why: str) -> None:
    refused(build(**wrong), code, why)


def test_timestamp_bounds_of_the_topic() -> None:
    batch = build([Record(b"", START), Record(b"", START + 5)])
    judge(batch, earliest_timestamp=START, latest_timestamp=START + 5)
    refused(batch, ErrorCode.invalid_timestamp, "earliest", earliest_timestamp=START + 1)
    refused(batch, ErrorCode.invalid_timestamp, "latest", latest_timestamp=START + 4)


def test_zstd_needs_produce_version_7() -> None:
    batch = build(compression=Compression.ZSTD)
    judge(batch, version=7)
    refused(batch, ErrorCode.unsupported_compression_type, "version 7", version=6)


@pytest.mark.parametrize("compression", ALL[1:])
def test_payloads_that_are_not_what_they_say(compression: Compression) -> None:
    refused(
        build(compression=compression, payload=b"garbage" * 9),
        ErrorCode.invalid_record,
        compression.name.lower(),
    )
    packed = compress(compression, encode_records([Record(b"abc" * 50)] * 3, START))
    refused(
        build(compression=compression, payload=packed[:-9]),
        ErrorCode.invalid_record,
        compression.name.lower(),
    )
    two = compress(compression, encode_records([Record(b"abc")] * 2, START))
    refused(build(compression=compression, payload=two), ErrorCode.invalid_record, "fewer|do not fit")


@pytest.mark.parametrize("compression", ALL[1:])
def test_a_bomb_stops_at_the_limit(compression: Compression) -> None:
    bomb = compress(compression, bytes(HUGE))
    with pytest.raises(TooLarge):
        decompress(compression, bomb, 1 << 20)
    refused(
        build(compression=compression, payload=bomb),
        ErrorCode.message_too_large,
        "decompresses",
        max_batch_bytes=HUGE,
        max_decompressed_bytes=1 << 20,
    )
    assert len(decompress(compression, compress(compression, bytes(1 << 20)), 1 << 20)) == 1 << 20


@pytest.mark.parametrize("compression", ALL[1:])
def test_what_takes_long_to_unpack_is_left_to_a_thread(compression: Compression) -> None:
    limits = BatchLimits(max_batch_bytes=HUGE)
    small = build(compression=compression)
    assert validate_at_once(small, version=9, limits=limits)[1] is None
    large = build([Record(random.Random(3).randbytes(1 << 20))], compression=compression)
    header, rest = validate_at_once(large, version=9, limits=limits)
    assert rest is not None
    assert header.record_count == 1
    rest()
    bomb = build(compression=compression, payload=compress(compression, bytes(2 << 20)))
    _, rest = validate_at_once(bomb, version=9, limits=limits._replace(max_decompressed_bytes=3 << 20))
    assert rest is not None
    with pytest.raises(InvalidBatch) as refusal:
        rest()
    assert refusal.value.refusal.reason is Reason.INVALID_RECORD
    with pytest.raises(InvalidBatch):
        validate_at_once(small + small, version=9, limits=limits)
    with pytest.raises(InvalidBatch):
        validate_at_once(b"", version=9, limits=limits)


@pytest.mark.parametrize("compression", ALL[1:])
def test_the_limit_holds_for_what_does_not_compress(compression: Compression) -> None:
    packed = compress(compression, random.Random(3).randbytes(100_000))
    with pytest.raises(TooLarge):
        decompress(compression, packed, 99_999)


@pytest.mark.parametrize("size", [20, 100, 5000])
def test_records_of_one_size_are_recognised_together(size: int) -> None:
    records = encode_records([Record(bytes(size))] * 60 + [Record(bytes(size + 1))], START)
    stride = len(records) // 61
    assert same_size_run(records, 0, 512) == (60, stride)
    check_records(records, 0, len(records), 61)


KEYED = st.builds(
    Record,
    st.binary(max_size=40),
    st.integers(START, START + (1 << 40)),
    st.one_of(st.none(), st.binary(max_size=70)),
)


@given(
    st.lists(st.tuples(KEYED, st.integers(1, 40)), min_size=1, max_size=12),
    st.sampled_from(ALL),
    st.integers(1, 50),
)
def test_records_without_a_key_are_found(
    runs: list[tuple[Record, int]], compression: Compression, most: int
) -> None:
    records = [record for record, times in runs for _ in range(times)]
    encoded = encode_records(records, records[0].timestamp)
    wanted = [number for number, record in enumerate(records) if record.key is None]
    assert keyless_records(encoded, 0, len(encoded), len(records), most) == wanted[:most]
    batch = build(records, compression=compression)
    judge(batch)
    if not wanted:
        judge(batch, needs_keys=True)
        return
    with pytest.raises(InvalidBatch) as refusal:
        judge(batch, needs_keys=True)
    assert refusal.value.refusal.reason is Reason.INVALID_RECORD
    assert refusal.value.refusal.records == wanted[:MAX_NAMED_RECORDS]


@pytest.mark.parametrize("size", [1, 40, 300])
def test_keys_of_long_runs_are_found_as_those_of_single_records(size: int) -> None:
    """Timestamps and offsets whose lengths change within the batch; a record without a key here and there."""
    random_one = random.Random(size)
    times = [START + random_one.choice((1, 100, 20_000, 1 << 33)) for _ in range(100)]
    records = [Record(bytes(size), times[number // 200], b"key") for number in range(20_000)]
    missing = sorted(random_one.sample(range(20_000), 60))
    for number in missing:
        records[number] = records[number]._replace(key=None, value=bytes(size + 3))
    encoded = encode_records(records, START)
    assert keyless_records(encoded, 0, len(encoded), len(records), 1000) == missing


@pytest.mark.parametrize("count", [1, 100])
def test_records_that_end_before_their_keys_are_wrong(count: int) -> None:
    short = (b"\x0c\x00" + b"\x80" * 4 + b"\x00") * count  # its timestamp does not end within it
    check_records(short, 0, len(short), count)
    with pytest.raises(WrongRecords, match="before its key"):
        keyless_records(short, 0, len(short), count, 100)


def test_many_keys_are_looked_for_in_a_thread() -> None:
    limits = BatchLimits(max_batch_bytes=HUGE, needs_keys=True)
    _, rest = validate_at_once(build([Record(b"", key=b"k")] * 2_000), version=9, limits=limits)
    assert rest is None
    many = build([Record(b"", key=b"k")] * 2_001 + [Record(b"")])
    assert validate_at_once(many, version=9, limits=limits._replace(needs_keys=False))[1] is None
    _, rest = validate_at_once(many, version=9, limits=limits)
    assert rest is not None
    with pytest.raises(InvalidBatch) as refusal:
        rest()
    assert refusal.value.refusal.records == [2_001]


def test_java_s_snappy_stream() -> None:
    plain = random.Random(3).randbytes(100_000)
    assert decompress(Compression.SNAPPY, xerial(plain), 100_000) == plain
    with pytest.raises(TooLarge):
        decompress(Compression.SNAPPY, xerial(plain), 99_999)
    for cut in (17, 18, 40, len(xerial(plain)) - 1):
        with pytest.raises(DecompressionError):
            decompress(Compression.SNAPPY, xerial(plain)[:cut], HUGE)


@given(data=st.binary(max_size=400), compression=st.sampled_from(ALL))
def test_no_bytes_escape_judgement(data: bytes, compression: Compression) -> None:
    """Random payloads under a right CRC: accepted or InvalidBatch, nothing else."""
    with suppress(InvalidBatch):
        judge(build(compression=compression, payload=data, count=3))


@given(
    batch=st.sampled_from([build(), build(compression=Compression.LZ4)]),
    flips=st.lists(st.tuples(st.integers(0, 90), st.integers(0, 255)), max_size=5),
    cut=st.integers(0, 120),
)
def test_no_damaged_batch_escapes_judgement(batch: bytes, flips: list[tuple[int, int]], cut: int) -> None:
    broken = bytearray(batch)
    for position, value in flips:
        broken[position % len(broken)] = value
    blob = bytes(broken[: max(1, len(broken) - cut)])
    try:
        judge(blob)
    except InvalidBatch:
        return
    assert blob[12:16] != batch[12:16] or blob == batch  # only the leader epoch lies outside every check


# Out again.


@pytest.mark.parametrize("size", [10, 20_000])
def test_stamping_gives_consecutive_offsets_and_the_epoch_and_leaves_the_rest(size: int) -> None:
    batches = [build([Record(bytes(size))] * count, compression=Compression.NONE) for count in (1, 4, 2)]
    blob = b"".join(batches)
    before = bytes(blob)
    parts = stamped(blob, 1000, 9)
    out = b"".join(parts)
    assert blob == before
    assert len(parts) == (6 if size > 8192 else 1)
    offset = 1000
    for (start, end), batch, count in zip(boundaries(out), batches, (1, 4, 2), strict=True):
        header = read_header(out, start)
        assert (header.base_offset, header.leader_epoch, header.next_offset) == (offset, 9, offset + count)
        assert out[start + 8 : start + 12] + out[start + 16 : end] == batch[8:12] + batch[16:]
        read = DefaultRecordBatch(out[start:end])
        assert read.validate_crc()
        assert [record.offset for record in read] == list(range(offset, offset + count))
        offset += count


def test_stamping_large_batches_copies_no_records() -> None:
    blob = build([Record(bytes(100_000))])
    _, rest = stamped(blob, 5, 1)
    assert isinstance(rest, memoryview)
    assert rest.obj is blob


@pytest.mark.parametrize("damage", [b"x", bytes(61), build()[:-1]])
def test_stored_bytes_that_are_no_batches_are_an_error(damage: bytes) -> None:
    with pytest.raises(InvalidBatch) as caught:
        stamped(build() + damage, 0, 0)
    assert caught.value.refusal.reason is Reason.CORRUPT


# By timestamp.


@pytest.mark.parametrize("compression", ALL)
def test_first_record_at_or_after_a_timestamp(compression: Compression) -> None:
    times = [START, START + 10, START + 5, START + 200_000]
    blob = build([Record(b"v", time) for time in times], compression=compression)
    blob += build([Record(b"v", START + 300_000)], compression=compression)

    def find(timestamp: int) -> Found | None:
        return first_at_or_after(blob, timestamp, base_offset=100, max_decompressed_bytes=HUGE)

    assert find(0) == Found(100, START)
    assert find(START + 1) == Found(101, START + 10)
    assert find(START + 11) == Found(103, START + 200_000)
    assert find(START + 200_001) == Found(104, START + 300_000)
    assert find(START + 300_001) is None
    assert newest(blob, base_offset=100, max_decompressed_bytes=HUGE) == Found(104, START + 300_000)


@given(st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=30), st.integers(-(2**40), 2**40))
def test_lookup_agrees_with_a_plain_search(times: list[int], wanted: int) -> None:
    blob = build([Record(b"", time) for time in times])
    expected = next((Found(7 + i, time) for i, time in enumerate(times) if time >= wanted), None)
    assert first_at_or_after(blob, wanted, base_offset=7, max_decompressed_bytes=HUGE) == expected
    top = max(times)
    assert newest(blob, base_offset=7, max_decompressed_bytes=HUGE) == Found(7 + times.index(top), top)


def test_records_that_cannot_be_read_are_an_error() -> None:
    payload = varint(50) + b"\0" + b"\xff" * 12
    blob = build(payload=payload, count=1)
    with pytest.raises(InvalidBatch, match="at offset 7"):
        first_at_or_after(blob, 0, base_offset=7, max_decompressed_bytes=HUGE)
