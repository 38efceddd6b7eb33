"""AlterPartitionReassignments and ListPartitionReassignments: partitions move to other nodes (KIP-455).

The answer to the first comes when the controller has committed the targets; moving takes its time behind it,
and the second tells what is still on its way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.authorization import NO_CLUSTER, may_with_cluster
from strandline.node.kafka.handlers.cluster_changes import submit, topic_named
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE, deadline_after
from strandline.node.kafka.handlers.failure import Failure
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.runtime.gather import gather_bounded
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.controller.controller_commands import MoveReplicas
from strandline.statemachine.controller.controller_state import Topic

_DONE = Failure(ErrorCode.none, None)
_NO_TOPIC = "This server does not host this topic-partition."
_TWICE = Failure(ErrorCode.invalid_request, "The partition is named more than once in the request.")
_OTHER_COUNT = "The replication factor of the partition would change, and the request does not allow it."


async def alter_partition_reassignments(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """Answers when every target is in the controller's log, or refused."""
    payload = request.payload
    deadline = deadline_after(context, payload.timeout)
    keep_count = not getattr(payload, "allow_replication_factor_change", True)
    named = Counter(
        (topic.name, partition.partition_index) for topic in payload.topics for partition in topic.partitions
    )

    refused = None if may_with_cluster(context, request, Operation.ALTER) else NO_CLUSTER

    async def moved(asked: tuple[str, int, tuple[int, ...] | None]) -> Failure:
        if refused:
            return refused
        name, number, target = asked
        if named[name, number] > 1:
            return _TWICE
        topic = await topic_named(context, name, deadline)
        if isinstance(topic, Failure):
            return topic
        if keep_count and target is not None and _changes_count(context, topic, number, target):
            return Failure(ErrorCode.invalid_replication_factor, _OTHER_COUNT)
        outcome = await submit(context, MoveReplicas(topic.topic_id, number, target), deadline)
        if isinstance(outcome, Failure):
            gone = outcome.code is ErrorCode.unknown_topic_id
            return Failure(ErrorCode.unknown_topic_or_partition, _NO_TOPIC) if gone else outcome
        return _DONE

    wanted = [
        (topic.name, partition.partition_index, _target(partition))
        for topic in payload.topics
        for partition in topic.partitions
    ]
    results = iter(await gather_bounded(wanted, moved))
    return a.AlterPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE,
        error_code=refused.code if refused else ErrorCode.none,
        error_message=refused.message if refused else None,
        responses=tuple(
            a.ReassignableTopicResponse(
                name=topic.name,
                partitions=tuple(
                    _row(a, partition.partition_index, next(results)) for partition in topic.partitions
                ),
            )
            for topic in payload.topics
        ),
    )


def _row(a: ResponseTypes, number: int, result: Failure) -> Any:
    return a.ReassignablePartitionResponse(
        partition_index=number, error_code=result.code, error_message=result.message
    )


def _target(partition: Any) -> tuple[int, ...] | None:
    return None if partition.replicas is None else tuple(partition.replicas)


def _changes_count(context: BrokerContext, topic: Topic, number: int, target: tuple[int, ...]) -> bool:
    if not 0 <= number < len(topic.partitions):
        return False
    partition = topic.partitions[number]
    move = context.controller.machine.moves.get(partition.group)
    return len(target) != len(move.original if move is not None else partition.replicas)


async def list_partition_reassignments(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """The moves that have not ended: of all topics, or of the partitions that are asked for."""
    if not may_with_cluster(context, request, Operation.DESCRIBE):
        return a.ListPartitionReassignmentsResponse(
            throttle_time=NO_THROTTLE,
            error_code=NO_CLUSTER.code,
            error_message=NO_CLUSTER.message,
            topics=(),
        )
    machine = context.controller.machine
    deadline = deadline_after(context, request.payload.timeout)
    await context.controller.catch_up(max(deadline - context.loop.time(), 0.0))
    moving: dict[str, list[int]] = {}
    for group in machine.moves:
        place = machine.place_of(group)
        topic = machine.topic_by_id(place.topic_id) if place is not None else None
        if place is not None and topic is not None:
            moving.setdefault(topic.name, []).append(place.partition)
    asked = request.payload.topics
    if asked is not None:
        named = {topic.name: set(topic.partition_indexes) for topic in asked}
        moving = {
            name: [number for number in numbers if number in named.get(name, ())]
            for name, numbers in moving.items()
        }
    return a.ListPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        topics=tuple(
            a.OngoingTopicReassignment(name=name, partitions=tuple(_ongoing(context, a, name, numbers)))
            for name, numbers in moving.items()
            if numbers
        ),
    )


def _ongoing(context: BrokerContext, a: ResponseTypes, name: str, numbers: Iterable[int]) -> Iterable[Any]:
    topic = context.controller.machine.topic(name)
    for number in sorted(numbers):
        if topic is None:
            continue
        partition = topic.partitions[number]
        move = context.controller.machine.moves[partition.group]
        yield a.OngoingPartitionReassignment(
            partition_index=number,
            replicas=partition.replicas,
            adding_replicas=tuple(node for node in move.target if node not in move.original),
            removing_replicas=tuple(node for node in partition.replicas if node not in move.target),
        )
