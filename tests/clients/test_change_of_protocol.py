"""Groups whose consumers are restarted one after the other with another group.protocol, by real clients."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.peers.kafka_tools import TOOLS, KafkaTools

CONSUMER = f"{TOOLS}.consumer.ConsoleConsumer"
PARTITIONS = 4
BEAT_SECONDS = 0.5
STOP_SECONDS = 10.0
"""The longest that a partition may stand still: some rebalances of these members on a machine under load. One
that waits for the last of the other protocol would stand still for as long as that lives."""
CLASSIC = {"session.timeout.ms": 10_000, "heartbeat.interval.ms": round(BEAT_SECONDS * 1000)}


class Processed(NamedTuple):
    """A record as a consumer was given it."""

    partition: int
    offset: int
    at: float


class Member:
    """A consumer of a group, on a thread of its own; what it processed is noted, and committed as it goes."""

    def __init__(self, bootstrap: str, group: str, topic: str, protocol: str, assignor: str) -> None:
        self.errors: list[Any] = []
        self.processed: list[Processed] = []
        self._goes = False
        classic = {**CLASSIC, "partition.assignment.strategy": assignor}
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "error_cb": self.errors.append,
                **(classic if protocol == "classic" else {}),
            }
        )
        self._consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while not self._goes:
            message = self._consumer.poll(0.05)
            if message is None:
                continue
            if (error := message.error()) is not None:
                # A join that waits while its group becomes a consumer group is told to come again, by Kafka
                # too. librdkafka does so, and lets its user know.
                if error.code() != confluent_kafka.KafkaError.REBALANCE_IN_PROGRESS:
                    self.errors.append(error)
                continue
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            self.processed.append(Processed(partition, offset, time.monotonic()))
        self._consumer.close()

    @property
    def partitions(self) -> set[int]:
        """That it processed records of lately."""
        now = time.monotonic()
        return {one.partition for one in self.processed[-500:] if one.at > now - 1.0}

    def close(self) -> None:
        self._goes = True
        self._thread.join()


class Writer:
    """Writes to every partition all the time."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.written = 0
        """Records of each partition."""
        self._stops = False
        self._topic = topic
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while not self._stops:
            for partition in range(PARTITIONS):
                self._producer.produce(self._topic, str(self.written), partition=partition)
            self.written += 1
            self._producer.poll(0)
            time.sleep(0.02)
        assert self._producer.flush(30) == 0

    def stop(self) -> None:
        self._stops = True
        self._thread.join()


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


def until(what: Callable[[], bool], members: list[Member], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, [(one.partitions, one.errors) for one in members]
        time.sleep(0.1)


def create(bootstrap: str, topic: str, partitions: int) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, partitions)]).values():
        future.result(30)
    return admin


def longest_stop(processed: list[Processed]) -> float:
    """Between two records of one partition, seconds."""
    stops = []
    for partition in range(PARTITIONS):
        times = sorted(one.at for one in processed if one.partition == partition)
        stops += [later - before for before, later in pairwise(times)]
    return max(stops)


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
@pytest.mark.parametrize(("before", "after"), [("classic", "consumer"), ("consumer", "classic")])
def test_a_group_moves_member_by_member(
    bootstrap: str, join: Joins, before: str, after: str, assignor: str
) -> None:
    """Those that were restarted share the work with those that were not; every record is processed."""
    topic = group = f"change-{before}-{uuid.uuid4().hex[:8]}"
    admin = create(bootstrap, topic, PARTITIONS)
    writer = Writer(bootstrap, topic)

    def shared(*members: Member) -> Callable[[], bool]:
        return lambda: sorted(one for member in members for one in member.partitions) == [*range(PARTITIONS)]

    def kind() -> str:
        described = admin.describe_consumer_groups([group])[group].result()
        return str(described.type.name).lower()

    old = [join(bootstrap, group, topic, before, assignor) for _ in range(2)]
    until(shared(*old), old)
    assert kind() == before
    old[0].close()
    new = [join(bootstrap, group, topic, after, assignor)]
    until(shared(old[1], *new), [old[1], *new])
    until(lambda: all(one.partitions for one in (old[1], *new)), [old[1], *new])
    assert kind() == "consumer", "of both"
    old[1].close()
    new.append(join(bootstrap, group, topic, after, assignor))
    until(shared(*new), new)
    until(lambda: all(one.partitions for one in new), new)
    assert kind() == after
    writer.stop()
    every = {(partition, offset) for partition in range(PARTITIONS) for offset in range(writer.written)}
    members = [*old, *new]

    def processed() -> list[Processed]:
        return [one for member in members for one in member.processed]

    until(lambda: {one[:2] for one in processed()} == every, members)
    assert longest_stop(processed()) < STOP_SECONDS
    assert [error for member in members for error in member.errors] == []


@pytest.mark.parametrize(("before", "after"), [("classic", "consumer"), ("consumer", "classic")])
def test_the_java_client_comes_into_a_group_of_the_other_protocol(
    tools: KafkaTools, join: Joins, before: str, after: str
) -> None:
    """It has its share at once, though the member that was there stays; no word of complaint."""
    topic = group = f"change-java-{before}-{uuid.uuid4().hex[:8]}"
    create(tools.bootstrap, topic, PARTITIONS)
    writer = Writer(tools.bootstrap, topic)
    member = join(tools.bootstrap, group, topic, before, "range")
    until(lambda: len(member.partitions) == PARTITIONS, [member])
    reads = ("--topic", topic, "--group", group, "--max-messages", "20")
    read = tools.run(tools.tool(CONSUMER, *reads, "--consumer-property", f"group.protocol={after}"))
    assert len(read.lines) == 20
    assert (read.code, read.err) == (0, "Processed a total of 20 messages\n")
    until(lambda: len(member.partitions) == PARTITIONS, [member])
    writer.stop()
    assert member.errors == []
