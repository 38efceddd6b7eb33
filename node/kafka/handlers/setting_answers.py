"""A setting in the form that clients see: its type, its source, and the broker config that it falls back to.

Kafka has most configs twice, one for all topics (of the broker) and one for a single topic, which shows the
first as its synonym. Tools look configs up under both names, so both are here. Brokers do not accept the
former: a setting that a topic does not have falls back to Kafka's default.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, NamedTuple

from strandline.node.config.node_config import GroupsSection, NodeConfig
from strandline.node.config.quotas import MAX_INT
from strandline.node.controller.members import default_replicas, member_ids
from strandline.node.coordinator.table import REPLICAS
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.settings import Configs, Setting
from strandline.statemachine.controller.topic_config import SETTINGS

# DescribeConfigsResponse.ConfigSource
TOPIC_SOURCE: Final = 1
STATIC_BROKER_SOURCE: Final = 4
DEFAULT_SOURCE: Final = 5
GROUP_SOURCE: Final = 8

CONFIG_TYPES: Final = MappingProxyType(
    {"BOOLEAN": 1, "STRING": 2, "INT": 3, "SHORT": 4, "LONG": 5, "DOUBLE": 6, "LIST": 7}
)
"""DescribeConfigsResponse.ConfigType."""


class BrokerSetting(NamedTuple):
    """A config of a broker, as text."""

    name: str
    value: str
    type: str
    source: int


_HOUR: Final = 60 * 60 * 1000
_OTHERWISE_NAMED: Final = {
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "segment.index.bytes": "log.index.size.max.bytes",
}
_SAME_NAME: Final = (
    "compression.",
    "min.insync.replicas",
    "unclean.leader.election.enable",
)
_OF_TOPICS_ONLY: Final = ("remote.", "leader.replication.", "follower.replication.")
"""Kafka's brokers have no config for all topics of these: the default stands under the topic's own name."""
_IN_HOURS: Final = {
    "retention.ms": "log.retention.hours",
    "segment.ms": "log.roll.hours",
    "segment.jitter.ms": "log.roll.jitter.hours",
}
"""Kafka's brokers have these in several units; the one in hours holds the default."""


