"""The brokers of a cluster as one client sees them: leaders, coordinators, and requests said again.

Everything waits for a Deadline at most. What is said again here may be: a producer id's epoch rises once
more, partitions and offsets are added that are there already, the end of a transaction is answered as before.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from strandline.snapshot.connection import (
    FIND_COORDINATOR,
    METADATA,
    RETRIABLE,
    Api,
    Connection,
    ConnectionLost,
    metadata_request,
)
from strandline.snapshot.producing.errors import SinkError, Unanswered

GROUP: Final = 0
TRANSACTION: Final = 1
_FIRST_PAUSE_SECONDS: Final = 0.02
_LONGEST_PAUSE_SECONDS: Final = 1.0
_MOVED: Final = (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available)


class Deadline:
    """So many seconds from now, and the pauses between tries until then."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds
        self._pause = _FIRST_PAUSE_SECONDS

    def renew(self) -> None:
        """Something went on: the time and the pauses begin again."""
        self._end = time.monotonic() + self.seconds
        self._pause = _FIRST_PAUSE_SECONDS

    def pause(self, what: str, reason: object) -> None:
        """Wait before the next try; raises Unanswered when there is no time left for one."""
        if time.monotonic() + self._pause > self._end:
            raise Unanswered(
                f"{what}: no success for {self.seconds:.0f} s, at last: {reason}; see to the cluster, "
                "and start again: what was decided stays, the rest is written again"
            )
        time.sleep(self._pause * random.uniform(0.5, 1.0))
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Brokers:
    """Connections are made when they are needed, and kept until `close`. Not for several threads."""

    def __init__(
        self,
        bootstrap: Sequence[Address],
        seconds: float,
        connect: Callable[[str, int], Connection] = Connection,
    ) -> None:
        """`connect` makes the connection to a host and a port; it raises ConnectionLost."""
        self.seconds = seconds
        """Longest that one question waits for its final answer."""
        self._connect = connect
        self.interrupted = False
        """Whether a connection was lost with a question on it, since this was last set to False: a broker may
        have it still, and take it late."""
        self._bootstrap = bootstrap
        self._connections: dict[tuple[Address, bool], Connection] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}
        self._nodes: dict[int, Address] = {}
        self._leaders: dict[str, dict[int, int]] = {}
        self._ids: dict[str, UUID] = {}
        """Ids of topics whose names may have been others'."""
        self._agreed: set[str] = set()
        """Those of which the coordinator of transactions has told the same id."""

    def __enter__(self) -> Brokers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def deadline(self) -> Deadline:
        return Deadline(self.seconds)

    def connection(self, address: Address, *, records: bool = False) -> Connection:
        """The connection to an address; `records`: another one, whose answers may be under way for long.

        Raises ConnectionLost.
        """
        found = self._connections.get((address, records))
        if found is None:
            found = self._connections[address, records] = self._connect(*address)
        return found

    def drop(self, address: Address, *, records: bool = False) -> None:
        """End the connection to an address, if there is one."""
        connection = self._connections.pop((address, records), None)
        if connection is not None:
            self.interrupted = True
            connection.close()

    # Topics.

    def partitions(self, topic: str) -> int:
        """Number of a topic's partitions; raises SinkError for a topic that is not there."""
        if topic not in self._leaders:
            self._learn_topic(topic, expected=False)
        return len(self._leaders[topic])

    def expect(self, topic: str) -> None:
        """Learn the leaders of a topic that is there, though a broker may not know of it yet."""
        if topic not in self._leaders:
            self._learn_topic(topic, expected=True)

    def expect_renamed(self, topic: str, topic_id: UUID, transactional_id: str) -> None:
        """As `expect`, for a topic whose name another may have had until just now.

        Records go by names. Where neither the coordinator of their transaction nor a leader knew of that,
        they would come into the other topic. So the coordinator is asked, and so is another that has its
        place from then on: a transaction has topics by their ids, and a leader takes no records for one that
        the coordinator has not added.
        """
        if topic in self._agreed and self._ids[topic] == topic_id:
            return
        self._ids[topic] = topic_id
        deadline = self.deadline()
        while not (self._learn([topic], expected=True) and self._agrees(topic, transactional_id)):
            deadline.pause(f"topic {topic!r}", "a broker does not know yet that it has this name")
        self._agreed.add(topic)

    def _agrees(self, topic: str, transactional_id: str) -> bool:
        try:
            return self._knows(self._coordinator(TRANSACTION, transactional_id), [topic])
        except ConnectionLost:
            self.forget(TRANSACTION, [transactional_id])
            return False

    def _knows(self, address: Address, topics: Sequence[str]) -> bool:
        """Whether a broker knows topics by the ids that they have now. Raises ConnectionLost."""
        answer = self.ask(address, METADATA, metadata_request(topics))
        told = {one.name: one.topic_id for one in answer.topics}
        return all(told.get(topic) == self._ids[topic] for topic in topics)

    def _learn_topic(self, topic: str, *, expected: bool) -> None:
        deadline = self.deadline()
        while not self._learn([topic], expected=expected):
            deadline.pause(f"topic {topic!r}", "no broker told of its partitions")

    def leader(self, topic: str, partition: int) -> Address | None:
        """The leader as it was last learnt; None while there is none."""
        return self._nodes.get(self._leaders.get(topic, {}).get(partition, -1))

    def refresh(self, topics: Iterable[str]) -> None:
        """Learn leaders once more, as far as a broker answers."""
        self._learn([*topics])

    def _learn(self, topics: list[str], *, expected: bool = False) -> bool:
        answer = self._any(METADATA, metadata_request(topics))
        if answer is None:
            return False
        self._know(answer)
        late = False
        for topic in answer.topics:
            if topic.error_code is ErrorCode.none:
                if topic.name in self._ids and topic.topic_id != self._ids[topic.name]:
                    late = True  # it tells of the topic that had the name before
                    continue
                self._leaders[topic.name] = {one.partition_index: one.leader_id for one in topic.partitions}
            elif (
                topic.error_code is ErrorCode.unknown_topic_or_partition
                and topic.name not in self._leaders
                and not expected
            ):
                raise SinkError(f"there is no topic {topic.name!r}: create it, or mend the name")
            elif topic.error_code not in RETRIABLE:
                raise SinkError(f"topic {topic.name!r}: {topic.error_code.name}")
        return not late and all(self._leaders.get(topic) for topic in topics)

    def _know(self, metadata: Any) -> None:
        self._nodes = {one.node_id: Address(one.host, one.port) for one in metadata.brokers}

    def all_nodes(self) -> list[Address]:
        """Every broker that the cluster has at present; empty if none answers."""
        answer = self._any(METADATA, metadata_request(()))
        if answer is not None:
            self._know(answer)
        return list(self._nodes.values())

    def _any(self, api: Api, request: Any) -> Any:
        """The answer of any broker, None if none answers."""
        known = [*self._nodes.values(), *self._bootstrap]
        for address in dict.fromkeys(random.sample(known, len(known))):
            with suppress(ConnectionLost):
                return self.ask(address, api, request)
        return None

    # Questions.

    def ask(self, address: Address, api: Api, request: Any) -> Any:
        """The answer of one broker. Raises ConnectionLost, and has dropped the connection then."""
        try:
            return self.connection(address).ask(api, request)
        except ConnectionLost:
            self.drop(address)
            raise

    def ask_coordinator(
        self, kind: int, name: str, api: Api, request: Any, code_of: Callable[[Any], ErrorCode]
    ) -> Any:
        """The final answer of the coordinator of a group or a transactional id. Raises Unanswered."""
        deadline = self.deadline()
        what = f"{'group' if kind == GROUP else 'transactional id'} {name!r}"
        while True:
            reason: object
            try:
                answer = self.ask(self._coordinator(kind, name), api, request)
            except ConnectionLost as error:
                self.forget(kind, [name])
                reason = error
            else:
                code = code_of(answer)
                if code not in RETRIABLE:
                    return answer
                if code in _MOVED:
                    self.forget(kind, [name])
                reason = code.name
            deadline.pause(what, reason)

    def _coordinator(self, kind: int, name: str) -> Address:
        """The coordinator of a group or transactional id; raises ConnectionLost where none is known yet."""
        known = self._coordinators.get((kind, name))
        if known is not None:
            return known
        request = FIND_COORDINATOR.request.FindCoordinatorRequest(key=name, key_type=kind)
        answer = self._any(FIND_COORDINATOR, request)
        if answer is None:
            raise ConnectionLost(f"no broker of {', '.join(map(str, self._bootstrap))} answers")
        if answer.error_code is not ErrorCode.none:
            if answer.error_code not in RETRIABLE:
                raise SinkError(f"no coordinator of {name!r}: {answer.error_code.name}")
            raise ConnectionLost(f"no coordinator: {answer.error_code.name}")
        found = Address(answer.host, answer.port)
        if kind == TRANSACTION and self._ids and not self._knows(found, [*self._ids]):
            raise ConnectionLost(f"coordinator {found} does not know yet which topics have their names")
        self._coordinators[kind, name] = found
        return found

    def by_coordinator(self, kind: int, names: Iterable[str]) -> Iterator[tuple[Address, list[str]]]:
        """Names by the broker that coordinates them. Raises ConnectionLost."""
        found: dict[Address, list[str]] = {}
        for name in names:
            found.setdefault(self._coordinator(kind, name), []).append(name)
        yield from found.items()

    def forget(self, kind: int, names: Iterable[str]) -> None:
        """Look for the coordinators of these at the next question."""
        for name in names:
            self._coordinators.pop((kind, name), None)
        if kind == TRANSACTION:
            self._agreed.clear()


def first_code(codes: Iterable[ErrorCode]) -> ErrorCode:
    """The first that is an error and final, else the first that is an error, else NONE."""
    wrong = [code for code in codes if code is not ErrorCode.none]
    return next((code for code in wrong if code not in RETRIABLE), wrong[0] if wrong else ErrorCode.none)
