"""Finds the partition of a request, and decides whether this node may answer for it or which node leads it.

Produce, Fetch, ListOffsets and OffsetForLeaderEpoch share these checks, in the order of Kafka's broker: first
whether the topic and partition exist, then leadership, then the leader epoch that the client believes in
(KIP-320). If another node leads, newer versions of Produce and Fetch name it in the answer, so that the
client moves at once instead of asking for metadata (KIP-951).
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.authorization import TOPIC_REFUSED, may_with_topic
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.partition.partition import Partition
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.internal_topics import INTERNAL_TOPICS

NO_LEADER_EPOCH = -1
"""Leader epoch in the requests of a client that does not know it, or does not want it checked."""


def topic_of(
    context: BrokerContext, request: Request, operation: Operation, name: str | None, topic_id: UUID | None
) -> Topic | ErrorCode:
    """As `any_topic`, but an internal one has no records to write, to read or to delete:
    INVALID_TOPIC_EXCEPTION, on which clients end."""
    return _plain(any_topic(context, request, operation, name, topic_id))


def plain_topic(context: BrokerContext, name: str) -> Topic | ErrorCode:
    """As `topic_of`, where the request's client may act on all topics."""
    return _plain(context.controller.machine.topic(name) or ErrorCode.unknown_topic_or_partition)


def _plain(found: Topic | ErrorCode) -> Topic | ErrorCode:
    internal = isinstance(found, Topic) and found.name in INTERNAL_TOPICS
    return ErrorCode.invalid_topic_exception if internal else found


def any_topic(
    context: BrokerContext, request: Request, operation: Operation, name: str | None, topic_id: UUID | None
) -> Topic | ErrorCode:
    """The topic a request names: by id where its version has ids (`name` is None then), else by name.

    TOPIC_AUTHORIZATION_FAILED where its client may not do this to it, whether or not such a name exists.
    """
    machine = context.controller.machine
    if name is not None and not may_with_topic(context, request, operation, name):
        return TOPIC_REFUSED
    if name is not None:
        found = machine.topic(name)
    else:
        found = machine.topic_by_id(topic_id.bytes) if topic_id is not None else None
    if found is None:
        return ErrorCode.unknown_topic_id if name is None else ErrorCode.unknown_topic_or_partition
    if name is None and not may_with_topic(context, request, operation, found.name):
        return TOPIC_REFUSED
    return found


def led_partition(context: BrokerContext, topic: Topic, number: int) -> Partition | ErrorCode:
    """The replica here, if it leads and may be read and written."""
    if not 0 <= number < len(topic.partitions):
        return ErrorCode.unknown_topic_or_partition
    partition = context.partitions.get(topic.topic_id, number)
    if partition is None or not partition.leads:
        return ErrorCode.not_leader_or_follower
    return partition


def check_leader_epoch(partition: Partition, believed: int) -> ErrorCode:
    """Whether a client's leader epoch is the present one.

    An older one is fenced: the client must learn about the new leader before it goes on. A newer one is
    unknown here: this node has been replaced, or is late, and the client comes back.
    """
    if believed == NO_LEADER_EPOCH or believed == partition.leader_epoch:
        return ErrorCode.none
    if believed < partition.leader_epoch:
        return ErrorCode.fenced_leader_epoch
    return ErrorCode.unknown_leader_epoch


class LeaderHints:
    """Collects, for one answer, the leaders of the partitions it refuses, and those nodes' addresses."""

    def __init__(self, context: BrokerContext, a: ResponseTypes, listener: str) -> None:
        self._context = context
        self._listener = listener
        self._a = a
        self._endpoints: dict[int, Any] = {}

    def fields(self, code: ErrorCode, topic: Topic | ErrorCode, number: int) -> dict[str, Any]:
        """The fields of a partition's answer that name its leader; none where that would not help."""
        if code is not ErrorCode.not_leader_or_follower and code is not ErrorCode.fenced_leader_epoch:
            return {}
        if isinstance(topic, ErrorCode):
            return {}
        leader = self._context.leaders.leader_of(topic.partitions[number].group)
        if leader is None:
            return {}
        if leader.node == self._context.node_id and code is ErrorCode.not_leader_or_follower:
            # The replica is going: a client sent back here would ask again without a pause.
            return {}
        node = self._context.controller.machine.nodes.get(leader.node)
        address = None if node is None else node.address(self._listener)
        if node is None or address is None:
            return {}
        self._endpoints[leader.node] = self._a.NodeEndpoint(
            node_id=leader.node, host=address.host, port=address.port, rack=node.rack or None
        )
        return {"current_leader": self._a.LeaderIdAndEpoch(leader_id=leader.node, leader_epoch=leader.term)}

    def endpoints(self) -> tuple[Any, ...]:
        """The nodes that were named, each once."""
        return tuple(self._endpoints.values())
