"""Every spoken version, read and written as kio does, and nothing that a frame can do to the process."""

from __future__ import annotations

import random
import struct
import tracemalloc
from datetime import timedelta
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.serial import entity_reader

from strandline.node.kafka.wire.apis import (
    APIS,
    ApiKey,
    api_versions_response,
    unsupported_api_versions_response,
)
from strandline.node.kafka.wire.codec import (
    RequestHeader,
    UnsupportedRequest,
    decode_request,
    encode_parts,
    encode_response,
)
from strandline.node.kafka.wire.request_check import MalformedFrame, checked_body
from strandline.node.kafka.wire.response_encoder import (
    JOINED_BYTES,
    Buffer,
    EncodingError,
    RecordParts,
    as_records,
    encode,
)
from strandline.node.kafka.wire.response_types import response_types
from tests.kafka.wire.entities import VERSIONS, encoded, head, random_entity, random_request, random_response
from tests.kafka.wire.sent_bytes import sent_bytes

ELEMENTS = 10_000
METADATA_12 = struct.pack(">hhihb", 3, 12, 5, -1, 0)
METADATA_1 = struct.pack(">hhih", 3, 1, 5, -1)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def decode(frame: bytes) -> Any:
    return decode_request(memoryview(frame), ELEMENTS)[1]


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_requests_of_every_version_decode_to_what_was_sent(api_key: int, version: int) -> None:
    rng = random.Random(api_key * 100 + version)
    for _ in range(4):
        request = random_request(rng, api_key, version)
        frame = head(api_key, version) + encoded(request)
        header, decoded = decode_request(memoryview(frame), ELEMENTS)
        assert decoded == request
        assert header == RequestHeader(api_key, version, 77, "me")
        for end in sorted({rng.randrange(len(frame)) for _ in range(10)}):
            with pytest.raises(MalformedFrame, match="ends inside"):
                decode(frame[:end])
        assert decode(frame + b"\0\xff") == request


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_responses_of_every_version_are_the_bytes_kio_writes(api_key: int, version: int) -> None:
    rng = random.Random(api_key * 100 + version)
    for _ in range(4):
        response = random_response(rng, api_key, version)
        assert sent_bytes(encode(response, b"head")) == b"head" + encoded(response)


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_requests_of_every_version_are_the_bytes_kio_writes(api_key: int, version: int) -> None:
    """Clients of the simulators send requests that this encoder wrote."""
    rng = random.Random(api_key * 100 + version)
    for _ in range(4):
        request = random_request(rng, api_key, version)
        assert sent_bytes(encode(request, b"")) == encoded(request)


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_the_table_agrees_with_the_schemas(api_key: int, version: int) -> None:
    assert load_request_schema(api_key, version).__flexible__ == (version >= APIS[api_key].flexible)


def test_librdkafka_s_request_for_all_topics_is_read_as_kafka_reads_it() -> None:
    """Version 13 with a count of four bytes where one is right: null topics, and three bytes too many."""
    request = decode(struct.pack(">hhih", 3, 13, 3, 7) + b"rdkafka" + b"\0" + bytes(4) + b"\x01\0\0")
    assert request.topics is None


# What a frame may not do.


@pytest.mark.parametrize("count", [2**20, 2**31 - 2, 2**31, 2**35 - 1, 2**63])
def test_a_compact_array_that_promises_too_much_is_malformed(count: int) -> None:
    with pytest.raises(MalformedFrame, match="promises" if count < 2**31 else "varint"):
        decode(METADATA_12 + varint(count) + bytes(200))


@pytest.mark.parametrize("count", [100, 2**20, 2**31 - 1, -2, -(2**31)])
def test_an_array_that_promises_too_much_is_malformed(count: int) -> None:
    with pytest.raises(MalformedFrame):
        decode(METADATA_1 + struct.pack(">i", count) + bytes(100))


