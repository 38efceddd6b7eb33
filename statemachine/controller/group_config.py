"""The configs of a group (KIP-848): Kafka's names, types and limits, for members of the consumer protocol.

A group's unset configurations are those of its coordinator's node. So the defaults here are never reported.
The node that receives the request checks by its own configuration that the values are within the brokers'
limits.
"""

from __future__ import annotations

from typing import Final

from strandline.statemachine.controller.settings import Configs, Table, int_setting

MAX_GROUPS: Final = 10_000
"""Groups that may have configs: they are kept by every node, whether or not the groups are there."""
MAX_NAME_LENGTH: Final = 255
"""Characters of the id of a group with configs."""

CONSUMER_SESSION_TIMEOUT_MS = int_setting("consumer.session.timeout.ms", 45_000, 1)
CONSUMER_HEARTBEAT_INTERVAL_MS = int_setting("consumer.heartbeat.interval.ms", 5_000, 1)


def _conflict(configs: Configs) -> str | None:
    both = CONSUMER_SESSION_TIMEOUT_MS.name in configs and CONSUMER_HEARTBEAT_INTERVAL_MS.name in configs
    if both and CONSUMER_SESSION_TIMEOUT_MS.of(configs) <= CONSUMER_HEARTBEAT_INTERVAL_MS.of(configs):
        return "consumer.heartbeat.interval.ms must be less than consumer.session.timeout.ms"
    return None


TABLE: Final = Table("group", [CONSUMER_SESSION_TIMEOUT_MS, CONSUMER_HEARTBEAT_INTERVAL_MS], _conflict)