def _broker_setting(setting: Setting[object]) -> BrokerSetting:
    name, text = setting.name, setting.text(setting.default)
    if name in _IN_HOURS:
        assert isinstance(setting.default, int)
        return BrokerSetting(_IN_HOURS[name], str(setting.default // _HOUR), "INT", DEFAULT_SOURCE)
    if name == "flush.ms":
        return BrokerSetting("log.flush.scheduler.interval.ms", text, "LONG", DEFAULT_SOURCE)
    same = name.startswith((*_SAME_NAME, *_OF_TOPICS_ONLY))
    broker_name = name if same else _OTHERWISE_NAMED.get(name, f"log.{name}")
    return BrokerSetting(broker_name, text, setting.type, DEFAULT_SOURCE)


DEFAULTS: Final = MappingProxyType({name: _broker_setting(setting) for name, setting in SETTINGS.items()})
"""The broker's config that each topic config falls back to, by the topic config's name."""


def source_of(setting: Setting[object], configs: Configs) -> int:
    """The source of a topic's value of a setting."""
    return TOPIC_SOURCE if setting.name in configs else DEFAULT_SOURCE


def broker_settings(config: NodeConfig, machine: Controller) -> list[BrokerSetting]:
    """A broker's configs, sorted by name: this node's configuration, and the defaults of its topics."""
    topics, listeners = config.topics, config.listeners
    names = [one.name.upper() if config.named_listeners else one.protocol for one in listeners]
    bound = ",".join(f"{name}://{one.host}:{one.port}" for name, one in zip(names, listeners, strict=True))
    told = ",".join(
        f"{name}://{one.advertised_host or one.host}:{one.advertised_port or one.port}"
        for name, one in zip(names, listeners, strict=True)
    )
    protocols = ",".join(f"{name}:{one.protocol}" for name, one in zip(names, listeners, strict=True))
    quotas = config.quotas
    overrides = ",".join(f"{host}:{most}" for host, most in quotas.max_connections_per_ip_overrides.items())
    own = {
        "advertised.listeners": ("LIST", told),
        "auto.create.topics.enable": ("BOOLEAN", Setting.text(topics.auto_create)),
        "broker.id": ("INT", str(config.node.id)),
        "default.replication.factor": ("INT", str(default_replicas(config, machine))),
        "delete.topic.enable": ("BOOLEAN", "true"),
        "listeners": ("LIST", bound),
        "log.dirs": ("LIST", config.node.data),
        "max.connection.creation.rate": ("INT", _bound(quotas.max_connection_creation_rate)),
        "max.connections": ("INT", str(quotas.max_connections)),
        "max.connections.per.ip": ("INT", _bound(quotas.max_connections_per_ip)),
        "max.connections.per.ip.overrides": ("STRING", overrides),
        "node.id": ("INT", str(config.node.id)),
        "num.partitions": ("INT", str(topics.partitions)),
    }
    if config.named_listeners:
        own["listener.security.protocol.map"] = ("STRING", protocols)
    own |= _of_coordinators(config, machine)
    settings = [BrokerSetting(name, text, kind, STATIC_BROKER_SOURCE) for name, (kind, text) in own.items()]
    defaults = [one for one in DEFAULTS.values() if not one.name.startswith(_OF_TOPICS_ONLY)]
    return sorted((*settings, *defaults))


def _bound(value: int) -> str:
    """A bound as Kafka writes it: none is its largest number."""
    return str(value or MAX_INT)


class SettingLimits(NamedTuple):
    """Bounds for one of a group's own time settings, in seconds."""

    shortest: float
    longest: float


def group_limits(groups: GroupsSection) -> tuple[SettingLimits, SettingLimits]:
    """Bounds of a group's session timeout and heartbeat interval: Kafka's, widened to the brokers' values."""
    session, heartbeat = groups.consumer_session_seconds, groups.consumer_heartbeat_seconds
    return (
        SettingLimits(min(_SESSION.shortest, session), max(_SESSION.longest, session)),
        SettingLimits(min(_HEARTBEAT.shortest, heartbeat), max(_HEARTBEAT.longest, heartbeat)),
    )


_SESSION: Final = SettingLimits(45.0, 60.0)
_HEARTBEAT: Final = SettingLimits(5.0, 15.0)


def _of_coordinators(config: NodeConfig, machine: Controller) -> dict[str, tuple[str, str]]:
    """A broker's configs of groups and transactions, in Kafka's names and units."""
    groups, transactions = config.groups, config.transactions
    replicas = min(REPLICAS, len(member_ids(config.cluster.nodes, machine)))
    session, heartbeat = group_limits(groups)
    times = {
        "group.consumer.heartbeat.interval.ms": groups.consumer_heartbeat_seconds,
        "group.consumer.max.heartbeat.interval.ms": heartbeat.longest,
        "group.consumer.max.session.timeout.ms": session.longest,
        "group.consumer.min.heartbeat.interval.ms": heartbeat.shortest,
        "group.consumer.min.session.timeout.ms": session.shortest,
        "group.consumer.session.timeout.ms": groups.consumer_session_seconds,
        "group.initial.rebalance.delay.ms": groups.initial_rebalance_delay_seconds,
        "group.max.session.timeout.ms": groups.max_session_seconds,
        "group.min.session.timeout.ms": groups.min_session_seconds,
        "transaction.max.timeout.ms": transactions.max_timeout_seconds,
        "transactional.id.expiration.ms": transactions.id_expiration_seconds,
    }
    return {
        "group.consumer.migration.policy": ("STRING", groups.consumer_migration_policy),
        "group.max.size": ("INT", str(groups.max_members)),
        "offsets.retention.minutes": ("INT", str(round(groups.offset_retention_seconds / 60))),
        "offsets.topic.num.partitions": ("INT", str(config.coordinator.partitions)),
        "offsets.topic.replication.factor": ("SHORT", str(replicas)),
        "transaction.state.log.num.partitions": ("INT", str(config.coordinator.partitions)),
        "transaction.state.log.replication.factor": ("SHORT", str(replicas)),
        **{name: ("INT", str(round(1000 * seconds))) for name, seconds in times.items()},
    }