def test_a_promise_of_elements_takes_no_memory() -> None:
    frame = METADATA_12 + varint(2**31 - 1) + bytes(200)
    tracemalloc.start()
    with pytest.raises(MalformedFrame):
        decode(frame)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_all_arrays_of_a_request_share_one_budget() -> None:
    topics = struct.pack(">i", 40) + (struct.pack(">h", 1) + b"t") * 40
    assert len(decode_request(memoryview(METADATA_1 + topics), 40)[1].topics) == 40
    with pytest.raises(MalformedFrame, match="40 elements"):
        decode_request(memoryview(METADATA_1 + topics), 39)
    partitions = struct.pack(">i", 30) + struct.pack(">iq", 0, -1) * 30
    nested = struct.pack(">ii", -1, 2) + (struct.pack(">h", 1) + b"t" + partitions) * 2
    frame = memoryview(head(ApiKey.LIST_OFFSETS, 1) + nested)
    assert len(decode_request(frame, 62)[1].topics) == 2
    with pytest.raises(MalformedFrame, match="30 elements"):
        decode_request(frame, 61)


def test_a_string_that_is_not_utf8_is_malformed() -> None:
    with pytest.raises(MalformedFrame, match="UTF-8"):
        decode(METADATA_1 + struct.pack(">ih", 1, 2) + b"\xff\xfe")
    with pytest.raises(MalformedFrame, match="UTF-8"):
        decode(struct.pack(">hhih", 3, 1, 5, 2) + b"\xff\xfe" + struct.pack(">i", 0))


def test_a_null_where_none_may_be_is_malformed() -> None:
    with pytest.raises(MalformedFrame, match="null"):
        decode(METADATA_1 + struct.pack(">ih", 1, -1))


def test_a_null_array_where_none_may_be_is_malformed() -> None:
    assert decode(METADATA_12 + bytes(4)).topics is None
    with pytest.raises(MalformedFrame, match="topics is null"):
        decode(head(ApiKey.LIST_OFFSETS, 1) + struct.pack(">ii", -1, -1))
    with pytest.raises(MalformedFrame, match="topics is null"):
        decode(head(ApiKey.LIST_OFFSETS, 6) + struct.pack(">ib", -1, 0) + bytes(2))


@pytest.mark.parametrize("size", [-2, -(2**15)])
def test_a_negative_string_length_is_malformed(size: int) -> None:
    with pytest.raises(MalformedFrame):
        decode(METADATA_1 + struct.pack(">ih", 1, size) + bytes(50))
    with pytest.raises(MalformedFrame, match="client id"):
        decode(struct.pack(">hhih", 3, 1, 5, size) + bytes(50))


@pytest.mark.parametrize("size", range(13))
def test_a_frame_that_ends_inside_the_header_is_malformed(size: int) -> None:
    with pytest.raises(MalformedFrame, match="request header"):
        decode(head(3, 12)[:size])
    with pytest.raises(MalformedFrame, match="request header"):
        decode(head(3, 1)[: min(size, 11)])


# Tagged fields.

PLAIN_METADATA = varint(1) + bytes([0, 0])


def test_kio_alone_refuses_tagged_fields_it_does_not_know() -> None:
    """If this fails, kio has learnt to skip them, and cutting them out is work for nothing."""
    with pytest.raises(KeyError):
        entity_reader(load_request_schema(3, 12))(PLAIN_METADATA + b"\x01\x09\x02hi", 0)


def test_unknown_tagged_fields_are_skipped() -> None:
    plain = decode(METADATA_12 + PLAIN_METADATA + b"\0")
    assert decode(METADATA_12 + PLAIN_METADATA + b"\x02\x09\x02hi\x0a\x00") == plain
    in_header = struct.pack(">hhih", 3, 12, 5, -1) + b"\x01\x07\x01x"
    assert decode(in_header + PLAIN_METADATA + b"\0") == plain


def fetch_with_tags(request_tags: bytes, partition_tags: bytes) -> Any:
    partition = struct.pack(">iiqiqi", 0, -1, 4, -1, -1, 100) + partition_tags
    topic = b"\x02t" + varint(2) + partition + b"\0"
    body = struct.pack(">iiiibii", -1, 500, 1, 10, 0, 0, -1) + varint(2) + topic + b"\x01\x01" + request_tags
    return decode(head(ApiKey.FETCH, 12) + body)


