"""What is written to in a run: a topic for each way in which records go, and two whose records stay."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from strandline.cluster.kafka_client import client_config
from strandline.cluster.kafka_errors import error_of

RETENTION_BYTES = 16 << 20
"""Of a partition of the topic that is bounded by size."""
RETENTION_SECONDS = 60.0
"""Of the topic that is bounded by time."""
_REQUEST_SECONDS = 10.0
_DONE = {
    "create": KafkaError.TOPIC_ALREADY_EXISTS,
    "delete": KafkaError.UNKNOWN_TOPIC_OR_PART,
}


class Goes(Enum):
    """How a topic's records go."""

    NEVER = "kept for ever"
    SIZE = "retention.bytes"
    TIME = "retention.ms"
    TRIMMED = "DeleteRecords"
    RENEWED = "deleted and created again"


class Topic(NamedTuple):
    """`share` is the part of the load it gets, from `producers` together; 0: a few records at the start."""

    name: str
    goes: Goes
    partitions: int
    producers: int
    share: float
    configs: dict[str, str]


TOPICS = (
    Topic("kept", Goes.NEVER, 2, 1, 0.05, {"retention.ms": "-1"}),
    Topic("idle", Goes.NEVER, 2, 1, 0.0, {"retention.ms": "-1"}),
    Topic("by-size", Goes.SIZE, 3, 2, 0.35,
          {"retention.ms": "-1", "retention.bytes": str(RETENTION_BYTES)}),
    Topic("by-time", Goes.TIME, 3, 2, 0.35, {"retention.ms": str(round(RETENTION_SECONDS * 1000))}),
    Topic("trimmed", Goes.TRIMMED, 2, 1, 0.15, {"retention.ms": "-1"}),
    Topic("renewed", Goes.RENEWED, 2, 1, 0.1, {}),
)  # fmt: skip


class Administration:
    """Requests about topics, repeated while nodes die. They block; TimeoutError when none gets through."""

    def __init__(self, bootstrap: str, replicas: int) -> None:
        self._admin = AdminClient(client_config(bootstrap))
        self._replicas = replicas

    def create(self, topic: Topic, seconds: float) -> None:
        """Create it. An answer that was lost may have been a yes: that it is there already is one too."""
        new = NewTopic(topic.name, topic.partitions, self._replicas, config=topic.configs)
        self._until("create", lambda: self._admin.create_topics([new])[topic.name], seconds)

    def delete(self, name: str, seconds: float) -> None:
        """Delete it with its records; that it is not there any more counts as done."""
        self._until("delete", lambda: self._admin.delete_topics([name])[name], seconds)

    def trim(self, name: str, partition: int, offset: int) -> int | None:
        """DeleteRecords below an offset: the first offset it answers, None when it did not get through."""
        where = TopicPartition(name, partition, offset)
        try:
            future = self._admin.delete_records([where], request_timeout=_REQUEST_SECONDS)[where]
            return int(future.result(_REQUEST_SECONDS).low_watermark)
        except (KafkaException, TimeoutError):
            return None

    def _until(self, what: str, request: Callable[[], Future[None]], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            try:
                request().result(_REQUEST_SECONDS)
                return
            except KafkaException as error:
                problem: Exception = error
                if error_of(error).code() == _DONE[what]:
                    return
            except TimeoutError as error:
                problem = error
            if time.monotonic() > deadline:
                raise TimeoutError(f"the topic cannot be {what}d: {problem!r}") from problem
