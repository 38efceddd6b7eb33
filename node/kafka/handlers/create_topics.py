"""CreateTopics: Kafka's checks of the request as a whole; the controller checks the topics."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from strandline.node.controller.members import default_replicas
from strandline.node.kafka.handlers.authorization import (
    NO_TOPIC,
    TOPIC_REFUSED,
    may_with_cluster,
    may_with_topic,
)
from strandline.node.kafka.handlers.cluster_changes import THROTTLED, submit, wait_for_leaders
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE, deadline_after
from strandline.node.kafka.handlers.failure import Failure, refused
from strandline.node.kafka.handlers.setting_answers import source_of
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.runtime.gather import gather_bounded
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.controller.controller_commands import CreateTopic
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.controller.controller_topics import MAX_PARTITIONS
from strandline.statemachine.controller.topic_config import SETTINGS
from strandline.statemachine.kafka_errors import Refused

USE_DEFAULT: Final = -1
"""Kafka's way to say in a request: as the broker is configured (KIP-464)."""
DUPLICATE: Final = Failure(ErrorCode.invalid_request, "Duplicate topic name.")


def new_topic(
    context: BrokerContext,
    name: str,
    *,
    partitions: int = USE_DEFAULT,
    replication_factor: int = USE_DEFAULT,
    assignments: Sequence[Sequence[int]] | None = None,
    configs: Sequence[tuple[str, str | None]] = (),
) -> CreateTopic:
    """The command that creates a topic, under an id of its own and with this node's defaults."""
    if assignments is None:
        topics = context.config.topics
        partitions = topics.partitions if partitions == USE_DEFAULT else partitions
        replicas = replication_factor
        if replication_factor == USE_DEFAULT:
            replicas = default_replicas(context.config, context.controller.machine)
    else:
        replicas = replication_factor
    topic_id = uuid.UUID(bytes=context.rng.randbytes(16), version=4).bytes
    applied = context.controller.machine.applied_index
    return CreateTopic(topic_id, name, partitions, replicas, assignments, configs, applied)


async def create_topics(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """Answers when every topic is committed and has leaders, or after `LEADER_SECONDS` without them."""
    payload = request.payload
    deadline = deadline_after(context, payload.timeout)
    named = Counter(topic.name for topic in payload.topics)
    wanted = {topic.name: topic for topic in payload.topics}
    too_many = _too_many(context, wanted.values())

    any_name = may_with_cluster(context, request, Operation.CREATE, quiet=True)

    async def create(asked: Any) -> Topic | Failure:
        if named[asked.name] > 1:
            return DUPLICATE
        if not any_name and not may_with_topic(context, request, Operation.CREATE, asked.name):
            return NO_TOPIC
        if too_many:
            return too_many
        if payload.validate_only:
            return await _create(context, asked, True, deadline)
        partitions = _count(context, asked)
        if not context.throttles.may_mutate(request, partitions):
            return THROTTLED
        made = await _create(context, asked, False, deadline)
        if isinstance(made, Failure) and made.code is not ErrorCode.request_timed_out:
            context.throttles.give_back(request, partitions)
        return made

    results = await gather_bounded(wanted.values(), create)
    if not payload.validate_only:
        await wait_for_leaders(context, [topic for topic in results if isinstance(topic, Topic)], deadline)
    return a.CreateTopicsResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            _answer(
                a,
                name,
                topic,
                payload.validate_only,
                may_with_topic(context, request, Operation.DESCRIBE_CONFIGS, name, quiet=True),
            )
            for name, topic in zip(wanted, results, strict=True)
        ),
    )


def _too_many(context: BrokerContext, topics: Any) -> Failure | None:
    """Refuse a request that creates too much, as Kafka: it could keep the controller busy for minutes."""
    if sum(_count(context, topic) for topic in topics) <= MAX_PARTITIONS:
        return None
    return Failure(ErrorCode.policy_violation, "Excessively large number of partitions per request.")


def _count(context: BrokerContext, asked: Any) -> int:
    """Partitions that a topic would have."""
    if asked.num_partitions == USE_DEFAULT and not asked.assignments:
        return context.config.topics.partitions
    return max(len(asked.assignments) or asked.num_partitions, 0)


async def _create(
    context: BrokerContext, asked: Any, validate_only: bool, deadline: float
) -> Topic | Failure:
    assignments = _assignments(asked)
    if isinstance(assignments, Failure):
        return assignments
    command = new_topic(
        context,
        asked.name,
        partitions=asked.num_partitions,
        replication_factor=asked.replication_factor,
        assignments=assignments,
        configs=[(config.name, config.value) for config in asked.configs],
    )
    if validate_only:
        planned = context.controller.machine.validate(command)
        return refused(planned) if isinstance(planned, Refused) else planned
    made = await submit(context, command, deadline)
    if isinstance(made, Failure) and made.code is ErrorCode.unknown_topic_id:
        # A retry met the deletion of what the first attempt had created: it was created, as was asked.
        return Topic(command.topic_id, command.name, (), {}, 0, 0)
    assert isinstance(made, (Topic, Failure))
    return made


def _assignments(asked: Any) -> list[tuple[int, ...]] | Failure | None:
    if not asked.assignments:
        return None
    given: dict[int, tuple[int, ...]] = {}
    for assignment in asked.assignments:
        if assignment.partition_index in given:
            reason = f"Found multiple manual partition assignments for partition {assignment.partition_index}"
            return Failure(ErrorCode.invalid_replica_assignment, reason)
        given[assignment.partition_index] = tuple(assignment.broker_ids)
    if sorted(given) != list(range(len(given))):
        reason = "partitions should be a consecutive 0-based integer sequence"
        return Failure(ErrorCode.invalid_replica_assignment, reason)
    return [given[index] for index in range(len(given))]


def _answer(a: ResponseTypes, name: str, topic: Topic | Failure, validate_only: bool, shown: bool) -> Any:
    if isinstance(topic, Failure):
        return a.CreatableTopicResult(
            name=name,
            topic_id=None,
            error_code=topic.code,
            error_message=topic.message,
            num_partitions=-1,
            replication_factor=-1,
            configs=(),
        )
    return a.CreatableTopicResult(
        name=name,
        topic_id=None if validate_only else uuid.UUID(bytes=topic.topic_id),
        error_code=ErrorCode.none,
        error_message=None,
        topic_config_error_code=(ErrorCode.none if shown else TOPIC_REFUSED).value,
        num_partitions=len(topic.partitions) if topic.partitions and shown else -1,
        replication_factor=topic.replication_factor if topic.partitions and shown else -1,
        configs=tuple(
            a.CreatableTopicConfigs(
                name=setting.name,
                value=setting.text(setting.of(topic.configs)),
                read_only=False,
                config_source=source_of(setting, topic.configs),
                is_sensitive=False,
            )
            for setting in SETTINGS.values()
        )
        if shown
        else (),
    )
