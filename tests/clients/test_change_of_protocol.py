"""A group whose consumers are restarted one after the other with another group.protocol, by real clients."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.peers.kafka_tools import TOOLS, KafkaTools

CONSUMER = f"{TOOLS}.consumer.ConsoleConsumer"
PARTITIONS = 4
FEW: dict[str, dict[str, Any]] = {"classic": {"session.timeout.ms": 10_000}, "consumer": {}}


class Member:
    """A consumer of a group; what it reads is noted."""

    def __init__(
        self, bootstrap: str, group: str, topic: str, protocol: str, more: dict[str, Any] | None = None
    ) -> None:
        self.errors: list[Any] = []
        self.read: list[tuple[int, int]] = []
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "error_cb": self.errors.append,
                **FEW[protocol],
                **(more or {}),
            }
        )
        self._consumer.subscribe([topic])
        self._closed = False

    def poll(self) -> None:
        message = self._consumer.poll(0.05)
        if message is not None:
            assert message.error() is None, message.error()
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            self.read.append((partition, offset))

    @property
    def owns(self) -> int:
        return len(self._consumer.assignment())

    def close(self) -> None:
        if not self._closed:
            self._consumer.close()
        self._closed = True


Joins = Callable[..., Member]


@pytest.fixture
def join() -> Iterator[Joins]:
    """Makes members that leave when the test ends, however it does."""
    members: list[Member] = []

    def made(*of: Any) -> Member:
        members.append(Member(*of))
        return members[-1]

    yield made
    for member in members:
        member.close()


def until(what: Callable[[], bool], members: list[Member], seconds: float = 40.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, [(one.owns, one.errors) for one in members]
        for member in members:
            member.poll()


def shared(members: list[Member]) -> bool:
    return sum(member.owns for member in members) == PARTITIONS and all(one.owns for one in members)


@pytest.mark.parametrize(("before", "after"), [("classic", "consumer"), ("consumer", "classic")])
def test_a_rolling_restart_with_another_protocol(
    bootstrap: str, join: Joins, before: str, after: str
) -> None:
    """No error, nothing lost, and nothing read again that was committed."""
    topic = group = f"change-{before}-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, PARTITIONS)]).values():
        future.result(30)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})

    def write(first: int) -> None:
        for number in range(first, first + 10):
            for partition in range(PARTITIONS):
                producer.produce(topic, str(number), partition=partition)
        assert producer.flush(30) == 0

    write(0)
    old = [join(bootstrap, group, topic, before) for _ in range(2)]
    until(lambda: shared(old), old)
    until(lambda: sum(len(one.read) for one in old) == 10 * PARTITIONS, old)
    old[0].close()
    new = [join(bootstrap, group, topic, after)]
    until(lambda: old[1].owns == PARTITIONS, [old[1], *new])
    write(10)
    until(lambda: sum(len(one.read) for one in old) == 20 * PARTITIONS, [old[1], *new])
    assert (new[0].owns, new[0].read) == (0, []), "it waits"
    old[1].close()
    new.append(join(bootstrap, group, topic, after))
    until(lambda: shared(new), new)
    write(20)
    until(lambda: sum(len(one.read) for one in new) == 10 * PARTITIONS, new)
    read = [pair for member in [*old, *new] for pair in member.read]
    assert sorted(read) == [(partition, offset) for partition in range(PARTITIONS) for offset in range(30)]
    fatal = [error for member in [*old, *new] for error in member.errors if error.fatal()]
    assert fatal == []


@pytest.mark.parametrize(("before", "after"), [("classic", "consumer"), ("consumer", "classic")])
def test_the_java_client_waits_for_its_turn(tools: KafkaTools, join: Joins, before: str, after: str) -> None:
    """A consumer that comes with the other protocol while the group has a member: no word of complaint."""
    topic = group = f"change-java-{before}-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": tools.bootstrap})
    for future in admin.create_topics([NewTopic(topic, 1)]).values():
        future.result(30)
    producer = confluent_kafka.Producer({"bootstrap.servers": tools.bootstrap})
    for number in range(10):
        producer.produce(topic, f"line {number}")
    assert producer.flush(30) == 0
    member = join(tools.bootstrap, group, topic, before, {"enable.auto.commit": False})
    until(lambda: len(member.read) == 10, [member])
    left: list[float] = []

    def leave() -> None:
        member.close()
        left.append(time.monotonic())

    timer = threading.Timer(8.0, leave)
    timer.start()
    reads = ("--topic", topic, "--group", group, "--from-beginning", "--max-messages", "10")
    read = tools.run(tools.tool(CONSUMER, *reads, "--consumer-property", f"group.protocol={after}"))
    assert left, "it waited"
    assert sorted(read.lines) == [f"line {number}" for number in range(10)]
    assert (read.code, read.err) == (0, "Processed a total of 10 messages\n")