def test_known_tagged_fields_stay_when_unknown_ones_around_them_go() -> None:
    known = fetch_with_tags(b"\x01\x00\x03\x03ab", b"\0")
    assert known.cluster_id == "ab"
    mixed = fetch_with_tags(b"\x03\x00\x03\x03ab\x21\x01x\x22\x02yz", b"\x01\x63\x03abc")
    assert mixed == known


def test_unknown_tagged_fields_inside_a_known_one_are_skipped() -> None:
    state = struct.pack(">iq", 5, 6)
    topics = b"\x01\x01\x01"
    body = struct.pack(">iiibii", 500, 1, 10, 0, 0, -1) + topics
    plain = decode(head(ApiKey.FETCH, 15) + body + b"\x01\x01\x0d" + state + b"\0")
    assert (plain.replica_state.replica_id, plain.replica_state.replica_epoch) == (5, 6)
    nested = state + b"\x01\x4d\x02hi"
    assert decode(head(ApiKey.FETCH, 15) + body + b"\x01\x01" + varint(len(nested)) + nested) == plain


@pytest.mark.parametrize(
    "tags",
    [
        b"\x01",
        b"\x01\x09",
        b"\x01\x09\x05hi",
        b"\x01\x09" + varint(2**31 - 1) + b"hi",
        varint(2**31 - 1) + b"\x09\x00" * 30,
        b"\xff" * 30,
        b"\x01\x00\x04\x03ab",
        b"\x01\x00\x02\x03ab",
        b"\x01\x00\x04\x03abX",
    ],
)
def test_tagged_fields_whose_lengths_lie_are_malformed(tags: bytes) -> None:
    with pytest.raises(MalformedFrame):
        fetch_with_tags(tags, b"\0")


# Versions.


@pytest.mark.parametrize(
    ("api_key", "version"), [(3, 99), (3, -1), (0, 2), (18, 5), (99, 0), (-1, 0), (4, 1)]
)
def test_what_is_not_in_the_table_is_refused_by_name(api_key: int, version: int) -> None:
    with pytest.raises(UnsupportedRequest, match="not spoken") as caught:
        decode(struct.pack(">hhih", api_key, version, 9, -1) + bytes(20))
    assert caught.value.header == RequestHeader(api_key, version, 9, None)


def test_api_versions_advertises_what_the_table_holds() -> None:
    for version in range(5):
        response = api_versions_response(version)
        assert response.__version__ == version
        rows = {(row.api_key, row.min_version, row.max_version) for row in response.api_keys}
        assert rows == {
            (api.key, 0 if api.key in (ApiKey.PRODUCE, ApiKey.SASL_HANDSHAKE) else api.first, api.last)
            for api in APIS.values()
        }


def test_an_unknown_version_of_api_versions_is_answered_in_version_0() -> None:
    header = RequestHeader(18, 99, 1234, None)
    frame = sent_bytes(encode_response(header, unsupported_api_versions_response()))
    assert struct.unpack(">iihi", frame[:14]) == (len(frame) - 4, 1234, 35, 1)
    assert struct.unpack(">hhh", frame[14:]) == (18, 0, 4)


def test_answers_to_flexible_api_versions_keep_the_plain_header() -> None:
    frame = sent_bytes(encode_response(RequestHeader(18, 3, 7, None), api_versions_response(3)))
    assert frame == struct.pack(">ii", len(frame) - 4, 7) + sent_bytes(encode(api_versions_response(3), b""))


def test_answers_to_other_flexible_versions_have_tagged_headers() -> None:
    made = response_types(22, 4).InitProducerIdResponse(
        throttle_time=_ms(0), error_code=0, producer_id=8, producer_epoch=0
    )
    frame = sent_bytes(encode_response(RequestHeader(22, 4, 7, None), made))
    assert struct.unpack(">iib", frame[:9]) == (len(frame) - 4, 7, 0)
    assert frame[9:] == encoded_with_code(made)


