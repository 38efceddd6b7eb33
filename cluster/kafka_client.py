"""librdkafka as the command line uses it: quiet, bounded in time, its errors turned into one line each."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.admin._topic import TopicDescription
from confluent_kafka.cimpl import NewPartitions, NewTopic

from strandline.cluster.client_settings import CURRENT
from strandline.cluster.failure import MISUSED, CommandFailed, one_line
from strandline.cluster.kafka_errors import (
    error_of,
    failed,
    is_internal,
    note,
    patiently,
    reach,
    refused_since,
)
from strandline.cluster.target import Target
from strandline.cluster.token_file import has_token, token, token_and_end

REQUEST_SECONDS: Final = 20.0
_CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = REQUEST_SECONDS + _CONNECT_SECONDS
"""Seconds to wait for the future of a request."""
_LOOK_SECONDS: Final = 0.25
"""Between two looks whether the login was refused."""
_REFUSED_SECONDS: Final = 1.5
"""Time for the other nodes, once one has refused the login: each is tried within half a second."""
_SET: Final = AlterConfigOpType.SET
_DELETE: Final = AlterConfigOpType.DELETE

Value = TypeVar("Value")


def client_config(bootstrap: str, **more: Any) -> dict[str, Any]:
    """Configuration of every client here: librdkafka's names, with underscores for dots."""
    # Takes what librdkafka would print; a command tells the end of the story itself.
    logger = logging.Logger("librdkafka")
    logger.addHandler(logging.NullHandler())
    settings: Mapping[str, Any] = CURRENT.get()
    if has_token(settings):
        token(settings)  # a token that cannot be had is told of at once, and not as a broker out of reach
        settings = {**settings, "oauth_cb": lambda _, had=settings: token_and_end(had)}
    return {
        **settings,
        "bootstrap.servers": bootstrap,
        "client.id": "strandline-cli",
        "socket.connection.setup.timeout.ms": int(_CONNECT_SECONDS * 1000),
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 500,
        "logger": logger,
        "error_cb": partial(note, bootstrap),
        **{name if name == "error_cb" else name.replace("_", "."): value for name, value in more.items()},
    }


def refused(where: Target, what: str, request: Callable[[], Value]) -> Value:
    """The result of `request`; raises CommandFailed if the client itself refuses the request."""
    try:
        return request()
    except KafkaException as error:
        told = failed(where, what, error_of(error))
        if error_of(error).code() == KafkaError._INVALID_ARG:
            told.status = MISUSED
        raise told from None
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise CommandFailed(f"{what}: {one_line(str(error))}", "correct the value", MISUSED) from None


class TopicAdmin:
    """Topics by way of Kafka's own admin requests. Everything raises CommandFailed."""

    def __init__(self, where: Target) -> None:
        reach(where)
        self.where = where
        self._began = time.monotonic()
        self._admin = refused(
            where, "the client cannot be made", lambda: AdminClient(client_config(where.bootstrap))
        )

    @property
    def admin(self) -> AdminClient:
        """For requests that have no method here; their future goes through `result`."""
        return self._admin

    def names(self) -> dict[str, tuple[int, int]]:
        """Every topic's count of partitions and of replicas, by name."""
        try:
            found = self._admin.list_topics(timeout=_CONNECT_SECONDS).topics
        except KafkaException as error:
            self._admin.poll(0)  # calls `note`
            raise failed(self.where, "the topics cannot be listed", error_of(error)) from None
        return {
            name: (
                len(topic.partitions),
                max((len(partition.replicas) for partition in topic.partitions.values()), default=0),
            )
            for name, topic in sorted(found.items())
        }

    def create(self, name: str, partitions: int, replicas: int | None, configs: Mapping[str, str]) -> None:
        """One topic; `replicas` of None are as many as the cluster is configured for."""
        what = f"topic {name} cannot be created"

        def request() -> Mapping[str, Future[None]]:
            new = NewTopic(name, partitions, -1 if replicas is None else replicas, config=dict(configs))
            return self._admin.create_topics([new], request_timeout=REQUEST_SECONDS)

        self.result(what, refused(self.where, what, request)[name], topic=name)

    def describe(self, name: str) -> TopicDescription:
        """One topic's partitions."""
        what = f"topic {name} cannot be described"
        asked = refused(
            self.where,
            what,
            lambda: self._admin.describe_topics(TopicCollection([name]), request_timeout=REQUEST_SECONDS),
        )
        description: TopicDescription = self.result(what, asked[name])
        return description

    def configs(self, name: str) -> dict[str, str | None]:
        """The configurations that are set for this topic itself."""
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

    def configure(
        self, name: str, configs: Mapping[str, str], unset: Sequence[str], *, dry_run: bool = False
    ) -> None:
        """Set these for a topic, and these back to the cluster's default; all or none.

        `dry_run` only has the broker check them.
        """
        changes = [ConfigEntry(key, value, incremental_operation=_SET) for key, value in configs.items()]
        changes += [ConfigEntry(key, None, incremental_operation=_DELETE) for key in unset]
        what = f"topic {name} cannot be configured"
        resource = refused(
            self.where, what, lambda: ConfigResource(ResourceType.TOPIC, name, incremental_configs=changes)
        )
        futures = self._admin.incremental_alter_configs(
            [resource], request_timeout=REQUEST_SECONDS, validate_only=dry_run
        )
        self.result(what, futures[resource], topic=name)

    def add_partitions(self, name: str, count: int, *, dry_run: bool = False) -> None:
        """Have the topic grow to this many partitions; `dry_run` only has the broker check that."""
        what = f"topic {name} cannot have {count} partitions"
        futures = refused(
            self.where,
            what,
            lambda: self._admin.create_partitions(
                [NewPartitions(name, count)], request_timeout=REQUEST_SECONDS, validate_only=dry_run
            ),
        )
        self.result(what, futures[name], topic=name)

    def result(self, what: str, future: Future[Value], *, topic: str = "") -> Value:
        """The result of an admin request; `topic` is the topic that it concerned, if any."""
        return self._told(what, lambda: self._answer(future), topic)

    def _answer(self, future: Future[Value]) -> Value:
        """Wait for a future; raises TimeoutError, soon if the nodes refuse the login."""
        ends = time.monotonic() + ANSWER_SECONDS
        refused = False
        while True:
            try:
                return future.result(min(_LOOK_SECONDS, max(ends - time.monotonic(), 0.0)))
            except TimeoutError:
                if future.done() or time.monotonic() >= ends:
                    raise
            self._admin.poll(0)  # calls `note`
            if not refused and refused_since(self.where.bootstrap, self._began):
                refused, ends = True, min(ends, time.monotonic() + _REFUSED_SECONDS)

    def read(self, what: str, ask: Callable[[], Value]) -> Value:
        """The result of `ask`, which makes requests that may be made twice and waits for their futures.

        It is called again while a leader or a coordinator is being elected (`patiently`).
        """
        return self._told(what, lambda: patiently(ask), "")

    def _told(self, what: str, ask: Callable[[], Value], topic: str) -> Value:
        try:
            return ask()
        except TimeoutError:
            self._admin.poll(0)  # calls `note`
            raise failed(self.where, what, KafkaError(KafkaError._TIMED_OUT)) from None
        except KafkaException as error:
            self._admin.poll(0)  # calls `note`
            if is_internal(topic, error_of(error)):
                raise CommandFailed(
                    f"{what}: it is internal, and holds what consumer groups or transactions need to go on",
                    "leave it to the cluster; a group's state goes with `strandline group delete`",
                ) from None
            raise failed(self.where, what, error_of(error)) from None
