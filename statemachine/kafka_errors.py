"""The Kafka error codes that state machines and coordinators answer with, by Kafka's own names and numbers.

A state machine refuses by value, and what it refuses usually goes back to a Kafka client as it is. So
its answers carry Kafka's codes from the start; only those in use stand here.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class KafkaError(IntEnum):
    """Kafka's numbers: https://kafka.apache.org/protocol#protocol_error_codes."""

    UNKNOWN_SERVER_ERROR = -1
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    REBALANCE_IN_PROGRESS = 27
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    STALE_BROKER_EPOCH = 77
    FENCED_INSTANCE_ID = 82
    PRODUCER_FENCED = 90
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    UNKNOWN_TOPIC_ID = 100
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    STALE_MEMBER_EPOCH = 113
    INVALID_REGISTRATION = 119


class Refused(NamedTuple):
    """A command without effect: Kafka's error, and one line that names cause and cure."""

    error: KafkaError
    message: str
