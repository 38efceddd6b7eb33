"""DeleteTopics, by name and by id (version 6).

A name becomes an id here, and the command goes by id: one that is late never deletes a later topic of the
same name.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.authorization import NO_TOPIC, may_with_cluster, may_with_topic
from strandline.node.kafka.handlers.cluster_changes import THROTTLED, submit, topic_named, topic_with_id
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE, deadline_after
from strandline.node.kafka.handlers.failure import Failure
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.runtime.gather import gather_bounded
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.controller.controller_commands import DeleteTopic
from strandline.statemachine.controller.controller_state import Topic

_Asked = tuple[str | None, bytes | None]
_Answer = tuple[str | None, bytes | None, Failure | None]
_ATTEMPTS: Final = 3
_BOTH: Final = Failure(ErrorCode.invalid_request, "You may not specify both topic name and topic id.")
_NEITHER: Final = Failure(ErrorCode.invalid_request, "Neither topic name nor id were specified.")
_SAME: Final = Failure(
    ErrorCode.invalid_request, "The provided topic name maps to an ID that was already supplied."
)


async def delete_topics(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """Delete topics; answers when the deletions are committed. The topics' contents are removed later."""
    payload = request.payload
    deadline = deadline_after(context, payload.timeout)
    if request.header.api_version < 6:
        asked: list[_Asked] = [(name, None) for name in payload.topic_names]
    else:
        ids = (None if topic.topic_id is None else topic.topic_id.bytes for topic in payload.topics)
        asked = [(topic.name, topic_id) for topic, topic_id in zip(payload.topics, ids, strict=True)]
    times = Counter(asked)
    any_topic = may_with_cluster(context, request, Operation.DELETE, quiet=True)

    def kept(topic: Topic) -> Failure | None:
        if not any_topic and not may_with_topic(context, request, Operation.DELETE, topic.name):
            return NO_TOPIC
        return None if context.throttles.may_mutate(request, len(topic.partitions)) else THROTTLED

    async def delete(one: _Asked) -> _Answer:
        name, topic_id = one
        if name is not None and topic_id is not None:
            return name, topic_id, _BOTH
        if name is None and topic_id is None:
            return name, topic_id, _NEITHER
        if times[one] > 1:
            what = "name" if topic_id is None else "id"
            return name, topic_id, Failure(ErrorCode.invalid_request, f"Duplicate topic {what}.")
        if name is not None:
            if not any_topic and not may_with_topic(context, request, Operation.DESCRIBE, name):
                return name, None, NO_TOPIC
            return await _delete_named(context, name, times, kept, deadline)
        assert topic_id is not None
        return await _delete_with_id(context, request, topic_id, kept, deadline)

    results = await gather_bounded(times, delete)
    return a.DeleteTopicsResponse(
        throttle_time=NO_THROTTLE, responses=tuple(_answer(a, result) for result in results)
    )


async def _delete_named(
    context: BrokerContext,
    name: str,
    asked: Counter[_Asked],
    kept: Callable[[Topic], Failure | None],
    deadline: float,
) -> _Answer:
    for _ in range(_ATTEMPTS):
        topic = await topic_named(context, name, deadline)
        if isinstance(topic, Failure):
            return name, None, topic
        if (None, topic.topic_id) in asked:
            return name, topic.topic_id, _SAME
        if failure := kept(topic):
            return name, topic.topic_id, failure
        outcome = await submit(context, DeleteTopic(topic.topic_id), deadline)
        if not isinstance(outcome, Failure):
            return name, topic.topic_id, None
        if outcome.code is not ErrorCode.unknown_topic_id:
            return name, topic.topic_id, outcome
        # Another request deleted it, and this node did not know. The name may be another topic's by now.
    return name, None, Failure(ErrorCode.unknown_topic_or_partition, "The topic was deleted meanwhile.")


async def _delete_with_id(
    context: BrokerContext,
    request: Request,
    topic_id: bytes,
    kept: Callable[[Topic], Failure | None],
    deadline: float,
) -> _Answer:
    topic = await topic_with_id(context, topic_id, deadline)
    if isinstance(topic, Failure):
        return None, topic_id, topic
    if failure := kept(topic):
        seen = may_with_topic(context, request, Operation.DESCRIBE, topic.name)
        return topic.name if seen else None, topic_id, failure
    outcome = await submit(context, DeleteTopic(topic_id), deadline)
    return topic.name, topic_id, outcome if isinstance(outcome, Failure) else None


def _answer(a: ResponseTypes, result: _Answer) -> Any:
    name, topic_id, failure = result
    return a.DeletableTopicResult(
        name=name,
        topic_id=None if topic_id is None else uuid.UUID(bytes=topic_id),
        error_code=failure.code if failure else ErrorCode.none,
        error_message=failure.message if failure else None,
    )
