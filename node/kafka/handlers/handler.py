"""Takes a decoded request to the function that answers it.

One table, by api key: the advertised APIs (node/kafka/wire/apis.py) and the answered ones must be the same
set, and a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, Final

from strandline.node.kafka.handlers import (
    acls,
    add_offsets_to_txn,
    add_partitions_to_txn,
    client_quotas,
    cluster,
    configs,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_transactions,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    reassignments,
    sasl,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    update_features,
    user_scram_credentials,
    write_txn_markers,
)
from strandline.node.kafka.handlers.action_log import CHANGES
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.wire.apis import ApiKey, Feature
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes, response_types

Answering = Callable[[BrokerContext, Request, ResponseTypes], Coroutine[Any, Any, Any]]
"""A response entity in the request's version, or None to send nothing."""

TABLE: Final[Mapping[int, Answering]] = MappingProxyType(
    {
        ApiKey.PRODUCE: produce.produce,
        ApiKey.FETCH: fetch.fetch,
        ApiKey.LIST_OFFSETS: list_offsets.list_offsets,
        ApiKey.METADATA: metadata.metadata,
        ApiKey.OFFSET_COMMIT: offset_commit.offset_commit,
        ApiKey.OFFSET_FETCH: offset_fetch.offset_fetch,
        ApiKey.FIND_COORDINATOR: find_coordinator.find_coordinator,
        ApiKey.JOIN_GROUP: join_group.join_group,
        ApiKey.HEARTBEAT: heartbeat.heartbeat,
        ApiKey.LEAVE_GROUP: leave_group.leave_group,
        ApiKey.SYNC_GROUP: sync_group.sync_group,
        ApiKey.DESCRIBE_GROUPS: describe_groups.describe_groups,
        ApiKey.LIST_GROUPS: list_groups.list_groups,
        ApiKey.CREATE_TOPICS: create_topics.create_topics,
        ApiKey.DELETE_TOPICS: delete_topics.delete_topics,
        ApiKey.DELETE_RECORDS: delete_records.delete_records,
        ApiKey.INIT_PRODUCER_ID: init_producer_id.init_producer_id,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch.offset_for_leader_epoch,
        ApiKey.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn.add_partitions_to_txn,
        ApiKey.ADD_OFFSETS_TO_TXN: add_offsets_to_txn.add_offsets_to_txn,
        ApiKey.END_TXN: end_txn.end_txn,
        ApiKey.WRITE_TXN_MARKERS: write_txn_markers.write_txn_markers,
        ApiKey.TXN_OFFSET_COMMIT: txn_offset_commit.txn_offset_commit,
        ApiKey.DESCRIBE_CONFIGS: configs.describe_configs,
        ApiKey.ALTER_CONFIGS: configs.alter_configs,
        ApiKey.CREATE_PARTITIONS: create_partitions.create_partitions,
        ApiKey.DELETE_GROUPS: delete_groups.delete_groups,
        ApiKey.ELECT_LEADERS: elect_leaders.elect_leaders,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.incremental_alter_configs,
        ApiKey.OFFSET_DELETE: offset_delete.offset_delete,
        ApiKey.DESCRIBE_LOG_DIRS: describe_log_dirs.describe_log_dirs,
        ApiKey.UPDATE_FEATURES: update_features.update_features,
        ApiKey.DESCRIBE_QUORUM: describe_quorum.describe_quorum,
        ApiKey.DESCRIBE_CLUSTER: cluster.describe_cluster,
        ApiKey.DESCRIBE_PRODUCERS: describe_producers.describe_producers,
        ApiKey.UNREGISTER_BROKER: unregister_broker.unregister_broker,
        ApiKey.DESCRIBE_TRANSACTIONS: describe_transactions.describe_transactions,
        ApiKey.LIST_TRANSACTIONS: list_transactions.list_transactions,
        ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_group_heartbeat.consumer_group_heartbeat,
        ApiKey.CONSUMER_GROUP_DESCRIBE: consumer_group_describe.consumer_group_describe,
        ApiKey.SASL_HANDSHAKE: sasl.sasl_handshake,
        ApiKey.SASL_AUTHENTICATE: sasl.sasl_authenticate,
        ApiKey.DESCRIBE_CLIENT_QUOTAS: client_quotas.describe_client_quotas,
        ApiKey.ALTER_CLIENT_QUOTAS: client_quotas.alter_client_quotas,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: user_scram_credentials.describe_user_scram_credentials,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: user_scram_credentials.alter_user_scram_credentials,
        ApiKey.DESCRIBE_ACLS: acls.describe_acls,
        ApiKey.CREATE_ACLS: acls.create_acls,
        ApiKey.DELETE_ACLS: acls.delete_acls,
        ApiKey.LIST_CONFIG_RESOURCES: list_config_resources.list_config_resources,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: reassignments.alter_partition_reassignments,
        ApiKey.LIST_PARTITION_REASSIGNMENTS: reassignments.list_partition_reassignments,
    }
)


class BrokerHandler:
    """Answers every request of one node; a `strandline.node.kafka.wire.handler.Handler`."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    def features(self) -> tuple[int, tuple[Feature, ...]]:
        """The features of the cluster that ApiVersions tells, and their epoch, which only grows."""
        return update_features.features(self._context.controller.machine)

    def handle(self, request: Request) -> Coroutine[Any, Any, Any]:
        """The coroutine that response_types; nothing of it runs before it is awaited."""
        key, version = request.header.api_key, request.header.api_version
        answering = TABLE[key](self._context, request, response_types(key, version))
        if key in CHANGES:
            answering = self._recorded(request, answering)
        return self._context.throttles.answered(request, answering)

    async def _recorded(self, request: Request, answering: Coroutine[Any, Any, Any]) -> Any:
        answer = await answering
        self._context.actions.change(request, answer)
        return answer
