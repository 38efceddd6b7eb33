"""CreatePartitions: topics grow, they never shrink."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.authorization import NO_TOPIC, may_with_topic
from strandline.node.kafka.handlers.cluster_changes import THROTTLED, submit, topic_named, wait_for_leaders
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.create_topics import DUPLICATE
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE, deadline_after
from strandline.node.kafka.handlers.failure import Failure, refused
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.runtime.gather import gather_bounded
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.controller.controller_commands import CreatePartitions
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.kafka_errors import Refused


async def create_partitions(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """Answers when every topic has grown and its partitions have leaders, or after `LEADER_SECONDS`."""
    payload = request.payload
    deadline = deadline_after(context, payload.timeout)
    named = Counter(topic.name for topic in payload.topics)
    wanted = {topic.name: topic for topic in payload.topics}

    async def grow(asked: Any) -> Topic | Failure:
        if named[asked.name] > 1:
            return DUPLICATE
        if not may_with_topic(context, request, Operation.ALTER, asked.name):
            return NO_TOPIC
        return await _grow(context, request, asked, deadline)

    results = await gather_bounded(wanted.values(), grow)
    if not payload.validate_only:
        await wait_for_leaders(context, [topic for topic in results if isinstance(topic, Topic)], deadline)
    return a.CreatePartitionsResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(
            a.CreatePartitionsTopicResult(
                name=name,
                error_code=result.code if isinstance(result, Failure) else ErrorCode.none,
                error_message=result.message if isinstance(result, Failure) else None,
            )
            for name, result in zip(wanted, results, strict=True)
        ),
    )


async def _grow(context: BrokerContext, request: Request, asked: Any, deadline: float) -> Topic | Failure:
    topic = await topic_named(context, asked.name, deadline)
    if isinstance(topic, Failure):
        return topic
    assignments = None
    if asked.assignments is not None:
        assignments = [tuple(assignment.broker_ids) for assignment in asked.assignments]
    command = CreatePartitions(topic.topic_id, asked.count, assignments)
    if request.payload.validate_only:
        planned = context.controller.machine.validate(command)
        return refused(planned) if isinstance(planned, Refused) else planned
    more = max(asked.count - len(topic.partitions), 0)
    if not context.throttles.may_mutate(request, more):
        return THROTTLED
    outcome = await submit(context, command, deadline)
    if isinstance(outcome, Topic):
        return outcome
    assert isinstance(outcome, Failure)
    if outcome.code is not ErrorCode.request_timed_out:
        context.throttles.give_back(request, more)
    if outcome.code is ErrorCode.unknown_topic_id:
        return Failure(ErrorCode.unknown_topic_or_partition, "The topic was deleted meanwhile.")
    return outcome
