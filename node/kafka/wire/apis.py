"""The requests that are spoken: one table, from which everything else about versions follows.

ApiVersions advertises exactly these ranges, the codec decodes exactly these, and docs/kafka-protocol.md
lists exactly these. A request that is not in the table is not served in part either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple, cast

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType
from kio.static.primitive import i32Timedelta


class ApiKey(IntEnum):
    """Kafka's numbers: https://kafka.apache.org/protocol#protocol_api_keys."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74


@dataclass(frozen=True, slots=True)
class Api:
    """One row of the table.

    `first` to `last` are the supported versions; those from `flexible` on have compact lengths and tagged
    fields (KIP-482). `advertised` replaces `first` in the answer to ApiVersions. `overlaps`: consecutive
    requests of this kind on one connection may be handled at the same time; every other request sees the
    effects of all that came before it.
    """

    key: ApiKey
    first: int
    last: int
    flexible: int
    overlaps: bool = False
    advertised: int | None = None


def _table(*rows: Api) -> Mapping[int, Api]:
    return MappingProxyType({int(row.key): row for row in rows})


APIS: Final = _table(
    # Older librdkafka (2.0.2 for one) compresses nothing unless version 0 is advertised; Kafka 4 does it too.
    Api(ApiKey.PRODUCE, 3, 13, flexible=9, overlaps=True, advertised=0),
    Api(ApiKey.FETCH, 4, 18, flexible=12),
    Api(ApiKey.LIST_OFFSETS, 1, 10, flexible=6),
    Api(ApiKey.METADATA, 0, 13, flexible=9),
    # Of these two and INIT_PRODUCER_ID Kafka 4.1 has one version more, which it calls unstable.
    Api(ApiKey.OFFSET_COMMIT, 2, 9, flexible=8, overlaps=True),
    Api(ApiKey.OFFSET_FETCH, 1, 9, flexible=6),
    # librdkafka takes this key for the sign that a broker reads lz4.
    Api(ApiKey.FIND_COORDINATOR, 0, 6, flexible=3),
    Api(ApiKey.JOIN_GROUP, 0, 9, flexible=6),
    Api(ApiKey.HEARTBEAT, 0, 4, flexible=4),
    Api(ApiKey.LEAVE_GROUP, 0, 5, flexible=4),
    Api(ApiKey.SYNC_GROUP, 0, 5, flexible=4),
    Api(ApiKey.DESCRIBE_GROUPS, 0, 6, flexible=5),
    Api(ApiKey.LIST_GROUPS, 0, 5, flexible=3),
    # Version 0 goes on with tokens that are in no request: only clients of before KIP-152 (2017) need it.
    # Older librdkafka (2.0.2 for one) does not use it, and logs in nowhere unless it is advertised.
    Api(ApiKey.SASL_HANDSHAKE, 1, 1, flexible=2, advertised=0),
    Api(ApiKey.API_VERSIONS, 0, 4, flexible=3),
    Api(ApiKey.CREATE_TOPICS, 2, 7, flexible=5),
    Api(ApiKey.DELETE_TOPICS, 1, 6, flexible=4),
    Api(ApiKey.DELETE_RECORDS, 0, 2, flexible=2),
    Api(ApiKey.INIT_PRODUCER_ID, 0, 5, flexible=2),
    Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, flexible=4),
    # Higher versions are for brokers.
    Api(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 3, flexible=3),
    Api(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, flexible=3),
    Api(ApiKey.END_TXN, 0, 5, flexible=3),
    Api(ApiKey.WRITE_TXN_MARKERS, 1, 1, flexible=1),
    Api(ApiKey.TXN_OFFSET_COMMIT, 0, 5, flexible=3),
    Api(ApiKey.DESCRIBE_ACLS, 1, 3, flexible=2),
    Api(ApiKey.CREATE_ACLS, 1, 3, flexible=2),
    Api(ApiKey.DELETE_ACLS, 1, 3, flexible=2),
    Api(ApiKey.DESCRIBE_CONFIGS, 1, 4, flexible=4),
    Api(ApiKey.ALTER_CONFIGS, 0, 2, flexible=2),
    Api(ApiKey.DESCRIBE_LOG_DIRS, 1, 4, flexible=2),
    Api(ApiKey.SASL_AUTHENTICATE, 0, 2, flexible=2),
    Api(ApiKey.CREATE_PARTITIONS, 0, 3, flexible=2),
    Api(ApiKey.DELETE_GROUPS, 0, 2, flexible=2),
    Api(ApiKey.ELECT_LEADERS, 0, 2, flexible=2),
    Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, flexible=1),
    Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, flexible=0),
    Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, flexible=0),
    Api(ApiKey.OFFSET_DELETE, 0, 0, flexible=1),
    Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, flexible=1),
    Api(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, flexible=1),
    Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, flexible=0),
    Api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, flexible=0),
    Api(ApiKey.DESCRIBE_QUORUM, 0, 2, flexible=0),
    Api(ApiKey.UPDATE_FEATURES, 0, 2, flexible=0),
    Api(ApiKey.DESCRIBE_CLUSTER, 0, 2, flexible=0),
    Api(ApiKey.DESCRIBE_PRODUCERS, 0, 0, flexible=0),
    Api(ApiKey.UNREGISTER_BROKER, 0, 0, flexible=0),
    Api(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, flexible=0),
    Api(ApiKey.LIST_TRANSACTIONS, 0, 2, flexible=0),
    Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, flexible=0),
    Api(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, flexible=0),
    Api(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, flexible=0),
)

