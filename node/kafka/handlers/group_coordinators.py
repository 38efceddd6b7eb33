"""Finds the coordinator here that answers a request about a group, or the error if there is none."""

from __future__ import annotations

from strandline.node.coordinator.groups.coordinator import GroupCoordinator
from strandline.node.kafka.handlers.authorization import may_with_group
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.wire.handler import Request
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.internal_topics import is_key
from strandline.statemachine.kafka_errors import KafkaError


def group_coordinator(
    context: BrokerContext,
    request: Request,
    operation: Operation,
    group_id: str,
    *,
    may_be_empty: bool = False,
) -> GroupCoordinator | KafkaError:
    """The group's coordinator if this node leads it and the client may do this to the group, else an error.

    GROUP_AUTHORIZATION_FAILED, INVALID_GROUP_ID, or an error that makes the client look for the coordinator
    again. Only requests that commit, fetch, describe or delete may name the group "", as in Kafka.
    """
    if not may_with_group(context, request, operation, group_id):
        return KafkaError.GROUP_AUTHORIZATION_FAILED
    if (not group_id and not may_be_empty) or not is_key(group_id):
        return KafkaError.INVALID_GROUP_ID
    return context.coordinators.groups_for(group_id)