def encoded_with_code(entity: Any) -> bytes:
    return sent_bytes(encode(entity, b""))


def _ms(value: int) -> timedelta:
    return timedelta(milliseconds=value)


def test_an_answer_of_another_version_is_our_own_error() -> None:
    with pytest.raises(EncodingError, match="does not answer"):
        encode_response(RequestHeader(22, 3, 7, None), random_response(random.Random(1), 22, 4))
    with pytest.raises(EncodingError, match="does not answer"):
        encode_response(RequestHeader(3, 4, 7, None), random_response(random.Random(1), 22, 4))


def test_a_value_that_does_not_fit_is_our_own_error() -> None:
    made = response_types(22, 4).InitProducerIdResponse(
        throttle_time=_ms(0), error_code=0, producer_id=2**63, producer_epoch=0
    )
    with pytest.raises(EncodingError, match="InitProducerIdResponse version 4"):
        encode_response(RequestHeader(22, 4, 7, None), made)


def test_encoded_parts_get_the_request_s_header() -> None:
    assert (
        sent_bytes(encode_parts(RequestHeader(22, 4, 7, None), [b"ab", b"c"]))
        == struct.pack(">iib", 8, 7, 0) + b"abc"
    )
    assert (
        sent_bytes(encode_parts(RequestHeader(22, 1, 7, None), [b"abc"])) == struct.pack(">ii", 7, 7) + b"abc"
    )


# Records and answers.


@pytest.mark.parametrize("version", [4, 11, 12, 18])
def test_large_records_are_passed_on_and_small_ones_are_joined(version: int) -> None:
    big: list[Buffer] = [bytes(JOINED_BYTES), b"end"]
    small: list[Buffer] = [b"ab", memoryview(b"cd")]
    made = []
    for records in (as_records(big), as_records(small)), (b"".join(big), b"abcd"):
        a = response_types(ApiKey.FETCH, version)
        partitions = tuple(
            a.PartitionData(
                partition_index=0,
                error_code=0,
                high_watermark=1,
                last_stable_offset=1,
                log_start_offset=0,
                aborted_transactions=None,
                records=records_of_one,
            )
            for records_of_one in records
        )
        topic = a.FetchableTopicResponse(topic="t", topic_id=None, partitions=partitions)
        made.append(a.FetchResponse(throttle_time=_ms(0), error_code=0, session_id=0, responses=(topic,)))
    parts = encode(made[0], b"")
    assert sent_bytes(parts) == encoded_with_code(made[1])
    assert any(part is big[0] for part in parts)
    assert len(parts) == 4
    assert len(RecordParts(big)) == JOINED_BYTES + 3


def test_answers_drop_what_a_version_lacks_and_refuse_what_all_lack() -> None:
    old, new = response_types(ApiKey.METADATA, 0), response_types(ApiKey.METADATA, 13)
    values = {"node_id": 1, "host": "h", "port": 2, "rack": "r"}
    assert not hasattr(old.MetadataResponseBroker(**values), "rack")
    assert new.MetadataResponseBroker(**values).rack == "r"
    assert response_types(ApiKey.FETCH, 4).NodeEndpoint(**values) is None
    with pytest.raises(TypeError, match="rackk"):
        old.MetadataResponseBroker(**values, rackk="r")
    with pytest.raises(AttributeError, match="Borker"):
        _ = old.Borker


def test_a_structure_that_may_be_null_is_walked_past() -> None:
    """KIP-893; no request that is spoken has one yet, so it is tried with one of Kafka's others."""
    entity = load_request_schema(75, 0)  # DescribeTopicPartitions
    rng = random.Random(4)
    seen = set()
    for _ in range(50):
        request = random_entity(rng, entity)
        seen.add(request.cursor is None)
        body = encoded(request)
        assert checked_body(entity, memoryview(body), 0, 1000) == (memoryview(body), 0)
        with pytest.raises(MalformedFrame):
            checked_body(entity, memoryview(body)[:-1], 0, 1000)
    assert seen == {True, False}
