"""A version's reader of inputs: it finds leaders, follows them, and gives what comes at once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from types import SimpleNamespace as Entity
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import KafkaException
from kio.schema.errors import ErrorCode

from strandline.cluster.view_worker import fetcher, way
from strandline.cluster.view_worker.fetched import Fetched, InputGone, Place
from strandline.cluster.view_worker.fetcher import LeaderFetcher
from strandline.snapshot.connection import FETCH, METADATA, Api, ConnectionLost
from strandline.snapshot.views.json_records import records_of
from tests.kafka.wire.batches import Record, build

LONG_SECONDS = 20.0
PLACES = [("t", 0), ("t", 1)]
ID = UUID(int=7)


class Nodes:
    """Nodes that answer at once, in this process; `down` ones do not."""

    def __init__(self) -> None:
        self.leaders = {place: 1 + place[1] for place in PLACES}
        self.said: dict[Place, int] = {}
        """The leader that nodes tell of, where it is not so."""
        self.logs: dict[Place, list[bytes]] = {place: [] for place in PLACES}
        self.down: set[int] = set()
        self.told = [1, 2, 3]
        """Nodes of which each one tells."""
        self.code = ErrorCode.none
        self.topic_id = ID
        self.throttle = timedelta(0)
        self.asked: list[tuple[int, dict[Place, int]]] = []
        self.open = 0
        self.patient = False
        """Whether an answer waits for records."""
        self.sent: list[tuple[int, set[int]]] = []
        """Nodes and the partitions that they were asked for, whether they have answered or not."""
        self.behind: dict[int, int] = {}
        """Nodes that take themselves for leaders still, and how many records of a partition they have."""
        self.lines: list[int] = []
        """What wakes readers of the connections."""

    def answer(self, node: int, api: Api, request: Any) -> Any:
        if node in self.down:
            raise ConnectionLost(f"node {node} is down")
        if api is METADATA:
            brokers = [Entity(node_id=number, host="h", port=number) for number in self.told]
            partitions = [
                Entity(partition_index=place[1], leader_id=self.said.get(place, leader))
                for place, leader in self.leaders.items()
            ]
            return Entity(brokers=brokers, topics=[Entity(name="t", partitions=partitions)])
        assert (request.min_bytes, request.isolation_level) == (1, 1)
        asked = {
            ("t", one.partition): one.fetch_offset for topic in request.topics for one in topic.partitions
        }
        self.asked.append((node, asked))
        parts = []
        for place, offset in asked.items():
            leads = self.leaders[place] == node
            code = self.code if leads or node in self.behind else ErrorCode.not_leader_or_follower
            if request.topics[0].topic_id != self.topic_id:
                code = ErrorCode.unknown_topic_id
            end = len(self.logs[place]) if leads else self.behind.get(node, 0)
            data = b"".join(
                build([Record(value)], base_offset=offset + at)
                for at, value in enumerate(self.logs[place][offset:end])
            )
            parts.append(
                Entity(partition_index=place[1], error_code=code, aborted_transactions=None, records=data,
                       last_stable_offset=end)
            )  # fmt: skip
        return Entity(
            error_code=ErrorCode.none,
            throttle_time=self.throttle,
            responses=[Entity(topic_id=request.topics[0].topic_id, partitions=parts)],
        )


class Line:
    """A connection to one of the nodes."""

    def __init__(self, nodes: Nodes, node: int) -> None:
        if node in nodes.down:
            raise ConnectionLost(f"node {node} is down")
        self.address, self._nodes, self._node = f"h:{node}", nodes, node
        self._request: Any = None
        self._read, self._write = os.pipe()
        self._nodes.open += 1
        self._nodes.lines.append(self._write)

    def ask(self, api: Api, request: Any) -> Any:
        return self._nodes.answer(self._node, api, request)

    def send(self, api: Api, request: Any) -> None:
        assert (api, self._request) == (FETCH, None), "one request is under way at most"
        self._request = request
        asked = {one.partition for topic in request.topics for one in topic.partitions}
        self._nodes.sent.append((self._node, asked))

    def received(self) -> Any:
        if self._nodes.patient and not any(
            len(self._nodes.logs["t", one.partition]) > one.fetch_offset
            for topic in self._request.topics
            for one in topic.partitions
        ):
            return None
        request, self._request = self._request, None
        return self._nodes.answer(self._node, FETCH, request)

    def fileno(self) -> int:
        return self._read

    def close(self) -> None:
        self._nodes.lines.remove(self._write)
        os.close(self._read)
        os.close(self._write)
        self._nodes.open -= 1


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    found = Nodes()

    def line(host: str, port: int, way: Mapping[str, str], client_id: str) -> Line:
        assert client_id == "me"
        return Line(found, port)

    monkeypatch.setattr(way, "BrokerConnection", line)
    return found


@pytest.fixture
def reader(nodes: Nodes) -> Iterator[LeaderFetcher]:
    made = LeaderFetcher({"bootstrap.servers": "h:1,h:2,h:3"}, "me", {"t": ID.bytes})
    made.begin(dict.fromkeys(PLACES, 0))
    yield made
    made.close()


def read_until(reader: LeaderFetcher, enough: Callable[[list[Fetched]], bool]) -> list[Fetched]:
    end = time.monotonic() + LONG_SECONDS
    found: list[Fetched] = []
    while not enough(found):
        assert time.monotonic() < end, found
        found += reader.fetch((), 0.02)
    return found


def values(found: list[Fetched], number: int) -> list[bytes | None]:
    return [record.value for one in found if one.place == ("t", number) for record in records_of(one.records)]


def test_each_partition_is_read_on_and_each_end_is_told_once(nodes: Nodes, reader: LeaderFetcher) -> None:
    nodes.logs["t", 0] += [b"a", b"b"]
    found = read_until(reader, lambda found: {one.place for one in found if one.end} == {*PLACES})
    assert (values(found, 0), values(found, 1)) == ([b"a", b"b"], [])
    assert reader.fetch((), 0.02) == []
    nodes.logs["t", 1] += [b"c"]
    found = read_until(reader, bool)
    assert (values(found, 0), values(found, 1)) == ([], [b"c"])


def test_nothing_more_is_asked_of_a_partition_of_which_enough_is_there(
    nodes: Nodes, reader: LeaderFetcher
) -> None:
    read_until(reader, lambda found: {one.place for one in found if one.end} == {*PLACES})
    reader.fetch([("t", 0)], 0.02)
    nodes.asked.clear()
    for _ in range(5):
        reader.fetch([("t", 0)], 0.02)
    assert {place for _, asked in nodes.asked for place in asked} == {("t", 1)}


def test_a_leader_that_moves_or_dies_is_followed_and_nothing_comes_twice(
    nodes: Nodes, reader: LeaderFetcher
) -> None:
    nodes.logs["t", 0] += [b"a"]
    found = read_until(reader, lambda found: bool(values(found, 0)))
    nodes.leaders["t", 0], nodes.said["t", 0] = 3, 1
    nodes.logs["t", 0] += [b"b"]
    for _ in range(5):
        found += reader.fetch((), 0.02)
    assert values(found, 0) == [b"a"], "the nodes do not know the new leader yet"
    del nodes.said["t", 0]
    found += read_until(reader, lambda found: bool(values(found, 0)))
    nodes.down.add(3)
    nodes.leaders["t", 0] = 2
    nodes.logs["t", 0] += [b"c"]
    found += read_until(reader, lambda found: bool(values(found, 0)))
    assert values(found, 0) == [b"a", b"b", b"c"]


def sent_until(nodes: Nodes, reader: LeaderFetcher, node: int, numbers: set[int]) -> None:
    end = time.monotonic() + LONG_SECONDS
    while (node, numbers) not in nodes.sent:
        assert time.monotonic() < end, nodes.sent
        assert reader.fetch((), 0.02) == []


def test_an_answer_of_a_leader_before_that_comes_with_the_present_ones_doubles_nothing(
    nodes: Nodes, reader: LeaderFetcher
) -> None:
    """The one before waits for records of two partitions when one moves, and does not know of that yet."""
    moved, other, stays = ("t", 0), ("t", 1), ("t", 2)
    nodes.logs[stays] = []
    nodes.leaders = {moved: 1, other: 0, stays: 1}
    nodes.patient = True
    reader.begin(dict.fromkeys((moved, other, stays), 0))
    sent_until(nodes, reader, 1, {0, 2})
    nodes.leaders |= {moved: 2, other: 2}
    sent_until(nodes, reader, 2, {0, 1})
    nodes.behind = {1: 1}
    nodes.logs[moved] += [b"a", b"b"]
    found = read_until(reader, lambda found: b"b" in values(found, 0))
    assert values(found, 0) == [b"a", b"b"]


def test_where_all_known_nodes_are_gone_those_of_the_beginning_are_asked(
    nodes: Nodes, reader: LeaderFetcher
) -> None:
    nodes.told, nodes.leaders = [2], dict.fromkeys(PLACES, 2)
    read_until(reader, lambda found: len(found) == len(PLACES))
    nodes.told, nodes.leaders = [1, 3], dict.fromkeys(PLACES, 3)
    nodes.down.add(2)
    nodes.logs["t", 0] += [b"a"]
    assert values(read_until(reader, bool), 0) == [b"a"]


def test_a_partition_that_has_got_something_stands_behind_the_others(
    nodes: Nodes, reader: LeaderFetcher
) -> None:
    """An answer has room for the first ones: one that always has records would keep others from theirs."""
    nodes.leaders = dict.fromkeys(PLACES, 1)
    read_until(reader, lambda found: len(found) == len(PLACES))
    nodes.logs["t", 0] += [b"a"]
    read_until(reader, lambda found: bool(values(found, 0)))
    nodes.asked.clear()
    while not nodes.asked:
        reader.fetch((), 0.02)
    assert [*nodes.asked[0][1]] == [("t", 1), ("t", 0)]


def test_a_throttled_client_waits(nodes: Nodes, reader: LeaderFetcher) -> None:
    read_until(reader, lambda found: len(found) == len(PLACES))
    nodes.throttle = timedelta(seconds=LONG_SECONDS)
    reader.fetch((), 0.05)
    nodes.asked.clear()
    reader.fetch((), 0.05)
    assert nodes.asked == []


def test_records_that_are_gone_end_it_and_what_no_wait_mends_does_too(
    nodes: Nodes, reader: LeaderFetcher
) -> None:
    read_until(reader, lambda found: len(found) == len(PLACES))
    nodes.code = ErrorCode.kafka_storage_error
    assert reader.fetch((), 0.05) == []
    nodes.code = ErrorCode.offset_out_of_range
    with pytest.raises(InputGone, match=r"HISTORY_GONE: t-. does not .* any more .* apply the program again"):
        read_until(reader, bool)
    nodes.code = ErrorCode.topic_authorization_failed
    with pytest.raises(KafkaException):
        read_until(reader, bool)


def test_no_connection_stays_open(nodes: Nodes, reader: LeaderFetcher) -> None:
    read_until(reader, lambda found: len(found) == len(PLACES))
    nodes.leaders["t", 0] = 3
    nodes.logs["t", 0] += [b"a"]
    read_until(reader, lambda found: bool(values(found, 0)))
    assert nodes.open == 2
    reader.close()
    assert nodes.open == 0


def test_a_record_that_comes_alone_is_given_at_once(nodes: Nodes, reader: LeaderFetcher) -> None:
    read_until(reader, lambda found: len(found) == len(PLACES))
    nodes.patient = True

    def come() -> None:
        nodes.logs["t", 0] += [b"one"]
        for line in nodes.lines:
            os.write(line, b"x")

    timer = threading.Timer(0.1, come)
    timer.start()
    began = time.monotonic()
    assert values([*reader.fetch((), LONG_SECONDS)], 0) == [b"one"]
    assert time.monotonic() - began < LONG_SECONDS / 2
    timer.join()


def test_a_topic_made_anew_under_the_name_is_not_read(nodes: Nodes, reader: LeaderFetcher) -> None:
    nodes.logs["t", 0] += [b"a"]
    read_until(reader, lambda found: {one.place for one in found if one.end} == {*PLACES})
    nodes.topic_id = UUID(int=8)
    nodes.logs["t", 0] += [b"of another topic"]
    nodes.asked.clear()
    assert [*reader.fetch((), 0.3)] == []
    assert nodes.asked


def test_of_what_is_large_once_it_is_read_little_is_given_and_the_rest_as_it_is_wanted(
    nodes: Nodes, reader: LeaderFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "DECODED_BYTES", 1000)
    monkeypatch.setattr("strandline.snapshot.decode.CHUNK_BYTES", 1000)
    monkeypatch.setattr("strandline.snapshot.decode.JOIN_BELOW", 1000)
    nodes.logs["t", 0] += [b"%d" % number * 600 for number in range(9)]
    first = read_until(reader, lambda found: bool(values(found, 0)))
    assert len(values(first, 0)) < 4
    nodes.asked.clear()
    for _ in range(5):
        assert values([*reader.fetch([("t", 0)], 0.02)], 0) == []
    found = first + read_until(reader, lambda found: any(one.end for one in found if one.place == ("t", 0)))
    assert values(found, 0) == nodes.logs["t", 0]
    assert {asked[place] for _, asked in nodes.asked for place in asked if place == ("t", 0)} <= {9}
