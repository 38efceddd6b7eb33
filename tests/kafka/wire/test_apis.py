"""The versions on offer are a Kafka 4.1.0 broker's: none of its stable ones less, no unstable one more."""

from __future__ import annotations

from strandline.node.kafka.wire.apis import APIS, ApiKey

KAFKA = {
    "PRODUCE": (3, 13), "FETCH": (4, 18), "LIST_OFFSETS": (1, 10), "METADATA": (0, 13),
    "OFFSET_COMMIT": (2, 9), "OFFSET_FETCH": (1, 9), "FIND_COORDINATOR": (0, 6), "JOIN_GROUP": (0, 9),
    "HEARTBEAT": (0, 4), "LEAVE_GROUP": (0, 5), "SYNC_GROUP": (0, 5), "DESCRIBE_GROUPS": (0, 6),
    "LIST_GROUPS": (0, 5), "API_VERSIONS": (0, 4), "CREATE_TOPICS": (2, 7), "DELETE_TOPICS": (1, 6),
    "DELETE_RECORDS": (0, 2), "INIT_PRODUCER_ID": (0, 5), "OFFSET_FOR_LEADER_EPOCH": (2, 4),
    "ADD_PARTITIONS_TO_TXN": (0, 5), "ADD_OFFSETS_TO_TXN": (0, 4), "END_TXN": (0, 5),
    "WRITE_TXN_MARKERS": (1, 1), "TXN_OFFSET_COMMIT": (0, 5), "DESCRIBE_CONFIGS": (1, 4),
    "ALTER_CONFIGS": (0, 2), "CREATE_PARTITIONS": (0, 3), "DELETE_GROUPS": (0, 2), "ELECT_LEADERS": (0, 2),
    "INCREMENTAL_ALTER_CONFIGS": (0, 1), "OFFSET_DELETE": (0, 0), "DESCRIBE_CLUSTER": (0, 2),
    "DESCRIBE_QUORUM": (0, 2), "DESCRIBE_LOG_DIRS": (1, 4), "UPDATE_FEATURES": (0, 2),
    "UNREGISTER_BROKER": (0, 0),
    "DESCRIBE_PRODUCERS": (0, 0), "DESCRIBE_TRANSACTIONS": (0, 0), "LIST_TRANSACTIONS": (0, 2),
    "SASL_HANDSHAKE": (0, 1), "SASL_AUTHENTICATE": (0, 2), "DESCRIBE_CLIENT_QUOTAS": (0, 1),
    "ALTER_CLIENT_QUOTAS": (0, 1),
    "ALTER_PARTITION_REASSIGNMENTS": (0, 1), "LIST_PARTITION_REASSIGNMENTS": (0, 0),
    "DESCRIBE_ACLS": (1, 3), "CREATE_ACLS": (1, 3), "DELETE_ACLS": (1, 3),
    "DESCRIBE_USER_SCRAM_CREDENTIALS": (0, 0), "ALTER_USER_SCRAM_CREDENTIALS": (0, 0),
    "CONSUMER_GROUP_HEARTBEAT": (0, 1), "CONSUMER_GROUP_DESCRIBE": (0, 1), "LIST_CONFIG_RESOURCES": (0, 1),
}  # fmt: skip
"""What kafka-clients 4.1.0's ApiKeys gives as the latest stable version, and the oldest there is."""
FOR_BROKERS = {ApiKey.ADD_PARTITIONS_TO_TXN: 3}
"""Versions above these are spoken between Kafka's brokers only."""

OUTSIDE_REQUESTS = {ApiKey.SASL_HANDSHAKE: 1}
"""Versions below these go on with bytes that are in no request."""


def test_every_stable_version_of_kafka_s_is_on_offer_and_no_other() -> None:
    offered = {api.key.name: (api.first, api.last) for api in APIS.values()}
    kafka = {name: KAFKA[name] for name in offered}
    for key, first in OUTSIDE_REQUESTS.items():
        kafka[key.name] = first, kafka[key.name][1]
    for key, last in FOR_BROKERS.items():
        kafka[key.name] = kafka[key.name][0], last
    assert offered == kafka


def test_what_old_clients_look_for_is_advertised_from_version_0() -> None:
    """librdkafka 2.0.2, which kcat has, compresses nothing and logs in nowhere without these."""
    advertised = {api.key for api in APIS.values() if api.advertised == 0}
    assert advertised == {ApiKey.PRODUCE, ApiKey.SASL_HANDSHAKE}
