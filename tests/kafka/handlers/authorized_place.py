"""A node with something of everything that a request can be about, and a request of each kind to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Final, cast

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.authorizer import Authorizer
from strandline.node.kafka.wire.apis import ApiKey
from strandline.statemachine.controller.acl import Operation, ResourceType
from strandline.statemachine.transactions.transaction_commands import TopicPartition
from strandline.statemachine.transactions.transaction_state import Transaction
from tests.kafka.handlers.groups_home import JOIN, MINUTE, Home, beat

Asked = tuple[Operation, ResourceType]
CODES: Final = {
    ResourceType.TOPIC: ErrorCode.topic_authorization_failed,
    ResourceType.GROUP: ErrorCode.group_authorization_failed,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
    ResourceType.CLUSTER: ErrorCode.cluster_authorization_failed,
}


class Recorder:
    """An authorizer that notes each question, and says no where a test says so."""

    def __init__(self, refuse: Callable[[Asked], bool]) -> None:
        self.asked: set[Asked] = set()
        self.names: set[str] = set()
        self._refuse = refuse

    def allows(self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        assert (principal, host) == ("User:ANONYMOUS", "127.0.0.1")
        self.names.add(name)
        self.asked.add((operation, kind))
        return not self._refuse((operation, kind))

    def allows_some(self, principal: str, host: str, operation: Operation, kind: ResourceType) -> bool:
        return self.allows(principal, host, operation, kind, "any")


class Place(Home):
    """A node that leads all coordinators, of groups and of transactions, with a topic and a member."""

    def __init__(self) -> None:
        super().__init__()
        one = Transaction("id", 7, 0, 1000, started=0)
        self.done: list[str] = []
        """Methods of the transaction coordinator that were called."""

        def answer(name: str, value: Any) -> Callable[..., Any]:
            async def called(*_: Any, **__: Any) -> Any:
                self.done.append(name)
                return value

            return called

        async def confirm() -> bool:
            return True

        coordinator = SimpleNamespace(
            enlist=answer("enlist", None),
            end=answer("end", (7, 1)),
            init_producer=answer("init_producer", one),
            describe=answer("describe", one),
            machine=SimpleNamespace(transactions={"id": one}),
            replica=SimpleNamespace(confirm=confirm),
        )
        place = SimpleNamespace(raft_group=1, number=0)

        async def found(_: str) -> Any:
            return place

        groups = self.coordinators
        self.coordinators = cast(
            Any,
            SimpleNamespace(
                groups_for=groups.groups_for,
                led_groups=cast(Any, groups).led_groups,
                loading=lambda _: False,
                transactions_for=lambda _: coordinator,
                led_transactions=lambda: [coordinator],
                group_place=found,
                transaction_place=found,
            ),
        )
        self.transaction = one

    async def begin(self) -> None:
        topic = self.topic("t")
        self.transaction.partitions[TopicPartition(topic.topic_id, 0)] = None
        await beat(self, subscribed_topic_names=["t"])


NOW: Final = timedelta(seconds=0)
PART: Final = {"partition_index": 0}
RESOURCES: Final[list[dict[str, Any]]] = [
    {"resource_type": kind, "resource_name": name, "configs": [], "configuration_keys": None}
    for kind, name in ((2, "t"), (4, "1"), (32, "g"))
]
ACL: Final = {
    "resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:alice",
    "host": "*", "operation": 3, "permission_type": 3,
}  # fmt: skip
FILTER: Final = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
    "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip
OFFSETS: Final = [
    {
        "name": "t",
        "partitions": [
            {
                "partition_index": 0,
                "committed_offset": 1,
                "committed_leader_epoch": 0,
                "committed_metadata": "",
            }
        ],
    }
]
TXN: Final = {"transactional_id": "id", "producer_id": 7, "producer_epoch": 0}
MEMBER: Final = {"group_id": "g", "generation_id": 1, "member_id": "m"}
NEW: Final = {
    "name": "new", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": [],
}  # fmt: skip

REQUESTS: Final[dict[ApiKey, list[dict[str, Any]]]] = {
    ApiKey.METADATA: [
        {
            "topics": [{"name": "t", "topic_id": None}, {"name": "absent", "topic_id": None}],
            "allow_auto_topic_creation": True, "include_topic_authorized_operations": False,
            "include_cluster_authorized_operations": True,
        },
    ],
    ApiKey.OFFSET_COMMIT: [
        {"group_id": "g", "member_id": "", "generation_id_or_member_epoch": -1, "topics": OFFSETS}
    ],
    ApiKey.OFFSET_FETCH: [
        {
            "groups": [
                {"group_id": "other", "member_id": None, "member_epoch": -1,
                 "topics": [{"name": "t", "partition_indexes": [0]}]}
            ],
            "require_stable": False,
        }
    ],
    ApiKey.FIND_COORDINATOR: [{"key_type": kind, "coordinator_keys": ["g"]} for kind in (0, 1)],
    ApiKey.JOIN_GROUP: [
        {"group_id": "c", "member_id": "", "session_timeout": timedelta(seconds=10),
         "rebalance_timeout": MINUTE, "protocol_type": "consumer",
         "protocols": [{"name": "range", "metadata": b"t"}]}
    ],
    ApiKey.HEARTBEAT: [MEMBER],
    ApiKey.LEAVE_GROUP: [{"group_id": "g", "members": [{"member_id": "x"}]}],
    ApiKey.SYNC_GROUP: [{**MEMBER, "protocol_type": "consumer", "protocol_name": "range", "assignments": []}],
    ApiKey.DESCRIBE_GROUPS: [{"groups": ["g"], "include_authorized_operations": False}],
    ApiKey.LIST_GROUPS: [{"states_filter": [], "types_filter": []}],
    ApiKey.CREATE_TOPICS: [{"topics": [NEW], "timeout": NOW, "validate_only": True}],
    ApiKey.DELETE_TOPICS: [{"topics": [{"name": "t", "topic_id": None}], "timeout": timedelta(seconds=1)}],
    ApiKey.DELETE_RECORDS: [
        {"topics": [{"name": "t", "partitions": [{**PART, "offset": 0}]}], "timeout": timedelta(seconds=1)}
    ],
    ApiKey.INIT_PRODUCER_ID: [
        {"transactional_id": name, "transaction_timeout": MINUTE, "producer_id": -1, "producer_epoch": -1}
        for name in ("id", None)
    ],
    ApiKey.OFFSET_FOR_LEADER_EPOCH: [
        {"replica_id": -1, "topics": [{"topic": "t", "partitions": [
            {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 1}]}]}
    ],
    ApiKey.ADD_PARTITIONS_TO_TXN: [
        {"v3_and_below_transactional_id": "id", "v3_and_below_producer_id": 7,
         "v3_and_below_producer_epoch": 0, "v3_and_below_topics": [{"name": "t", "partitions": [0]}]}
    ],
    ApiKey.ADD_OFFSETS_TO_TXN: [{**TXN, "group_id": "g"}],
    ApiKey.END_TXN: [{**TXN, "committed": True}],
    ApiKey.WRITE_TXN_MARKERS: [
        {"markers": [{"producer_id": 7, "producer_epoch": 0, "transaction_result": False,
                      "coordinator_epoch": 0, "topics": [{"name": "t", "partition_indexes": [0]}]}]}
    ],
    ApiKey.TXN_OFFSET_COMMIT: [{**TXN, **MEMBER, "group_instance_id": None, "topics": OFFSETS}],
    ApiKey.DESCRIBE_ACLS: [FILTER],
    ApiKey.CREATE_ACLS: [{"creations": [ACL]}],
    ApiKey.DELETE_ACLS: [{"filters": [FILTER]}],
    ApiKey.DESCRIBE_CONFIGS: [
        {"resources": RESOURCES, "include_synonyms": False, "include_documentation": False}
    ],
    ApiKey.ALTER_CONFIGS: [{"resources": RESOURCES, "validate_only": True}],
    ApiKey.INCREMENTAL_ALTER_CONFIGS: [{"resources": RESOURCES, "validate_only": True}],
    ApiKey.CREATE_PARTITIONS: [
        {"topics": [{"name": "t", "count": 3, "assignments": None}], "timeout": NOW, "validate_only": True}
    ],
    ApiKey.DELETE_GROUPS: [{"groups_names": ["other"]}],
    ApiKey.ELECT_LEADERS: [
        {"election_type": 0, "topic_partitions": [{"topic": "t", "partitions": [0]}], "timeout": NOW}
    ],
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: [
        {"timeout": timedelta(seconds=1), "allow_replication_factor_change": True,
         "topics": [{"name": "t", "partitions": [{**PART, "replicas": None}]}]}
    ],
    ApiKey.LIST_PARTITION_REASSIGNMENTS: [{"timeout": timedelta(seconds=1), "topics": None}],
    ApiKey.OFFSET_DELETE: [{"group_id": "g", "topics": [{"name": "t", "partitions": [PART]}]}],
    ApiKey.DESCRIBE_CLIENT_QUOTAS: [{"components": [], "strict": False}],
    ApiKey.ALTER_CLIENT_QUOTAS: [
        {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": "alice"}],
                    "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": False}],
                }
            ],
            "validate_only": False,
        }
    ],
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: [{"users": None}],
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: [{"deletions": [{"name": "a", "mechanism": 1}], "upsertions": []}],
    ApiKey.DESCRIBE_QUORUM: [
        {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}
    ],
    ApiKey.DESCRIBE_LOG_DIRS: [{"topics": None}],
    ApiKey.UPDATE_FEATURES: [
        {"timeout": NOW, "validate_only": True, "feature_updates": [
            {"feature": "strandline.version", "max_version_level": 1, "upgrade_type": 1}]}
    ],
    ApiKey.UNREGISTER_BROKER: [{"broker_id": 77}],
    ApiKey.DESCRIBE_CLUSTER: [
        {"include_cluster_authorized_operations": True, "endpoint_type": 1, "include_fenced_brokers": False}
    ],
    ApiKey.DESCRIBE_PRODUCERS: [{"topics": [{"name": "t", "partition_indexes": [0]}]}],
    ApiKey.DESCRIBE_TRANSACTIONS: [{"transactional_ids": ["id"]}],
    ApiKey.LIST_TRANSACTIONS: [
        {"state_filters": [], "producer_id_filters": [], "duration_filter": -1,
         "transactional_id_pattern": None}
    ],
    ApiKey.CONSUMER_GROUP_HEARTBEAT: [
        {"group_id": "h", "member_id": "m", "member_epoch": 0, **JOIN, "subscribed_topic_names": ["t"]}
    ],
    ApiKey.CONSUMER_GROUP_DESCRIBE: [{"group_ids": ["g"], "include_authorized_operations": False}],
    ApiKey.LIST_CONFIG_RESOURCES: [{"resource_types": []}],
}  # fmt: skip
"""A request of each kind, or several, for a resource of each type that it can name."""


async def sent(place: Place, key: ApiKey) -> list[Any]:
    """The answers to all requests of a kind."""
    if key is ApiKey.PRODUCE:
        return [await place.produce({0: None}, transactional_id=name) for name in (None, "id")]
    if key is ApiKey.FETCH:
        return [await place.fetch({0: 0})]
    if key is ApiKey.LIST_OFFSETS:
        return [await place.list_offsets([(0, -1)])]
    if key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.API_VERSIONS):
        return []
    version = 10 if key is ApiKey.METADATA else None  # the last with the cluster's authorized operations
    return [await place.ask(key, version, **asked) for asked in REQUESTS[key]]


async def asked_for(key: ApiKey, refuse: Callable[[Asked], bool]) -> tuple[Recorder, list[Any], Place]:
    recorder, place = Recorder(refuse), Place()
    try:
        await place.begin()
        place.done.clear()
        place.authorizer = cast(Authorizer, recorder)
        return recorder, await sent(place, key), place
    finally:
        place.close()


def codes(value: Any) -> Iterator[ErrorCode]:
    """Every error code in an answer."""
    if isinstance(value, ErrorCode):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from codes(each)
    elif is_dataclass(value):
        for field in fields(value):
            found = getattr(value, field.name)
            if field.name == "topic_config_error_code":
                found = ErrorCode(found)
            yield from codes(found)


def refusals(answers: Any) -> set[ErrorCode]:
    return {code for code in codes(answers) if code in CODES.values()}
