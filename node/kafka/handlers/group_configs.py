"""The configs of groups (KIP-848) as requests describe and change them.

The controller keeps them, so every node serves them, whether or not the group exists, and the group's
coordinator reads them from its own replica. The bounds on their values are this node's configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.cluster_changes import submit
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.failure import Failure, refused
from strandline.node.kafka.handlers.setting_answers import GROUP_SOURCE, STATIC_BROKER_SOURCE, group_limits
from strandline.statemachine.controller.controller_commands import (
    AlterGroupConfigs,
    ConfigChange,
    ConfigOperation,
    ReplaceGroupConfigs,
)
from strandline.statemachine.controller.group_config import (
    CONSUMER_HEARTBEAT_INTERVAL_MS,
    CONSUMER_SESSION_TIMEOUT_MS,
    TABLE,
)
from strandline.statemachine.kafka_errors import Refused


class GroupSetting(NamedTuple):
    """One config of a group: the value in force, and its synonyms with the value of each."""

    name: str
    value: str
    type: str
    source: int
    synonyms: Sequence[tuple[str, str, int]]


def group_settings(context: BrokerContext, group: str) -> list[GroupSetting]:
    """All configs of a group, in the order of their names."""
    groups = context.config.groups
    seconds = {
        CONSUMER_HEARTBEAT_INTERVAL_MS.name: groups.consumer_heartbeat_seconds,
        CONSUMER_SESSION_TIMEOUT_MS.name: groups.consumer_session_seconds,
    }
    configs = context.controller.machine.group_configs(group)
    settings = []
    for name, setting in TABLE.settings.items():
        known = [(f"group.{name}", str(round(1000 * seconds[name])), STATIC_BROKER_SOURCE)]
        if name in configs:
            known.insert(0, (name, configs[name], GROUP_SOURCE))
        _, value, source = known[0]
        settings.append(GroupSetting(name, value, setting.type, source, known))
    return settings


async def alter_group(
    context: BrokerContext,
    command: AlterGroupConfigs | ReplaceGroupConfigs,
    validate_only: bool,
    deadline: float,
) -> Failure:
    """Carry out a change; returns its failure, with the code NONE for success."""
    if isinstance(command, AlterGroupConfigs):
        given = _set(command.changes)
    else:
        given = [(name, value) for name, value in command.configs if value is not None]
    if reason := _out_of_bounds(context, given):
        return Failure(ErrorCode.invalid_config, reason)
    if validate_only:
        planned = context.controller.machine.validate_group(command)
        return refused(planned) if isinstance(planned, Refused) else Failure(ErrorCode.none, None)
    outcome = await submit(context, command, deadline)
    return outcome if isinstance(outcome, Failure) else Failure(ErrorCode.none, None)


def _set(changes: Sequence[ConfigChange]) -> list[tuple[str, str]]:
    return [
        (name, value)
        for operation, name, value in changes
        if operation is ConfigOperation.SET and value is not None
    ]


def _out_of_bounds(context: BrokerContext, given: Iterable[tuple[str, str]]) -> str | None:
    """The reason, in Kafka's words, why brokers refuse a value; else None. The controller refuses text that
    is no value."""
    session, heartbeat = group_limits(context.config.groups)
    limits = {
        CONSUMER_HEARTBEAT_INTERVAL_MS: (heartbeat, "heartbeat.interval.ms"),
        CONSUMER_SESSION_TIMEOUT_MS: (session, "session.timeout.ms"),
    }
    values = dict(given)
    for setting, (limit, word) in limits.items():
        try:
            value = setting.parse(values[setting.name].strip())
        except (KeyError, ValueError):
            continue
        if value < round(1000 * limit.shortest):
            return (
                f"{setting.name} must be greater than or equal to group.consumer.min.{word}, "
                f"{round(1000 * limit.shortest)}"
            )
        if value > round(1000 * limit.longest):
            return (
                f"{setting.name} must be less than or equal to group.consumer.max.{word}, "
                f"{round(1000 * limit.longest)}"
            )
    return None
