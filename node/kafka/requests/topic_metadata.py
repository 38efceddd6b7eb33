"""A topic as Metadata tells it, encoded once for as long as nothing about it changes.

Clients ask for the same topics again and again, every few minutes and after every error. Building and
encoding a thousand partitions takes milliseconds, in which no other request is served; asking who leads them
takes a tenth of one. So what was encoded is kept, and compared with the leaders of the moment.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import cache
from struct import Struct
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary, ref

from kio.schema.errors import ErrorCode

from node.controller.leaders import Leader
from node.kafka.answers import Answers
from node.kafka.handler import EncodedBody
from node.kafka.requests.cluster import NOT_ASKED, TOPIC_OPERATIONS
from node.kafka.response_encoder import encode, write_varint
from node.kafka.schema import EntityLayout, entity_layout
from statemachine.controller import Controller
from statemachine.controller_state import Partition, Topic
from statemachine.internal_topics import INTERNAL_TOPICS

INTERNAL: Final = INTERNAL_TOPICS | {"__share_group_state"}
"""Topics that Kafka's clients take for the broker's own; the last one only there."""
NO_LEADER: Final = -1
_LENGTH: Final = Struct(">i")

LeaderOf = Callable[[int], Leader | None]


class _Kept(NamedTuple):
    topic: Topic
    leaders: list[Leader | None]
    encoded: bytes


class EncodedTopics:
    """The topics of one replica of the controller."""

    def __init__(self, machine: Controller) -> None:
        # Not the machine itself: what is kept by it would keep it, and everything around it, for good.
        self._machine = ref(machine)
        self._version = -1
        self._live: frozenset[int] = frozenset()
        self._kept: dict[tuple[bytes, int, bool], _Kept] = {}

    def encode(self, a: Answers, version: int, topic: Topic, leader_of: LeaderOf, operations: bool) -> bytes:
        """The topic in the response's `version`; `operations`: whether the client asked what it may do."""
        machine = self._machine()
        assert machine is not None, "who asks has the machine"
        if machine.version != self._version:
            self._catch_up(machine)
        leaders = [leader_of(partition.group) for partition in topic.partitions]
        key = (topic.topic_id, version, operations)
        kept = self._kept.get(key)
        if kept is not None and kept.leaders == leaders:
            return kept.encoded
        encoded = encode_topic(topic_answer(a, version, topic, leaders, self._live, operations))
        self._kept[key] = _Kept(topic, leaders, encoded)
        return encoded

    def _catch_up(self, machine: Controller) -> None:
        """Forget what a change of the cluster has made wrong: all if nodes came or went, or a topic's own."""
        self._version = machine.version
        live = frozenset(node for node, registration in machine.nodes.items() if not registration.fenced)
        if live != self._live:
            self._live = live
            self._kept.clear()
        gone = [key for key, kept in self._kept.items() if machine.topic_by_id(key[0]) is not kept.topic]
        for key in gone:
            del self._kept[key]


_OF_REPLICA: Final[WeakKeyDictionary[Controller, EncodedTopics]] = WeakKeyDictionary()
"""A process has one replica of the controller; a simulation has one for each of its nodes."""


def encoded_topics(machine: Controller) -> EncodedTopics:
    """What is kept of this replica's topics."""
    kept = _OF_REPLICA.get(machine)
    if kept is None:
        kept = _OF_REPLICA[machine] = EncodedTopics(machine)
    return kept


def topic_answer(
    a: Answers,
    version: int,
    topic: Topic,
    leaders: Sequence[Leader | None],
    live: frozenset[int],
    operations: bool,
) -> Any:
    """A topic that exists, as an entity."""
    return a.MetadataResponseTopic(
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=uuid.UUID(bytes=topic.topic_id),
        is_internal=topic.name in INTERNAL,
        partitions=tuple(
            _partition(a, version, number, partition, leader, live)
            for number, (partition, leader) in enumerate(zip(topic.partitions, leaders, strict=True))
        ),
        topic_authorized_operations=TOPIC_OPERATIONS if operations else NOT_ASKED,
    )


def _partition(
    a: Answers, version: int, number: int, partition: Partition, leader: Leader | None, live: frozenset[int]
) -> Any:
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


def encode_topic(entity: Any) -> bytes:
    """One element of the response's topics."""
    return b"".join(encode(entity, b""))


def with_topics(response: Any, topics: Sequence[bytes]) -> EncodedBody:
    """A response that has no topics yet, with these."""
    (empty,) = encode(response, b"")
    flexible, behind = _behind_topics(entity_layout(type(response)))
    count = write_varint(len(topics) + 1) if flexible else _LENGTH.pack(len(topics))
    start = len(empty) - behind
    none = 1 if flexible else _LENGTH.size
    return EncodedBody([b"".join((empty[: start - none], count, *topics, empty[start:]))])


@cache
def _behind_topics(layout: EntityLayout) -> tuple[bool, int]:
    """Whether lengths are compact, and how many bytes follow the topics: all of fixed size, and no tags."""
    names = [field.name for field in layout.plain]
    behind = layout.plain[names.index("topics") + 1 :]
    assert not layout.tagged
    sizes = [field.fixed_bytes for field in behind if not field.array]
    assert len(sizes) == len(behind)
    return layout.flexible, sum(size for size in sizes if size is not None) + layout.flexible
