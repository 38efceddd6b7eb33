"""Which coordinator answers a request about a group, or the code that says that none here does."""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from node.coordinator.groups.coordinator import GroupCoordinator
from node.kafka.requests.context import BrokerContext

MAX_GROUP_ID_BYTES: Final = 2**15 - 1
"""What a string of Kafka's older versions holds; in those from KIP-482 on a client could send more."""


def group_coordinator(
    context: BrokerContext, group_id: str, *, may_be_empty: bool = False
) -> GroupCoordinator | ErrorCode:
    """The group's coordinator when this node leads it. Otherwise INVALID_GROUP_ID, or what sends the client
    on.

    Only what commits, fetches, describes or deletes may name the group "", as in Kafka.
    """
    if (not group_id and not may_be_empty) or len(group_id.encode()) > MAX_GROUP_ID_BYTES:
        return ErrorCode.invalid_group_id
    return context.coordinators.groups_for(group_id)
