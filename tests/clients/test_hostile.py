"""Clients that are broken, mean or slow, against real nodes: all others are served meanwhile and after."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.apis import ApiKey
from strandline.node.kafka.wire.server_config import CloseReason
from strandline.snapshot.compression import Compression
from tests.clients.fuzzing import fuzz, reasons
from tests.clients.nodes import closed, connections, left_connections, metric, number_of, rss
from tests.clients.wire import FETCH_VERSION, Wire, fetch, leader
from tests.cluster.real_cluster import RealCluster
from tests.kafka.wire.batches import Record, build, compress, encode_records, varint
from tests.kafka.wire.entities import encoded, entity_of
from tests.kafka.wire.server_harness import api_versions, request

IDLE = 1000
THREE = encode_records([Record(b"one"), Record(b"two"), Record(b"three")], 1_700_000_000_000)


@pytest.fixture(scope="module")
def topic(cluster: RealCluster) -> str:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for made in admin.create_topics([NewTopic("hostile", 1, 3)]).values():
        made.result(60)
    return "hostile"


@pytest.fixture
def wire(cluster: RealCluster, topic: str) -> Iterator[Wire]:
    with Wire(leader(cluster.bootstrap, topic)) as connected:
        yield connected


def served_in(wire: Wire, topic: str) -> float:
    """Seconds that a produce and a fetch of it take, which other clients do meanwhile."""
    started = time.perf_counter()
    told = wire.produce(topic, build())
    assert told.error_code == ErrorCode.none
    read = wire.fetch(topic, offset=told.base_offset)
    assert read.error_code == ErrorCode.none
    assert read.records
    return time.perf_counter() - started


def served_by_whoever_leads(cluster: RealCluster, topic: str) -> None:
    """As `served_in`, if the leader may have changed: within thirty seconds, as a client would ask again."""
    deadline = time.monotonic() + 30
    while True:
        try:
            with Wire(leader(cluster.bootstrap, topic)) as wire:
                served_in(wire, topic)
            return
        except (AssertionError, ValueError):  # nobody leads, or not any more
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def test_a_thousand_idle_connections_cost_little(cluster: RealCluster, topic: str, wire: Wire) -> None:
    address = leader(cluster.bootstrap, topic)
    node = number_of(cluster, address)
    served_in(wire, topic)
    open_before = connections(cluster, node)
    before = rss(cluster, node)
    idle = [Wire(address) for _ in range(IDLE)]
    try:
        for one in idle:
            one.send(api_versions(1))  # a client says something before it falls silent
            one.frame()
        assert connections(cluster, node) == open_before + IDLE
        each = (rss(cluster, node) - before) / IDLE
        slowest = max(served_in(wire, topic) for _ in range(10))
        print(f"{each:.0f} bytes for each of {IDLE} idle connections; others served in {slowest:.3f} s")
        assert each < 16_000
        assert slowest < 10
    finally:
        for one in idle:
            one.socket.close()
    assert left_connections(cluster, node, open_before) == open_before


def test_a_client_that_asks_and_does_not_read_is_not_read_either(
    cluster: RealCluster, topic: str, wire: Wire
) -> None:
    address = leader(cluster.bootstrap, topic)
    node = number_of(cluster, address)
    for number in range(20):
        assert wire.produce(topic, build([Record(bytes([number]) * 900_000)])).error_code == ErrorCode.none
    wire.fetch(topic)
    before, handled = rss(cluster, node), metric(cluster, node, "strandline_kafka_requests_total")
    schema = load_request_schema(ApiKey.FETCH, FETCH_VERSION)
    asked = request(ApiKey.FETCH, FETCH_VERSION, 1, encoded(entity_of(schema, fetch(topic))))
    with Wire(address, receive_buffer=4096) as slow:
        slow.socket.settimeout(0.2)
        sent = 0
        try:
            while sent < 200_000:  # answers to all of them would be 36 GB
                slow.send(asked * 100)
                sent += 100
        except TimeoutError:
            pass
        time.sleep(0.5)
        # Answers are views of what the caches hold, so memory alone would not tell that too many are made.
        handled = metric(cluster, node, "strandline_kafka_requests_total") - handled
        assert handled < 30
        slowest = max(served_in(wire, topic) for _ in range(5))
        grown = rss(cluster, node) - before
        print(f"{sent} requests not read: {grown / 1e6:.1f} MB; others served in {slowest:.3f} s")
        assert grown < 120_000_000
        assert slowest < 10
        # Its connection is whole: when it does read, it gets the answers in order.
        slow.socket.settimeout(10)
        assert len(slow.frame()) > 900_000


@pytest.mark.parametrize(
    ("records", "code"),
    [
        pytest.param(build(crc=1), ErrorCode.corrupt_message, id="CRC"),
        pytest.param(build(count=4, last_offset_delta=3), ErrorCode.invalid_record, id="more records"),
        pytest.param(build(count=2, last_offset_delta=1), ErrorCode.invalid_record, id="fewer records"),
        pytest.param(build(count=3, last_offset_delta=999), ErrorCode.invalid_record, id="offsets skipped"),
        pytest.param(build(count=2**31 - 1), ErrorCode.invalid_record, id="two billion records"),
        pytest.param(build(count=-1), ErrorCode.invalid_record, id="minus one record"),
        pytest.param(build(length_error=1), ErrorCode.invalid_record, id="longer than it is"),
        pytest.param(build(length_error=-1), ErrorCode.corrupt_message, id="shorter than it is"),
        pytest.param(build(length_error=2**30), ErrorCode.invalid_record, id="a gigabyte"),
        pytest.param(build()[:-3], ErrorCode.invalid_record, id="cut off"),
        pytest.param(build()[:40], ErrorCode.invalid_record, id="half a header"),
        pytest.param(build() + build(), ErrorCode.invalid_record, id="two batches"),
        pytest.param(b"", ErrorCode.invalid_record, id="nothing"),
        pytest.param(build(magic=3), ErrorCode.corrupt_message, id="magic"),
        pytest.param(
            build(payload=varint(2**31 - 1) + THREE[1:]), ErrorCode.invalid_record, id="a record of 2 GB"
        ),
        pytest.param(build(attributes=6), ErrorCode.unsupported_compression_type, id="compression type 6"),
        pytest.param(
            build(compression=Compression.ZSTD, payload=b"not zstd"), ErrorCode.invalid_record, id="no zstd"
        ),
        pytest.param(
            build([Record(b"x" * 1_100_000)]), ErrorCode.message_too_large, id="more than max.message.bytes"
        ),
    ],
)
def test_a_batch_that_lies_is_refused_and_nothing_of_it_is_kept(
    cluster: RealCluster, topic: str, wire: Wire, records: bytes, code: ErrorCode
) -> None:
    before = wire.fetch(topic).high_watermark
    told = wire.produce(topic, records)
    assert told.error_code == code, told.error_message
    assert told.base_offset == -1
    assert wire.fetch(topic).high_watermark == before
    served_in(wire, topic)


def test_a_gigabyte_in_a_small_batch_is_refused_without_being_unpacked(
    cluster: RealCluster, topic: str, wire: Wire
) -> None:
    bomb = build(compression=Compression.ZSTD, payload=compress(Compression.ZSTD, bytes(1 << 30)))
    assert len(bomb) < 40_000
    node = number_of(cluster, leader(cluster.bootstrap, topic))
    before = rss(cluster, node)
    told = wire.produce(topic, bomb)
    assert told.error_code == ErrorCode.message_too_large, told.error_message
    assert rss(cluster, node) - before < 200_000_000
    served_by_whoever_leads(cluster, topic)


def test_what_is_not_there(wire: Wire, topic: str) -> None:
    assert wire.produce("hostile-none", build()).error_code == ErrorCode.unknown_topic_or_partition
    assert wire.produce(topic, build(), partition=7).error_code == ErrorCode.unknown_topic_or_partition
    assert wire.produce(topic, build(), partition=-1).error_code == ErrorCode.unknown_topic_or_partition
    assert wire.fetch("hostile-none").error_code == ErrorCode.unknown_topic_or_partition
    assert wire.fetch(topic, partition=7).error_code == ErrorCode.unknown_topic_or_partition
    end = wire.fetch(topic).high_watermark
    assert wire.fetch(topic, offset=end + 1).error_code == ErrorCode.offset_out_of_range
    assert wire.fetch(topic, offset=-5).error_code == ErrorCode.offset_out_of_range
    served_in(wire, topic)


def test_a_node_that_does_not_lead_says_so(cluster: RealCluster, topic: str) -> None:
    leads = leader(cluster.bootstrap, topic)
    for address in cluster.bootstrap.split(","):
        if address != leads:
            with Wire(address) as other:
                assert other.produce(topic, build()).error_code == ErrorCode.not_leader_or_follower
                assert other.fetch(topic).error_code == ErrorCode.not_leader_or_follower


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        pytest.param(struct.pack(">i", 1 << 30), CloseReason.OVERSIZED, id="a frame of 1 GiB"),
        pytest.param(struct.pack(">i", -1), CloseReason.OVERSIZED, id="a frame of -1 bytes"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", CloseReason.OVERSIZED, id="HTTP"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", CloseReason.OVERSIZED, id="TLS"),
        pytest.param(request(ApiKey.PRODUCE, 99, 1, b""), CloseReason.UNSUPPORTED, id="a newer produce"),
        pytest.param(request(9999, 0, 1, b""), CloseReason.UNSUPPORTED, id="an unknown request"),
        pytest.param(request(ApiKey.METADATA, 9, 1, b"\xff" * 9), CloseReason.MALFORMED, id="nonsense"),
        pytest.param(
            request(ApiKey.FETCH, 4, 1, struct.pack(">iiiibi", -1, 0, 0, 0, 0, 2**31 - 1)),
            CloseReason.MALFORMED,
            id="two billion topics",
        ),
    ],
)
def test_what_is_no_request_ends_its_connection_and_no_other(
    cluster: RealCluster, topic: str, wire: Wire, sent: bytes, reason: CloseReason
) -> None:
    address = leader(cluster.bootstrap, topic)
    node = number_of(cluster, address)
    before = closed(cluster, node, reason)
    with Wire(address) as bad:
        bad.send(sent)
        assert bad.ended()
    assert closed(cluster, node, reason) == before + 1
    served_in(wire, topic)


def test_api_versions_of_a_newer_client_is_told_what_there_is(wire: Wire) -> None:
    wire.send(api_versions(7, version=99))
    answer = wire.frame()
    number, code, count = struct.unpack(">ihi", answer[:10])
    assert (number, code) == (7, ErrorCode.unsupported_version)
    ranges = [struct.unpack_from(">hhh", answer, 10 + 6 * each) for each in range(count)]
    assert (ApiKey.API_VERSIONS, 0, 4) in ranges
    wire.send(api_versions(8))
    assert struct.unpack(">i", wire.frame()[:4]) == (8,)


def test_a_client_that_goes_away_in_the_middle(cluster: RealCluster, topic: str, wire: Wire) -> None:
    address = leader(cluster.bootstrap, topic)
    node = number_of(cluster, address)
    before = connections(cluster, node)
    whole = request(ApiKey.METADATA, 0, 1, struct.pack(">i", 0))
    for length in range(len(whole)):
        with Wire(address) as gone:
            gone.send(whole[:length])
    assert left_connections(cluster, node, before) <= before
    served_in(wire, topic)


def test_mutated_frames_close_their_own_connection_and_nothing_else(cluster: RealCluster, topic: str) -> None:
    address = leader(cluster.bootstrap, topic)
    node = number_of(cluster, address)
    asyncio.run(fuzz(int(address.rpartition(":")[2]), 500, 6))  # what is allocated once
    before, grown_from = reasons(cluster, node), rss(cluster, node)
    open_before = connections(cluster, node)
    outcome = asyncio.run(fuzz(int(address.rpartition(":")[2]), 2_500, 7))
    after = reasons(cluster, node)
    assert (outcome.frames, outcome.witnessed) == (2_500, 5)
    assert outcome.answered > 200
    assert outcome.dropped > 500
    assert after["malformed_frame"] > before["malformed_frame"] + 300
    assert CloseReason.HANDLER.value not in after
    assert rss(cluster, node) - grown_from < 40_000_000
    assert left_connections(cluster, node, open_before) <= open_before
    assert sorted(cluster.pids) == [1, 2, 3]
    # Among the frames are elections for all partitions.
    served_by_whoever_leads(cluster, topic)
