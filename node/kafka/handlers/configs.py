"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs: of topics and groups both, of brokers to read.

A broker's configuration is a file that its operator keeps; nothing changes it over the wire.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.authorization import (
    NO_CLUSTER,
    NO_GROUP,
    NO_TOPIC,
    may_with_cluster,
    may_with_group,
    may_with_topic,
)
from strandline.node.kafka.handlers.cluster_changes import submit, topic_named
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.handlers.failure import Failure, refused
from strandline.node.kafka.handlers.group_configs import alter_group, group_settings
from strandline.node.kafka.handlers.setting_answers import (
    CONFIG_TYPES,
    DEFAULTS,
    TOPIC_SOURCE,
    broker_settings,
    source_of,
)
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.runtime.gather import gather_bounded
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.controller.controller_commands import (
    AlterGroupConfigs,
    AlterTopicConfigs,
    ConfigChange,
    ConfigOperation,
    ReplaceGroupConfigs,
    ReplaceTopicConfigs,
)
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.controller.controller_topics import invalid_name
from strandline.statemachine.controller.topic_config import SETTINGS
from strandline.statemachine.kafka_errors import Refused

# ConfigResource.Type
TOPIC: Final = 2
BROKER: Final = 4
BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
GROUP: Final = 32
_UNSUPPORTED: Final = {
    BROKER_LOGGER: "A broker's log level is not told or changed by requests: it is log.level in its file.",
    CLIENT_METRICS: "Client metrics (KIP-714) are not supported: brokers here do not collect any.",
}
_NO_GROUP_NAME: Final = "Group name must not be empty"

ALTER_SECONDS: Final = 30.0
"""Time limit for the controller, as these requests have no timeout: Kafka's own request.timeout.ms."""
CATCH_UP_SECONDS: Final = 1.0
"""Time limit for catching up: above a healthy follower's lag, and short if there is no controller."""
_OPERATIONS: Final = tuple(int(operation) for operation in ConfigOperation)


async def describe_configs(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """Describe the configs in force, and their sources.

    Clients ask any node, so a topic's or group's configs include every change made before, through whichever
    node. Without the controller they are what this node knows.
    """
    if any(asked.resource_type in (TOPIC, GROUP) for asked in request.payload.resources):
        await context.controller.catch_up(CATCH_UP_SECONDS)
    return a.DescribeConfigsResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(_described(context, a, request, asked) for asked in request.payload.resources),
    )


def _described(context: BrokerContext, a: ResponseTypes, request: Request, asked: Any) -> Any:
    entries = _unauthorized(context, request, asked, Operation.DESCRIBE_CONFIGS) or _entries(
        context, a, asked, request.payload.include_synonyms
    )
    failure = entries if isinstance(entries, Failure) else Failure(ErrorCode.none, None)
    if isinstance(entries, Failure):
        entries = []
    # No names at all are all names, which is what Kafka makes of an empty list too.
    wanted = asked.configuration_keys
    return a.DescribeConfigsResult(
        error_code=failure.code,
        error_message=failure.message,
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
        configs=tuple(entry for entry in entries if not wanted or entry.name in wanted),
    )


def _unauthorized(
    context: BrokerContext, request: Request, asked: Any, operation: Operation
) -> Failure | None:
    """The refusal of a client that may not do this to a resource's configs, or None."""
    kind, name = asked.resource_type, asked.resource_name
    if kind == TOPIC:
        return None if may_with_topic(context, request, operation, name) else NO_TOPIC
    if kind == GROUP:
        return None if may_with_group(context, request, operation, name) else NO_GROUP
    return None if may_with_cluster(context, request, operation) else NO_CLUSTER


def _entries(context: BrokerContext, a: ResponseTypes, asked: Any, synonyms: bool) -> list[Any] | Failure:
    name = asked.resource_name
    if asked.resource_type == TOPIC:
        if reason := invalid_name(name):
            return Failure(ErrorCode.invalid_topic_exception, reason)
        topic = context.controller.machine.topic(name)
        if topic is None:
            return Failure(ErrorCode.unknown_topic_or_partition, None)
        return _topic_entries(a, topic, synonyms)
    if asked.resource_type == BROKER:
        if name == "":
            return []  # Configs set for all brokers over the wire: there are none.
        return _broker_fault(context, name) or _broker_entries(context, a, synonyms)
    if asked.resource_type == GROUP:
        return _group_entries(context, a, name, synonyms)
    return _unsupported(asked.resource_type)


def _unsupported(kind: int) -> Failure:
    return Failure(ErrorCode.invalid_request, _UNSUPPORTED.get(kind, f"Unsupported resource type: {kind}"))


def _group_entries(
    context: BrokerContext, a: ResponseTypes, name: str, synonyms: bool
) -> list[Any] | Failure:
    if not name:
        return Failure(ErrorCode.invalid_request, _NO_GROUP_NAME)
    return [
        _entry(a, one.name, one.value, one.type, one.source, False, one.synonyms if synonyms else [])
        for one in group_settings(context, name)
    ]


def _broker_fault(context: BrokerContext, name: str) -> Failure | None:
    try:
        node = int(name)
    except ValueError:
        return Failure(ErrorCode.invalid_request, f"Node id must be an integer, but it is: {name}")
    if node == context.node_id:
        return None
    reason = f"Unexpected broker id, expected {context.node_id} or empty string, but received {name}"
    return Failure(ErrorCode.invalid_request, reason)


