"""librdkafka as the command line uses it: quiet, bounded in time, its errors turned into one line each."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigEntry, ConfigResource, ConfigSource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.admin._topic import TopicDescription

from cluster.failure import CommandFailed, one_line

REQUEST_SECONDS: Final = 20.0
_CONNECT_SECONDS: Final = 5.0
_REACH_SECONDS: Final = 2.0

Value = TypeVar("Value")


def client_config(bootstrap: str, **more: Any) -> dict[str, Any]:
    """What every client here is configured with. librdkafka's names, with underscores for dots."""
    # Takes what librdkafka would print; a command tells the end of the story itself.
    logger = logging.Logger("librdkafka")
    logger.addHandler(logging.NullHandler())
    return {
        "bootstrap.servers": bootstrap,
        "client.id": "strandline-cli",
        "socket.connection.setup.timeout.ms": int(_CONNECT_SECONDS * 1000),
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 500,
        "logger": logger,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def reach(bootstrap: str) -> None:
    """CommandFailed at once when nobody takes connections there, where librdkafka would keep trying."""
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        # OverflowError and ValueError: no port, or none that there could be.
        with contextlib.suppress(OSError, OverflowError, ValueError):
            socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_SECONDS).close()
            return
    raise unreachable(bootstrap)


def unreachable(bootstrap: str) -> CommandFailed:
    """No broker answered."""
    return CommandFailed(
        f"no Kafka broker answers at {bootstrap}",
        "start a cluster with `strandline cluster up`, or name one with --bootstrap or --cluster",
    )


def failed(what: str, error: KafkaError) -> CommandFailed:
    """A broker, or the client, refused."""
    return CommandFailed(f"{what}: {one_line(error.str())} ({error.name()})", _cure(error))


def error_of(exception: KafkaException) -> KafkaError:
    """The error a KafkaException carries."""
    error = exception.args[0]
    assert isinstance(error, KafkaError)
    return error


def _cure(error: KafkaError) -> str:
    match error.code():
        case KafkaError.UNKNOWN_TOPIC_OR_PART | KafkaError._UNKNOWN_TOPIC:
            return "see the topics there are with `strandline topic list`, or create it"
        case KafkaError.TOPIC_ALREADY_EXISTS:
            return "choose another name, or add --if-not-exists"
        case KafkaError.INVALID_REPLICATION_FACTOR:
            return "ask for no more replicas than there are live nodes (`strandline cluster status`)"
        case KafkaError.INVALID_CONFIG | KafkaError.INVALID_PARTITIONS | KafkaError.TOPIC_EXCEPTION:
            return "correct the value"
        case KafkaError._UNKNOWN_PARTITION:
            return "see the topic's partitions with `strandline topic describe`"
        case KafkaError.GROUP_ID_NOT_FOUND:
            return "see the groups there are with `strandline group list`"
        case KafkaError.NON_EMPTY_GROUP | KafkaError.UNKNOWN_MEMBER_ID:
            return "stop the group's members first: see them with `strandline group describe`"
        case KafkaError._TIMED_OUT:
            return "see with `strandline cluster status` whether a partition or a coordinator has no leader"
        case KafkaError.MSG_SIZE_TOO_LARGE:
            return "send less at a time, or raise the topic's max.message.bytes"
        case _:
            return "try again; if it stays, see the nodes with `strandline cluster status` and their logs"


class Topics:
    """Topics by way of Kafka's own admin requests. Everything raises CommandFailed."""

    def __init__(self, bootstrap: str) -> None:
        reach(bootstrap)
        self._bootstrap = bootstrap
        self._admin = AdminClient(client_config(bootstrap))

    @property
    def admin(self) -> AdminClient:
        """For requests that have no method here; their future goes through `result`."""
        return self._admin

    def names(self) -> dict[str, tuple[int, int]]:
        """Every topic's count of partitions and of replicas, by name."""
        try:
            found = self._admin.list_topics(timeout=_CONNECT_SECONDS).topics
        except KafkaException as error:
            raise self._told("the topics cannot be listed", error_of(error)) from None
        return {
            name: (
                len(topic.partitions),
                max((len(partition.replicas) for partition in topic.partitions.values()), default=0),
            )
            for name, topic in sorted(found.items())
        }

    def describe(self, name: str) -> TopicDescription:
        """One topic's partitions."""
        future = self._admin.describe_topics(TopicCollection([name]), request_timeout=REQUEST_SECONDS)[name]
        description: TopicDescription = self.result(f"topic {name} cannot be described", future)
        return description

    def configs(self, name: str) -> dict[str, str | None]:
        """What is set for this topic itself."""
        resource = ConfigResource(ResourceType.TOPIC, name)
        future = self._admin.describe_configs([resource], request_timeout=REQUEST_SECONDS)[resource]
        entries: Mapping[str, ConfigEntry] = self.result(
            f"topic {name}'s configuration cannot be read", future
        )
        return {
            key: entry.value
            for key, entry in sorted(entries.items())
            # The library says that it is this enum, and gives its number.
            if ConfigSource(entry.source) is ConfigSource.DYNAMIC_TOPIC_CONFIG
        }

    def result(self, what: str, future: Future[Value]) -> Value:
        """What an admin request gave."""
        try:
            return future.result(REQUEST_SECONDS + _CONNECT_SECONDS)
        except TimeoutError:
            raise self._told(what, KafkaError(KafkaError._TIMED_OUT)) from None
        except KafkaException as error:
            raise self._told(what, error_of(error)) from None

    def _told(self, what: str, error: KafkaError) -> CommandFailed:
        if error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
            return unreachable(self._bootstrap)
        return failed(what, error)
