"""The Kafka error codes that state machines answer with, under Kafka's own names and numbers.

A state machine refuses by value, and what it refuses usually goes back to a Kafka client as it is. So
its answers carry Kafka's codes from the start; only those in use stand here.
"""

from __future__ import annotations

from enum import IntEnum


class KafkaError(IntEnum):
    """Kafka's numbers: https://kafka.apache.org/protocol#protocol_error_codes."""

    UNKNOWN_SERVER_ERROR = -1
    REQUEST_TIMED_OUT = 7
    INVALID_TOPIC_EXCEPTION = 17
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    STALE_BROKER_EPOCH = 77
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    UNKNOWN_TOPIC_ID = 100
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
