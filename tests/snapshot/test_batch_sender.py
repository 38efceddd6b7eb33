"""Batches to leaders that move and after pauses: each is taken once, and none is left out."""

from __future__ import annotations

import time
from collections import deque
from types import SimpleNamespace as Entity
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from strandline.snapshot.connection import ADD_PARTITIONS_TO_TXN, FIND_COORDINATOR, METADATA, ConnectionLost
from strandline.snapshot.producing import brokers as brokers_module
from strandline.snapshot.producing.batch_sender import BatchSender
from strandline.snapshot.producing.brokers import Address, Brokers
from strandline.snapshot.producing.transactions import Producer

PRODUCER = Producer("id", 9, 0)
EVERYTHING = 1 << 30


class Nodes:
    """Nodes 1 and 2 at ports of their number; node 1 coordinates. A leader answers as each test says."""

    def __init__(self) -> None:
        self.leaders = {0: 1, 1: 2}
        self.taken: dict[int, list[bytes]] = {0: [], 1: []}
        self.slow: set[int] = set()
        """Nodes that have taken what they were sent, and whose answers come later."""
        self.fails: set[int] = set()
        """Nodes whose next answer is not heard."""

    def connect(self, _: str, port: int) -> Any:
        return Line(self, port)

    def ask(self, api: Any, request: Any) -> Any:
        if api is METADATA:
            parts = [Entity(partition_index=at, leader_id=one) for at, one in self.leaders.items()]
            topics = [
                Entity(name=one.name, error_code=ErrorCode.none, partitions=parts) for one in request.topics
            ]
            return Entity(brokers=[Entity(node_id=at, host="h", port=at) for at in (1, 2)], topics=topics)
        if api is FIND_COORDINATOR:
            return Entity(error_code=ErrorCode.none, host="h", port=1)
        assert api is ADD_PARTITIONS_TO_TXN
        results = [Entity(results_by_partition=[Entity(partition_error_code=ErrorCode.none)])]
        return Entity(results_by_topic_v3_and_below=results)


class Line:
    def __init__(self, nodes: Nodes, number: int) -> None:
        self._nodes, self._number = nodes, number
        self._answers: deque[Any] = deque()

    def ask(self, api: Any, request: Any) -> Any:
        return self._nodes.ask(api, request)

    def send(self, _: Any, request: Any) -> None:
        [topic] = request.topic_data
        parts = []
        for one in topic.partition_data:
            taken = self._nodes.taken[one.index]
            if self._nodes.leaders[one.index] != self._number:
                code = ErrorCode.not_leader_or_follower
            else:
                code = ErrorCode.none  # also for one that it has, as brokers say of the newest ones
                if bytes(one.records) not in taken:
                    taken.append(bytes(one.records))
            parts.append(Entity(index=one.index, error_code=code, error_message=None))
        self._answers.append(Entity(responses=[Entity(name=topic.name, partition_responses=parts)]))

    def answered(self) -> bool:
        return self._number not in self._nodes.slow

    def receive(self) -> Any:
        if self._number in self._nodes.fails:
            self._nodes.fails.remove(self._number)
            raise ConnectionLost("it has closed the connection")
        return self._answers.popleft()

    def close(self) -> None:
        """Nothing is left open."""


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    monkeypatch.setattr(brokers_module, "_FIRST_PAUSE_SECONDS", 0.001)
    return Nodes()


@pytest.fixture
def sender(nodes: Nodes) -> BatchSender:
    brokers = Brokers([Address("h", 1)], 5.0, nodes.connect)
    brokers.expect("t")
    return BatchSender(brokers, PRODUCER)


def test_a_batch_whose_leader_moves_while_it_is_under_way_is_not_sent_to_the_next_one_as_well(
    nodes: Nodes, sender: BatchSender
) -> None:
    """Two answers for one batch would be taken for those of it and of the next one, which no leader had."""
    nodes.slow, nodes.fails = {1}, {2}
    sender.put(("t", 0), b"first", 1)
    sender.send(most=EVERYTHING)
    nodes.leaders = {0: 2, 1: 2}
    sender.put(("t", 1), b"other", 1)
    sender.send(most=EVERYTHING)  # the line to node 2 ends, so leaders are looked for
    nodes.slow = {1, 2}
    sender.put(("t", 0), b"second", 1)
    sender.send(most=EVERYTHING)
    nodes.slow.clear()
    sender.send(most=0)
    assert nodes.taken == {0: [b"first", b"second"], 1: [b"other"]}


def test_a_pause_between_two_batches_is_no_part_of_the_time_for_the_second(
    nodes: Nodes, sender: BatchSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender.put(("t", 0), b"first", 1)
    sender.send(most=0)
    sender.begin()
    clock = time.monotonic
    monkeypatch.setattr(
        "strandline.snapshot.producing.brokers.time",
        Entity(monotonic=lambda: clock() + 60, sleep=lambda _: None),
    )
    nodes.fails = {1}  # the line has ended meanwhile
    sender.put(("t", 0), b"second", 1)
    sender.send(most=0)
    assert nodes.taken[0] == [b"first", b"second"]
