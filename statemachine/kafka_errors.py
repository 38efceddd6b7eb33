"""The errors that state machines and coordinators answer with, by Kafka's own names.

A state machine refuses by value, and its refusal usually goes back to a Kafka client as it is. So the
refusals have Kafka's names from the start. Their numbers are the wire's, which `node/kafka` alone knows.
"""

from __future__ import annotations

from enum import StrEnum, auto
from typing import NamedTuple


class KafkaError(StrEnum):
    """Those in use; https://kafka.apache.org/protocol#protocol_error_codes says what each one means.

    The value is the name in small letters; calls between nodes carry it.
    """

    UNKNOWN_SERVER_ERROR = auto()
    UNKNOWN_TOPIC_OR_PARTITION = auto()
    REQUEST_TIMED_OUT = auto()
    MESSAGE_TOO_LARGE = auto()
    COORDINATOR_LOAD_IN_PROGRESS = auto()
    COORDINATOR_NOT_AVAILABLE = auto()
    NOT_COORDINATOR = auto()
    INVALID_TOPIC_EXCEPTION = auto()
    ILLEGAL_GENERATION = auto()
    INCONSISTENT_GROUP_PROTOCOL = auto()
    INVALID_GROUP_ID = auto()
    UNKNOWN_MEMBER_ID = auto()
    INVALID_SESSION_TIMEOUT = auto()
    REBALANCE_IN_PROGRESS = auto()
    INVALID_COMMIT_OFFSET_SIZE = auto()
    UNSUPPORTED_VERSION = auto()
    TOPIC_ALREADY_EXISTS = auto()
    INVALID_PARTITIONS = auto()
    INVALID_REPLICATION_FACTOR = auto()
    INVALID_REPLICA_ASSIGNMENT = auto()
    INVALID_CONFIG = auto()
    INVALID_REQUEST = auto()
    POLICY_VIOLATION = auto()
    INVALID_PRODUCER_EPOCH = auto()
    INVALID_TXN_STATE = auto()
    INVALID_PRODUCER_ID_MAPPING = auto()
    INVALID_TRANSACTION_TIMEOUT = auto()
    CONCURRENT_TRANSACTIONS = auto()
    NON_EMPTY_GROUP = auto()
    GROUP_ID_NOT_FOUND = auto()
    STALE_BROKER_EPOCH = auto()
    MEMBER_ID_REQUIRED = auto()
    GROUP_MAX_SIZE_REACHED = auto()
    FENCED_INSTANCE_ID = auto()
    NO_REASSIGNMENT_IN_PROGRESS = auto()
    PRODUCER_FENCED = auto()
    INVALID_UPDATE_VERSION = auto()
    FEATURE_UPDATE_FAILED = auto()
    UNKNOWN_TOPIC_ID = auto()
    BROKER_ID_NOT_REGISTERED = auto()
    INCONSISTENT_TOPIC_ID = auto()
    INCONSISTENT_CLUSTER_ID = auto()
    TRANSACTIONAL_ID_NOT_FOUND = auto()
    FENCED_MEMBER_EPOCH = auto()
    UNRELEASED_INSTANCE_ID = auto()
    UNSUPPORTED_ASSIGNOR = auto()
    STALE_MEMBER_EPOCH = auto()
    INVALID_REGISTRATION = auto()
    INVALID_REGULAR_EXPRESSION = auto()
    UNSUPPORTED_SASL_MECHANISM = auto()
    RESOURCE_NOT_FOUND = auto()
    DUPLICATE_RESOURCE = auto()
    UNACCEPTABLE_CREDENTIAL = auto()
    TOPIC_AUTHORIZATION_FAILED = auto()
    GROUP_AUTHORIZATION_FAILED = auto()
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = auto()


class Refused(NamedTuple):
    """A command without effect: Kafka's error, and one line that names cause and cure."""

    error: KafkaError
    message: str = ""
    """"" where the error says it all, or Kafka's answer has no room for a line."""
