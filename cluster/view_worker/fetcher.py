"""Fetches a version's input partitions as record batches, from each leader over one connection.

A request is always under way while there is room: the answer comes while the step before is worked. Nothing
here waits but `fetch` itself. Connections are made, and leaders asked for, in other threads: a node that
stands still holds up its own partitions alone.
"""

from __future__ import annotations

import logging
import random
import select
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from confluent_kafka import KafkaError, KafkaException
from kio.schema.errors import ErrorCode

from strandline.cluster.broker_connection import BrokerConnection
from strandline.cluster.view_worker import fetched
from strandline.cluster.view_worker.fetched import Cut, Fetched, Part, Place, decoded
from strandline.cluster.view_worker.way import Address, Way, addresses, connected
from strandline.snapshot.connection import (
    ANSWER_SECONDS,
    FETCH,
    METADATA,
    ConnectionLost,
    by_topic,
    metadata_request,
)
from strandline.snapshot.level_zero_format import BadObject

log = logging.getLogger(__name__)

MAX_WAIT: Final = timedelta(milliseconds=100)
"""A partition that is asked for later waits so long for the request under way."""
PARTITION_BYTES: Final = 4 << 20
"""Of an answer: more than a step takes. A batch that is larger comes alone."""
ANSWER_BYTES: Final = 8 << 20
"""Of an answer. Two of a leader are here at most."""
DECODED_BYTES: Final = 16 << 20
"""Of records, given at once: answers may be compressed, and what is left of them stays so."""
PAUSE_SECONDS: Final = 0.05
MOST_PAUSE_SECONDS: Final = 1.0
"""Between two looks for leaders, doubled up to this while some partition has none that answers."""
CALM_SECONDS: Final = 5.0
"""Without a look, after which the pauses are short again."""
MOST_LOOKS: Final = 4
"""At once: a node that stands still answers none, and another one is asked."""
_LOOK_SECONDS: Final = 0.005
"""Between two looks whether a connection is made."""


class _Learnt(NamedTuple):
    nodes: set[Address]
    leaders: dict[Place, Address]


class _Leader:
    """The connection to one node, and the request under way on it."""

    def __init__(self, made: Future[BrokerConnection]) -> None:
        self._made = made
        self._connection: BrokerConnection | None = None
        self.asked: Cut = {}
        """The offset from which the request under way reads each partition."""
        self.not_before = 0.0
        """The node throttles its client until then."""
        self._until = 0.0

    @property
    def connection(self) -> BrokerConnection | None:
        """The connection once it is made; raises ConnectionLost."""
        if self._connection is None and self._made.done():
            self._connection = self._made.result()
        return self._connection

    def ask(self, connection: BrokerConnection, asked: Cut, ids: Mapping[str, UUID]) -> None:
        """Send a request. Raises ConnectionLost."""
        types = FETCH.request
        topics = []
        for topic, numbers in by_topic(asked).items():
            parts = [
                types.FetchPartition(
                    partition=number, fetch_offset=asked[topic, number], partition_max_bytes=PARTITION_BYTES
                )
                for number in numbers
            ]
            topics.append(types.FetchTopic(topic_id=ids[topic], partitions=tuple(parts)))
        connection.send(
            FETCH,
            types.FetchRequest(
                max_wait=MAX_WAIT,
                min_bytes=1,
                max_bytes=ANSWER_BYTES,
                isolation_level=fetched.ISOLATION,
                topics=tuple(topics),
                forgotten_topics_data=(),
            ),
        )
        self.asked, self._until = asked, time.monotonic() + ANSWER_SECONDS

    def answer(self) -> tuple[Cut, Any] | None:
        """Give the question and the answer, once it is here. Raises ConnectionLost."""
        connection = self.connection
        if connection is None or not self.asked:
            return None
        answer = connection.received()
        if answer is None:
            if time.monotonic() > self._until:
                raise ConnectionLost(f"{connection.address}: no answer for {ANSWER_SECONDS:.0f} s")
            return None
        if answer.error_code is not ErrorCode.none:
            raise ConnectionLost(f"{connection.address}: {answer.error_code.name}")
        asked, self.asked = self.asked, {}
        self.not_before = time.monotonic() + answer.throttle_time.total_seconds()
        return asked, answer

    def close(self) -> None:
        """End the connection, also one that is being made."""

        def close(made: Future[BrokerConnection]) -> None:
            if made.exception() is None:
                made.result().close()

        self._made.add_done_callback(close)