def _topic_entries(a: ResponseTypes, topic: Topic, synonyms: bool) -> list[Any]:
    entries = []
    for setting in SETTINGS.values():
        value = setting.text(setting.of(topic.configs))
        source = source_of(setting, topic.configs)
        default = DEFAULTS[setting.name]
        known = [(setting.name, value, TOPIC_SOURCE)] if source == TOPIC_SOURCE else []
        known.append((default.name, default.value, default.source))
        entries.append(_entry(a, setting.name, value, setting.type, source, False, known if synonyms else []))
    return entries


def _broker_entries(context: BrokerContext, a: ResponseTypes, synonyms: bool) -> list[Any]:
    return [
        _entry(a, name, value, kind, source, True, [(name, value, source)] if synonyms else [])
        for name, value, kind, source in broker_settings(context.config, context.controller.machine)
    ]


def _entry(
    a: ResponseTypes,
    name: str,
    value: str,
    kind: str,
    source: int,
    read_only: bool,
    synonyms: Iterable[tuple[str, str, int]],
) -> Any:
    return a.DescribeConfigsResourceResult(
        name=name,
        value=value,
        read_only=read_only,
        config_source=source,
        is_sensitive=False,
        synonyms=tuple(
            a.DescribeConfigsSynonym(name=synonym, value=text, source=where)
            for synonym, text, where in synonyms
        ),
        config_type=CONFIG_TYPES[kind],
        documentation=None,
    )


async def alter_configs(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """Set the given configs, and all others to their defaults."""

    return a.AlterConfigsResponse(
        throttle_time=NO_THROTTLE, responses=await _altered(context, request, a, incremental=False)
    )


async def incremental_alter_configs(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """Change the given configs, and no others."""

    return a.IncrementalAlterConfigsResponse(
        throttle_time=NO_THROTTLE, responses=await _altered(context, request, a, incremental=True)
    )


async def _altered(
    context: BrokerContext, request: Request, a: ResponseTypes, *, incremental: bool
) -> tuple[Any, ...]:
    payload = request.payload
    deadline = context.loop.time() + ALTER_SECONDS
    times = Counter((asked.resource_type, asked.resource_name) for asked in payload.resources)

    async def alter(asked: Any) -> Failure:
        if times[asked.resource_type, asked.resource_name] > 1:
            return Failure(ErrorCode.invalid_request, "Each resource must appear at most once.")
        if refusal := _unauthorized(context, request, asked, Operation.ALTER_CONFIGS):
            return refusal
        if fault := _fault(asked):
            return fault
        if asked.resource_type == GROUP:
            command = _group_command(asked, incremental)
            return await alter_group(context, command, payload.validate_only, deadline)
        return await _alter(context, asked, payload.validate_only, incremental, deadline)

    results = await gather_bounded(payload.resources, alter)
    return tuple(
        a.AlterConfigsResourceResponse(
            error_code=result.code,
            error_message=result.message,
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
        )
        for asked, result in zip(payload.resources, results, strict=True)
    )


def _fault(asked: Any) -> Failure | None:
    """The fault of the request itself, in Kafka's words and order; None if it has none."""
    names = [config.name for config in asked.configs]
    if len(set(names)) != len(names):
        return Failure(ErrorCode.invalid_request, "Error due to duplicate config keys")
    operations = [getattr(config, "config_operation", int(ConfigOperation.SET)) for config in asked.configs]
    nulls = [
        config.name
        for config, operation in zip(asked.configs, operations, strict=True)
        if config.value is None and operation != ConfigOperation.DELETE
    ]
    if nulls:
        return Failure(ErrorCode.invalid_request, f"Null value not supported for : {', '.join(nulls)}")
    if asked.resource_type == BROKER:
        reason = "A broker's configuration is not changed by requests: edit its file and start it again."
        return Failure(ErrorCode.invalid_request, reason)
    if asked.resource_type not in (TOPIC, GROUP):
        return _unsupported(asked.resource_type)
    unknown = [operation for operation in operations if operation not in _OPERATIONS]
    return Failure(ErrorCode.invalid_request, f"Unknown operations type {unknown[0]}") if unknown else None


def _topic_command(topic: Topic, asked: Any, incremental: bool) -> AlterTopicConfigs | ReplaceTopicConfigs:
    if incremental:
        return AlterTopicConfigs(topic.topic_id, _changes(asked))
    return ReplaceTopicConfigs(topic.topic_id, _pairs(asked))


def _group_command(asked: Any, incremental: bool) -> AlterGroupConfigs | ReplaceGroupConfigs:
    if incremental:
        return AlterGroupConfigs(asked.resource_name, _changes(asked))
    return ReplaceGroupConfigs(asked.resource_name, _pairs(asked))


def _changes(asked: Any) -> list[ConfigChange]:
    return [
        ConfigChange(ConfigOperation(config.config_operation), config.name, config.value)
        for config in asked.configs
    ]


def _pairs(asked: Any) -> list[tuple[str, str | None]]:
    return [(config.name, config.value) for config in asked.configs]


async def _alter(
    context: BrokerContext, asked: Any, validate_only: bool, incremental: bool, deadline: float
) -> Failure:
    topic = await topic_named(context, asked.resource_name, deadline)
    if isinstance(topic, Failure):
        return topic
    alteration = _topic_command(topic, asked, incremental)
    if validate_only:
        planned = context.controller.machine.validate(alteration)
        return refused(planned) if isinstance(planned, Refused) else Failure(ErrorCode.none, None)
    outcome = await submit(context, alteration, deadline)
    if not isinstance(outcome, Failure):
        return Failure(ErrorCode.none, None)
    if outcome.code is ErrorCode.unknown_topic_id:
        return Failure(ErrorCode.unknown_topic_or_partition, "The topic was deleted meanwhile.")
    return outcome
