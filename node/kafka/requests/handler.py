"""Takes a decoded request to the function that answers it.

One table, by api key: what is advertised (node/kafka/apis.py) and what is answered must be the same set, and
a test holds them together.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, Final

from node.kafka.answers import Answers, answers
from node.kafka.apis import ApiKey
from node.kafka.handler import Request
from node.kafka.requests import (
    cluster,
    configs,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    elect_leaders,
    fetch,
    find_coordinator,
    init_producer_id,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
)
from node.kafka.requests.context import BrokerContext

Answering = Callable[[BrokerContext, Request, Answers], Coroutine[Any, Any, Any]]
"""A response entity in the request's version, or None to send nothing."""

TABLE: Final[Mapping[int, Answering]] = MappingProxyType(
    {
        ApiKey.PRODUCE: produce.produce,
        ApiKey.FETCH: fetch.fetch,
        ApiKey.LIST_OFFSETS: list_offsets.list_offsets,
        ApiKey.METADATA: metadata.metadata,
        ApiKey.FIND_COORDINATOR: find_coordinator.find_coordinator,
        ApiKey.CREATE_TOPICS: create_topics.create_topics,
        ApiKey.DELETE_TOPICS: delete_topics.delete_topics,
        ApiKey.DELETE_RECORDS: delete_records.delete_records,
        ApiKey.INIT_PRODUCER_ID: init_producer_id.init_producer_id,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch.offset_for_leader_epoch,
        ApiKey.DESCRIBE_CONFIGS: configs.describe_configs,
        ApiKey.ALTER_CONFIGS: configs.alter_configs,
        ApiKey.CREATE_PARTITIONS: create_partitions.create_partitions,
        ApiKey.ELECT_LEADERS: elect_leaders.elect_leaders,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.incremental_alter_configs,
        ApiKey.DESCRIBE_CLUSTER: cluster.describe_cluster,
    }
)


class BrokerHandler:
    """Answers every request of one node; a `node.kafka.handler.Handler`."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    def handle(self, request: Request) -> Coroutine[Any, Any, Any]:
        """The coroutine that answers; nothing of it runs before it is awaited."""
        key, version = request.header.api_key, request.header.api_version
        return TABLE[key](self._context, request, answers(key, version))
