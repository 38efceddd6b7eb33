"""A topic in a Metadata response, encoded once for as long as nothing about it changes.

Clients ask for the same topics again and again, every few minutes and after every error. To build and encode
a partition takes 25 µs, to look up its leader one. So the encoded bytes are kept, for each partition alone,
and only partitions with another leader are encoded again. Ten thousand partitions would still hold up
everything else for a quarter of a second, heartbeats included: the work is cut into slices.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from struct import Struct
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from kio.schema.errors import ErrorCode

from strandline.node.controller.leaders import Leader
from strandline.node.kafka.wire.handler import EncodedBody
from strandline.node.kafka.wire.response_encoder import encode_plain, write_varint
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.kafka.wire.schema import entity_layout
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_state import PartitionAssignment, Topic
from strandline.statemachine.internal_topics import INTERNAL_TOPICS

INTERNAL: Final = INTERNAL_TOPICS | {"__share_group_state"}
"""Topics that Kafka's clients take for the broker's own; the last one only there."""
NO_LEADER: Final = -1
SLICE: Final = 2_500
"""In units of ASKED; some three milliseconds."""
ASKED: Final = 1
ENCODED: Final = 25
DECIDED: Final = 50
"""All operations with one topic, decided by the ACLs."""
_LENGTH: Final = Struct(">i")

LeaderOf = Callable[[int], Leader | None]


class Breath:
    """Counts the work done in a long task, and yields to the event loop after each slice."""

    def __init__(self) -> None:
        self._left = SLICE

    async def spend(self, amount: int) -> None:
        """Count work of this amount; a slice of it is a few milliseconds."""
        self._left -= amount
        if self._left <= 0:
            self._left = SLICE
            await asyncio.sleep(0)


@dataclass(slots=True)
class _Kept:
    topic: Topic
    empty: Any
    """The topic without partitions, as an entity."""
    leaders: list[Leader | None]
    rows: list[bytes]
    """Each partition, encoded as its leader says."""
    whole: bytes | None
    """All of it; None when a row is newer."""


class EncodedTopics:
    """The topics of one replica of the controller, for the clients of one listener."""

    def __init__(self, machine: Controller, listener: str) -> None:
        self._listener = listener
        # Not the machine itself: what is kept by it would keep it, and everything around it, for good.
        self._machine = ref(machine)
        self._version = -1
        self._live: frozenset[int] = frozenset()
        self._kept: dict[tuple[bytes, int, int], _Kept] = {}

    async def encode(
        self,
        a: ResponseTypes,
        version: int,
        topic: Topic,
        leader_of: LeaderOf,
        operations: int,
        breath: Breath,
    ) -> bytes:
        """The topic in the response's `version`; `operations`: those that the client may do, or NOT_ASKED.

        Partitions whose leader changed since the last time are encoded again, in slices. Each has its state
        at the moment it is encoded, so two partitions of one answer may come from different moments.
        """
        machine = self._machine()
        assert machine is not None, "only a node that has the machine asks"
        if machine.version != self._version:
            self._catch_up(machine)
        live, key = self._live, (topic.topic_id, version, operations)
        kept = self._kept.get(key)
        if kept is None:
            size = len(topic.partitions)
            kept = _Kept(topic, topic_answer(a, topic, operations), [None] * size, [b""] * size, None)
            self._kept[key] = kept
        leaders, rows = kept.leaders, kept.rows
        for number, partition in enumerate(topic.partitions):
            leader = leader_of(partition.group)
            if leader != leaders[number] or not rows[number]:
                leaders[number], kept.whole = leader, None
                rows[number] = encoded(partition_answer(a, version, number, partition, leader, live))
                await breath.spend(ENCODED)
            else:
                await breath.spend(ASKED)
        if kept.whole is None:
            kept.whole = with_elements(kept.empty, "partitions", rows)
        return kept.whole

    def _catch_up(self, machine: Controller) -> None:
        """Forget encoded topics that changed with the cluster; all of them if nodes came or went."""
        self._version = machine.version
        live = frozenset(
            node
            for node, registration in machine.nodes.items()
            if not registration.fenced and registration.address(self._listener) is not None
        )
        if live != self._live:
            self._live = live
            self._kept.clear()
        gone = [key for key, kept in self._kept.items() if machine.topic_by_id(key[0]) is not kept.topic]
        for key in gone:
            del self._kept[key]


_OF_REPLICA: Final[WeakKeyDictionary[Controller, dict[str, EncodedTopics]]] = WeakKeyDictionary()
"""A process has one replica of the controller; a simulation has one for each of its nodes."""


def encoded_topics(machine: Controller, listener: str) -> EncodedTopics:
    """The encoded topics of this replica of the controller, as clients of a listener are told them."""
    of_listeners = _OF_REPLICA.setdefault(machine, {})
    kept = of_listeners.get(listener)
    if kept is None:
        kept = of_listeners[listener] = EncodedTopics(machine, listener)
    return kept


def topic_answer(a: ResponseTypes, topic: Topic, operations: int) -> Any:
    """A topic that exists, as an entity without its partitions."""
    return a.MetadataResponseTopic(
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=uuid.UUID(bytes=topic.topic_id),
        is_internal=topic.name in INTERNAL,
        partitions=(),
        topic_authorized_operations=operations,
    )


def partition_answer(
    a: ResponseTypes,
    version: int,
    number: int,
    partition: PartitionAssignment,
    leader: Leader | None,
    live: frozenset[int],
) -> Any:
    """One partition, as an entity of the response's `version`; `live`: nodes that clients may be sent to."""
    replicas = partition.replicas
    alive = replicas if live.issuperset(replicas) else tuple(node for node in replicas if node in live)
    code = ErrorCode.none
    if leader is None or leader.node not in live:
        # A client could not connect to a leader that is not among the brokers of the answer.
        leader, code = None, ErrorCode.leader_not_available
    elif version == 0 and len(alive) < len(replicas):
        code = ErrorCode.replica_not_available  # Version 0 cannot say which replicas are offline.
    return a.MetadataResponsePartition(
        error_code=code,
        partition_index=number,
        leader_id=NO_LEADER if leader is None else leader.node,
        leader_epoch=-1 if leader is None else leader.term,
        replica_nodes=alive if version == 0 else replicas,
        isr_nodes=alive,
        offline_replicas=() if alive is replicas else tuple(node for node in replicas if node not in live),
    )