class LeaderFetcher:
    """Reads committed records from the partitions' leaders. Not for several threads."""

    def __init__(self, way: Way, client_id: str, ids: Mapping[str, bytes]) -> None:
        """`ids` are those of topics, by name."""
        self._ids = {topic: UUID(bytes=topic_id) for topic, topic_id in ids.items()}
        self._names = {topic_id: topic for topic, topic_id in self._ids.items()}
        self._way = way
        self._client_id = client_id
        self._next: Cut = {}
        self._ended: Cut = {}
        """The end of what is decided, as it was given last."""
        self._leaders: dict[Place, Address] = {}
        self._bootstrap = self._known = {*addresses(way)}
        self._nodes: dict[Address, _Leader] = {}
        self._here: list[Part] = []
        """Parts of answers that are not decoded yet."""
        self._pool = ThreadPoolExecutor(2 * MOST_LOOKS, "fetch")
        self._learning: list[Future[_Learnt]] = []
        self._learn_at = 0.0
        self._pause = PAUSE_SECONDS

    def begin(self, cut: Mapping[Place, int]) -> None:
        self._next = dict(cut)

    def fetch(self, but: Collection[Place], seconds: float) -> Sequence[Fetched]:
        until = time.monotonic() + seconds
        while True:
            self._learn()
            self._ask(but)
            self._take_answers()
            if found := self._decoded(but):
                # The next answers come while these are worked.
                self._ask(but)
                return found
            left = until - time.monotonic()
            if left <= 0:
                return []
            self._wait(left)

    def close(self) -> None:
        for node in self._nodes.values():
            node.close()
        self._pool.shutdown(wait=False)

    def _wait(self, seconds: float) -> None:
        """Wait until a node says something, or the time is up."""
        waiting = select.poll()
        for node in self._nodes.values():
            if node.asked and node.connection is not None:
                waiting.register(node.connection, select.POLLIN)
        slow = (
            self._learning
            or len(self._leaders) < len(self._next)
            or not all(node.asked for node in self._nodes.values())
        )
        waiting.poll(1000 * (min(seconds, _LOOK_SECONDS) if slow else seconds))

    # Leaders.

    def _learn(self) -> None:
        """Look for leaders of partitions that have none, with pauses between."""
        for learning in [one for one in self._learning if one.done()]:
            self._learning.remove(learning)
            try:
                learnt = learning.result()
            except ConnectionLost as error:
                log.info("leaders are not known: %s", error)
                continue
            self._known = self._bootstrap | learnt.nodes
            self._leaders |= learnt.leaders
            for address in self._nodes.keys() - {*self._leaders.values()}:
                self._nodes.pop(address).close()
        missing = {place[0] for place in self._next if place not in self._leaders}
        now = time.monotonic()
        if missing and now >= self._learn_at and len(self._learning) < MOST_LOOKS:
            calm = now > self._learn_at + CALM_SECONDS
            self._pause = PAUSE_SECONDS if calm else min(2 * self._pause, MOST_PAUSE_SECONDS)
            self._learn_at = now + self._pause
            address = random.choice(sorted(self._known))
            self._learning.append(self._pool.submit(self._ask_leaders, address, sorted(missing)))

    def _ask_leaders(self, address: Address, topics: Sequence[str]) -> _Learnt:
        """In another thread. Raises ConnectionLost."""
        connection = self._connect(address)
        try:
            answer = connection.ask(METADATA, metadata_request(topics))
        finally:
            connection.close()
        nodes = {one.node_id: (one.host, one.port) for one in answer.brokers}
        leaders = {
            (topic.name, one.partition_index): nodes[one.leader_id]
            for topic in answer.topics
            for one in topic.partitions
            if one.leader_id in nodes
        }
        return _Learnt({*nodes.values()}, leaders)

    def _connect(self, address: Address) -> BrokerConnection:
        """In another thread. Raises ConnectionLost."""
        return connected(address, self._way, self._client_id)

    def _lost(self, address: Address, lost: ConnectionLost) -> None:
        log.info("%s", lost)
        self._nodes.pop(address).close()
        self._leaders = {place: leader for place, leader in self._leaders.items() if leader != address}

    # Questions and answers.

    def _ask(self, but: Collection[Place]) -> None:
        """Ask each leader that has no request for what is wanted of it."""
        wanted: dict[Address, Cut] = {}
        here = {one.place for one in self._here}
        for place, offset in self._next.items():
            leader = self._leaders.get(place)
            if leader is not None and place not in but and place not in here:
                wanted.setdefault(leader, {})[place] = offset
        for address, asked in wanted.items():
            if address not in self._nodes:
                self._nodes[address] = _Leader(self._pool.submit(self._connect, address))
            node = self._nodes[address]
            try:
                connection = node.connection
                if connection is not None and not node.asked and time.monotonic() >= node.not_before:
                    node.ask(connection, asked, self._ids)
            except ConnectionLost as lost:
                self._lost(address, lost)

    def _take_answers(self) -> None:
        for address, node in [*self._nodes.items()]:
            try:
                answered = node.answer()
            except ConnectionLost as lost:
                self._lost(address, lost)
                continue
            if answered is not None:
                self._here += self._parts(address, *answered)

    def _decoded(self, but: Collection[Place]) -> list[Fetched]:
        """Read little more than DECODED_BYTES of what is here, of other places than those in `but`."""
        parts = [one._replace(offset=self._next[one.place]) for one in self._here if one.place not in but]
        try:
            every, left = decoded(parts, DECODED_BYTES)
        except BadObject as error:
            raise KafkaException(KafkaError(KafkaError._BAD_MSG, str(error))) from error
        self._here = [*(one for one in self._here if one.place in but), *left]
        found = []
        for one in every:
            place = one.place
            if one.upto > self._next[place] or (one.end and self._ended.get(place) != one.upto):
                found.append(one)
                # A partition that has got something stands behind the others in the next request.
                del self._next[place]
                self._next[place] = one.upto
                if one.end:
                    self._ended[place] = one.upto
        return found

    def _parts(self, leader: Address, asked: Cut, answer: Any) -> list[Part]:
        parts = []
        for topic in answer.responses:
            for one in topic.partitions:
                place = self._names[topic.topic_id], one.partition_index
                if self._leaders.get(place) != leader:
                    continue  # it was asked before another one was found, which is asked for the same
                if one.error_code is not ErrorCode.none:
                    fetched.check(place, one.error_code)
                    self._leaders.pop(place, None)
                    continue
                aborted = [(each.first_offset, each.producer_id) for each in one.aborted_transactions or ()]
                data = bytes(one.records or b"")
                parts.append(Part(place, asked[place], data, aborted, one.last_stable_offset))
        return parts
