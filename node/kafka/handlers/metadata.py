"""Metadata: the nodes, and the leaders of partitions; the request may create the topics it names."""

from __future__ import annotations

import uuid
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.authorization import (
    NOT_ASKED,
    TOPIC_REFUSED,
    authorized_operations,
    cluster_operations,
    may_with_cluster,
    may_with_topic,
)
from strandline.node.kafka.handlers.cluster import (
    controller_id,
    live_nodes,
    reachable,
)
from strandline.node.kafka.handlers.cluster_changes import submit, wait_for_leaders
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.create_topics import new_topic
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.handlers.failure import Failure
from strandline.node.kafka.handlers.topic_metadata import (
    DECIDED,
    INTERNAL,
    Breath,
    encoded,
    encoded_topics,
    with_topics,
)
from strandline.node.kafka.wire.handler import EncodedBody, Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.runtime.gather import gather_bounded
from strandline.node.runtime.slices import in_slices
from strandline.statemachine.controller.acl import Operation, ResourceType
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.controller.controller_topics import invalid_name
from strandline.statemachine.controller.view_state import is_hidden

AUTO_CREATE_SECONDS: Final = 5.0
"""Time that a request waits for the topics it creates; its connection serves nothing else meanwhile."""
_BY_ID: Final = 12
"""The first version in which a client may name topics by id."""


class _Missing(NamedTuple):
    """A topic of the request that does not exist."""

    code: ErrorCode
    name: str | None
    topic_id: uuid.UUID | None


async def metadata(context: BrokerContext, request: Request, a: ResponseTypes) -> EncodedBody:
    """Answer with this node's metadata; create missing topics if client and configuration allow it."""
    version, payload = request.header.api_version, request.payload
    found = await _topics(context, request)
    kept = encoded_topics(context.controller.machine, request.session.listener)
    leader_of = context.leaders.leader_of
    breath = Breath()
    topics = [
        await kept.encode(
            a, version, topic, leader_of, await _operations(context, request, topic, breath), breath
        )
        if isinstance(topic, Topic)
        else encoded(_missing(a, topic, await _operations(context, request, topic, breath)))
        for topic in found
    ]
    asked = getattr(payload, "include_cluster_authorized_operations", False)
    response = a.MetadataResponse(
        throttle_time=NO_THROTTLE,
        brokers=tuple(
            a.MetadataResponseBroker(
                node_id=node.node, host=address.host, port=address.port, rack=node.rack or None
            )
            for node, address in reachable(live_nodes(context), request.session.listener)
        ),
        cluster_id=context.controller.machine.cluster_id,
        controller_id=controller_id(context),
        topics=(),
        cluster_authorized_operations=cluster_operations(context, request) if asked else NOT_ASKED,
        error_code=ErrorCode.none,
    )
    return with_topics(response, topics)


async def _operations(
    context: BrokerContext, request: Request, topic: Topic | _Missing, breath: Breath
) -> int:
    """Of a topic that is missing, too, as Kafka has it; not of one that may not be described."""
    asked = getattr(request.payload, "include_topic_authorized_operations", False)
    refused = isinstance(topic, _Missing) and topic.code is TOPIC_REFUSED
    if not asked or refused or topic.name is None:
        return NOT_ASKED
    await breath.spend(DECIDED)
    return authorized_operations(context, request, ResourceType.TOPIC, topic.name)