def encoded(entity: Any) -> bytes:
    """One element of an array of the response."""
    return encode_plain(entity)


def with_elements(entity: Any, field: str, elements: Sequence[bytes]) -> bytes:
    """An entity whose array `field` is empty, encoded with these elements in it."""
    empty = encode_plain(entity)
    flexible, behind = _behind(entity.__class__, field)
    count = write_varint(len(elements) + 1) if flexible else _LENGTH.pack(len(elements))
    start = len(empty) - behind
    none = 1 if flexible else _LENGTH.size
    return b"".join((empty[: start - none], count, *elements, empty[start:]))


def with_topics(response: Any, topics: Sequence[bytes]) -> EncodedBody:
    """A response that has no topics yet, with these."""
    return EncodedBody([with_elements(response, "topics", topics)])


@cache
def _behind(entity: type[Any], field: str) -> tuple[bool, int]:
    """Whether lengths are compact, and how many bytes follow the array: all of fixed size, and no tags."""
    layout = entity_layout(entity)
    names = [plain.name for plain in layout.plain]
    behind = layout.plain[names.index(field) + 1 :]
    assert not layout.tagged
    sizes = [plain.fixed_bytes for plain in behind if not plain.array]
    assert len(sizes) == len(behind)
    return layout.flexible, sum(size for size in sizes if size is not None) + layout.flexible