_NO_THROTTLE: Final = cast(i32Timedelta, timedelta(0))


class Feature(NamedTuple):
    """A feature of Kafka's clusters (KIP-584): the levels spoken, and the one in force on all nodes."""

    name: str
    first: int
    last: int
    level: int


FEATURES: Final = (Feature("group.version", 0, 1, 1), Feature("transaction.version", 0, 2, 2))
"""The consumer protocol of KIP-848 and the transactions of KIP-890: clients look here before they use them.
They are the release's; what is negotiated between releases is the cluster's own feature level."""


def api_versions_response(version: int, features: Iterable[Feature] = FEATURES, epoch: int = 0) -> Any:
    """The answer to ApiVersions in one of its versions: the whole table, and from version 3 on features."""
    return _usual(version, tuple(features), epoch)


@lru_cache(maxsize=64)
def _usual(version: int, features: tuple[Feature, ...], epoch: int) -> Any:
    """Each client asks for it first: making it was a tenth of what a connection with a login costs."""
    return _api_versions(version, ErrorCode.none, tuple(APIS.values()), features, epoch)


def unsupported_api_versions_response() -> Any:
    """The answer to an ApiVersions of a version not spoken here (KIP-511).

    It has version 0, which every client reads, the error, and the range of ApiVersions itself, so that the
    client can ask again.
    """
    return _api_versions(0, ErrorCode.unsupported_version, (APIS[ApiKey.API_VERSIONS],))


def _api_versions(
    version: int, error: ErrorCode, rows: tuple[Api, ...], features: tuple[Feature, ...] = (), epoch: int = 0
) -> Any:
    module: Any = load_payload_module(ApiKey.API_VERSIONS, version, EntityType.response)
    keys = tuple(
        module.ApiVersion(
            api_key=int(row.key),
            min_version=row.first if row.advertised is None else row.advertised,
            max_version=row.last,
        )
        for row in rows
    )
    throttle = {"throttle_time": _NO_THROTTLE} if version >= 1 else {}
    told = _features(module, version, features, epoch) if version >= 3 else {}
    return module.ApiVersionsResponse(error_code=error, api_keys=keys, **throttle, **told)


def _features(module: Any, version: int, features: tuple[Feature, ...], epoch: int) -> dict[str, Any]:
    # Clients that speak version 3 cannot read that a feature may be at level 0 (KIP-1022): it is left out.
    spoken = [feature for feature in features if version > 3 or feature.first > 0]
    return {
        "supported_features": tuple(
            module.SupportedFeatureKey(name=one.name, min_version=one.first, max_version=one.last)
            for one in spoken
        ),
        "finalized_features_epoch": epoch,
        "finalized_features": tuple(
            module.FinalizedFeatureKey(
                name=one.name, max_version_level=one.level, min_version_level=one.level
            )
            for one in features
        ),
    }