async def _topics(context: BrokerContext, request: Request) -> list[Topic | _Missing]:
    machine, payload, version = context.controller.machine, request.payload, request.header.api_version

    # Version 0 has no null, and its empty list is all topics; later an empty list is none.
    all_topics = payload.topics is None or (version == 0 and not payload.topics)

    def seen(name: str) -> bool:
        return may_with_topic(context, request, Operation.DESCRIBE, name, quiet=all_topics)

    if all_topics:
        shown = (topic for topic in machine.topics if not is_hidden(topic.name))
        return [topic async for topic in in_slices(shown) if seen(topic.name)]
    asked = dict.fromkeys((topic.name, getattr(topic, "topic_id", None)) for topic in payload.topics)
    if version < _BY_ID and any(name is None or topic_id is not None for name, topic_id in asked):
        return [_Missing(ErrorCode.invalid_request, name or "", topic_id) for name, topic_id in asked]
    # If any topic is named by id, names are not looked at, as in Kafka.
    ids = [topic_id for _, topic_id in asked if topic_id is not None]
    if ids:
        return [_with_id(context, request, topic_id) for topic_id in ids]
    names = [name or "" for name, _ in asked]
    found: dict[str, Topic | _Missing] = {
        name: _Missing(TOPIC_REFUSED, name, None) for name in names if not seen(name)
    }
    allowed = [name for name in names if name not in found]
    if context.config.topics.auto_create and getattr(payload, "allow_auto_topic_creation", True):
        found |= zip(allowed, await _named_or_created(context, request, allowed), strict=True)
    else:
        found |= {name: machine.topic(name) or _unknown(name) for name in allowed}
    return [found[name] for name in names]


def _with_id(context: BrokerContext, request: Request, topic_id: uuid.UUID) -> Topic | _Missing:
    topic = context.controller.machine.topic_by_id(topic_id.bytes)
    if topic is None:
        return _Missing(ErrorCode.unknown_topic_id, None, topic_id)
    if not may_with_topic(context, request, Operation.DESCRIBE, topic.name):
        return _Missing(TOPIC_REFUSED, None, topic_id)
    return topic


def _unknown(name: str) -> _Missing:
    invalid = invalid_name(name) is not None
    code = ErrorCode.invalid_topic_exception if invalid else ErrorCode.unknown_topic_or_partition
    return _Missing(code, name, None)


async def _named_or_created(
    context: BrokerContext, request: Request, names: list[str]
) -> list[Topic | _Missing]:
    machine = context.controller.machine
    missing = [name for name in names if machine.topic(name) is None]
    if not missing:
        return [topic for name in names if (topic := machine.topic(name))]
    deadline = context.loop.time() + AUTO_CREATE_SECONDS
    any_name = may_with_cluster(context, request, Operation.CREATE, quiet=True)

    async def create(name: str) -> ErrorCode:
        if not any_name and not may_with_topic(context, request, Operation.CREATE, name):
            return TOPIC_REFUSED
        return await _created(context, name, deadline)

    codes = dict(zip(missing, await gather_bounded(missing, create), strict=True))
    await wait_for_leaders(context, [topic for name in missing if (topic := machine.topic(name))], deadline)
    return [machine.topic(name) or _Missing(codes.get(name, _GONE), name, None) for name in names]


_GONE: Final = ErrorCode.unknown_topic_or_partition


async def _created(context: BrokerContext, name: str, deadline: float) -> ErrorCode:
    """Create the topic; returns the error code for the case that it still does not exist afterwards."""
    if invalid_name(name) or name in INTERNAL:
        # The broker creates its own topics when it needs them, not when a client names them.
        return _unknown(name).code
    if context.loop.time() >= deadline:
        return ErrorCode.leader_not_available
    outcome = await submit(context, new_topic(context, name), deadline)
    if not isinstance(outcome, Failure):
        return _GONE
    if outcome.code is ErrorCode.request_timed_out:
        return ErrorCode.leader_not_available  # It may be coming: clients ask again.
    # Other refusals are the cluster's, of the moment (too few nodes); clients ask again here too.
    return ErrorCode.invalid_topic_exception if outcome.code is ErrorCode.invalid_topic_exception else _GONE


def _missing(a: ResponseTypes, topic: _Missing, operations: int) -> Any:
    return a.MetadataResponseTopic(
        error_code=topic.code,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL,
        partitions=(),
        topic_authorized_operations=operations,
    )
