"""Finds the coordinator here that answers a request about a group, or the error code if there is none."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from strandline.node.coordinator.groups.coordinator import GroupCoordinator
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.statemachine.internal_topics import is_key
from strandline.statemachine.kafka_errors import KafkaError


def group_coordinator(
    context: BrokerContext, group_id: str, *, may_be_empty: bool = False
) -> GroupCoordinator | ErrorCode:
    """The group's coordinator if this node leads it, else an error code.

    INVALID_GROUP_ID, or a code that makes the client look for the coordinator again. Only requests that
    commit, fetch, describe or delete may name the group "", as in Kafka.
    """
    if (not group_id and not may_be_empty) or not is_key(group_id):
        return ErrorCode.invalid_group_id
    found = context.coordinators.groups_for(group_id)
    return ErrorCode(found) if isinstance(found, KafkaError) else found
