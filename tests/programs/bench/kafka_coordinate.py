"""What a cluster's coordinators are asked for: transactions, commits, members that join, another leader.

Measured from outside with librdkafka, as all of `scripts/bench kafka`. Latencies are of the call that waits:
a transaction's is that of its commit, when all its records are acknowledged.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid
from itertools import pairwise
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.programs.bench.kafka_measure import Amount, Peer, new_topic, percentile
from tests.programs.bench.measures import Result

RECORDS: Final = 100
"""In a transaction."""
TOGETHER: Final = 10
"""Producers at work at the same time."""
_SIZE: Final = 1000
_REQUEST_SECONDS: Final = 30.0
_JOIN_SECONDS: Final = 120.0
_GAP_SECONDS: Final = 60.0


def transactions(peer: Peer, amount: Amount) -> Result:
    """Transactions of RECORDS records of 1 kB: one producer, then ten, each beginning the next at once."""
    topic = new_topic(peer, amount.partitions)
    alone = _Transactions(peer, topic, 1, amount.seconds)
    together = _Transactions(peer, topic, TOGETHER, amount.seconds)
    figures = {
        "rate": alone.rate,
        "p50": percentile(alone.commits, 0.5),
        "p99": percentile(alone.commits, 0.99),
        "rate_together": together.rate,
    }
    notes = [f"{len(alone.commits):,} transactions alone, {len(together.commits):,} by {TOGETHER} producers"]
    return Result(figures, notes=notes, problems=(alone.problems + together.problems)[:3])


class _Transactions:
    """`count` producers in threads of their own, until the time is over."""

    def __init__(self, peer: Peer, topic: str, count: int, seconds: float) -> None:
        self.commits: list[float] = []
        self.problems: list[str] = []
        self._topic = topic
        self._producers = [_producer(peer) for _ in range(count)]
        for producer in self._producers:
            self._one(producer)  # connections, coordinators
        self.commits.clear()
        began = time.perf_counter()
        self._end = began + seconds
        threads = [threading.Thread(target=self._work, args=(one,)) for one in self._producers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.rate = len(self.commits) / (time.perf_counter() - began)

    def _work(self, producer: Producer) -> None:
        try:
            while time.perf_counter() < self._end:
                self._one(producer)
        except KafkaException as error:
            self.problems.append(repr(error))

    def _one(self, producer: Producer) -> None:
        producer.begin_transaction()
        body = os.urandom(_SIZE)
        for _ in range(RECORDS):
            producer.produce(self._topic, body)
        producer.flush(_REQUEST_SECONDS)
        began = time.perf_counter()
        producer.commit_transaction(_REQUEST_SECONDS)
        self.commits.append(time.perf_counter() - began)


def commits(peer: Peer, amount: Amount) -> Result:
    """A member of a group commits its offsets of all partitions, waits, and commits again."""
    topic = new_topic(peer, amount.partitions)
    consumer = _member(peer.bootstrap, topic, f"bench-{uuid.uuid4().hex[:8]}")
    _stable([consumer], amount.partitions)
    latencies: list[float] = []
    began = time.perf_counter()
    offset = 0
    while time.perf_counter() - began < amount.seconds:
        offset += 1
        latencies.append(_commit(consumer, topic, amount.partitions, offset))
    seconds = time.perf_counter() - began
    consumer.close()
    figures = {
        "rate": len(latencies) / seconds,
        "p50": percentile(latencies, 0.5),
        "p99": percentile(latencies, 0.99),
    }
    return Result(figures, notes=[f"{len(latencies):,} commits of {amount.partitions} offsets"])


def joins(peer: Peer, amount: Amount) -> Result:
    """From the first member's subscription until each of so many has its partition, and no two the same.

    The members live in a process of their own, which is killed when they have been measured: a hundred that
    leave one after the other, while nobody polls the rest, wait for each other's rebalances for minutes.
    """
    figures = {}
    for count in amount.members:
        topic, group = new_topic(peer, count), f"bench-{uuid.uuid4().hex[:8]}"
        members = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, peer.bootstrap, topic, group, str(count)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert members.stdout is not None
        told = members.stdout.readline()
        members.kill()
        members.wait()
        members.stdout.close()
        if not told:
            raise TimeoutError(f"{count} members do not share their partitions; what they said is above")
        figures[f"join_{count}"] = float(told)
    return Result(figures)


def join(bootstrap: str, topic: str, group: str, count: str) -> None:
    """What the process of `joins` does: says how many seconds it took, and waits for its end."""
    began = time.perf_counter()
    members = [_member(bootstrap, topic, group) for _ in range(int(count))]
    _stable(members, int(count))
    print(time.perf_counter() - began, flush=True)
    while True:
        for member in members:
            member.poll(0.01)


def coordinator(peer: Peer, amount: Amount) -> Result:
    """Kill the node that coordinates a group whose member commits all the while; the longest time without."""
    gaps = []
    for _ in range(amount.kills):
        topic, group = new_topic(peer, 1), f"bench-{uuid.uuid4().hex[:8]}"
        consumer = _member(
            peer.bootstrap, topic, group, **{"retry.backoff.ms": 20, "reconnect.backoff.max.ms": 200}
        )
        _stable([consumer], 1)
        admin = AdminClient({"bootstrap.servers": peer.bootstrap, "log_level": 0})
        found = admin.describe_consumer_groups([group])[group].result(_REQUEST_SECONDS)
        assert found.coordinator is not None
        node = int(found.coordinator.id)
        times: list[float] = []
        killed, offset, began = 0.0, 0, time.perf_counter()
        while time.perf_counter() - began < _GAP_SECONDS:
            offset += 1
            try:
                _commit(consumer, topic, 1, offset)
                times.append(time.perf_counter())
            except KafkaException:
                consumer.poll(0.0)
            time.sleep(0.005)
            if not killed and times and times[-1] - began > amount.quiet / 2:
                killed = time.perf_counter()
                peer.kill(node)
            if killed and times[-1] > killed + amount.quiet:
                break
        gaps.append(max((b - a for a, b in pairwise(times) if b > killed), default=float("nan")))
        peer.start(node)
        time.sleep(amount.quiet)
        consumer.close()
    return Result({"gap": sorted(gaps)[len(gaps) // 2], "gap_max": max(gaps)})


def _producer(peer: Peer) -> Producer:
    made = Producer(
        {
            "bootstrap.servers": peer.bootstrap,
            "log_level": 0,
            "transactional.id": f"bench-{uuid.uuid4().hex[:8]}",
            "linger.ms": 0,
        }
    )
    made.init_transactions(_REQUEST_SECONDS)
    return made


def _member(bootstrap: str, topic: str, group: str, **more: Any) -> Consumer:
    made = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "group.id": group,
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 500,
            "enable.auto.commit": False,
            "partition.assignment.strategy": "range",
            **more,
        }
    )
    made.subscribe([topic])
    return made


def _stable(members: list[Consumer], partitions: int) -> None:
    """Poll until they share all partitions. TimeoutError."""
    deadline = time.monotonic() + _JOIN_SECONDS
    while time.monotonic() < deadline:
        held: list[tuple[str, int]] = []
        for member in members:
            member.poll(0)
            held += [(one.topic, one.partition) for one in member.assignment()]
        if len(held) == len(set(held)) == partitions:
            return
        time.sleep(0.005)
    raise TimeoutError(
        f"{len(members)} members do not share {partitions} partitions after {_JOIN_SECONDS:g} s"
    )


def _commit(consumer: Consumer, topic: str, partitions: int, offset: int) -> float:
    """Seconds it took. Raises KafkaException."""
    wanted = [TopicPartition(topic, number, offset) for number in range(partitions)]
    began = time.perf_counter()
    for done in consumer.commit(offsets=wanted, asynchronous=False) or []:
        if done.error is not None:
            raise KafkaException(done.error)
    return time.perf_counter() - began


if __name__ == "__main__":
    join(*sys.argv[1:])
