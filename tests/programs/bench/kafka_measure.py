"""The same work for any cluster that speaks Kafka's protocol, measured from outside with librdkafka.

What is told of the servers (processor, memory) is what the kernel says of their processes. Everything is done
with acks=all on topics with three replicas. The client's own work is on the same machine and the same cores.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import psutil
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.programs.bench import processor
from tests.programs.bench.measures import Result

_PAYLOADS = 64
_TOPIC_SECONDS = 30.0
_FLUSH_SECONDS = 120.0
_IDLE_READS = 5
_ROUND_SECONDS = 60.0
QUEUE_FULL_MS = 10
"""Time after which a consumer of librdkafka whose queue was full asks again. By itself that is a second, in
which it empties its queue and then sleeps: the quicker the servers fill the queue, the longer."""


class Peer(Protocol):
    """A cluster under measurement."""

    name: str

    @property
    def bootstrap(self) -> str: ...
    @property
    def security(self) -> Mapping[str, str]:
        """Settings of a librdkafka client besides the address."""

    @property
    def pids(self) -> list[int]: ...
    def kill(self, node: int) -> None:
        """SIGKILL."""

    def start(self, node: int) -> None:
        """Start a killed node again; need not wait for it."""


@dataclass(frozen=True, slots=True)
class Amount:
    """How much of everything. Times are seconds, rates per second."""

    megabytes: float = 400.0
    cold_megabytes: float = 3000.0
    """More than the nodes' own caches hold."""
    lifted_megabytes: float = 800.0
    seconds: float = 10.0
    rate: int = 200
    partitions: int = 6
    kills: int = 3
    quiet: float = 4.0
    """Acknowledgements this long after a kill end the round."""
    members: tuple[int, ...] = (1, 10, 100)
    """Of the groups that are joined, one after the other."""


FULL = Amount()
QUICK = Amount(
    megabytes=100.0, cold_megabytes=750.0, lifted_megabytes=200.0,
    seconds=4.0, kills=1, quiet=3.0, members=(1, 10, 50),
)  # fmt: skip
TINY = Amount(
    megabytes=2.0, cold_megabytes=4.0, lifted_megabytes=2.0,
    seconds=0.5, partitions=2, kills=1, quiet=0.5, members=(1, 3),
)  # fmt: skip


class Servers:
    """Processor time and memory of all processes of a cluster, and of their children."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def processor(self) -> float:
        """User and system seconds so far, of children that have ended too: a worker may end on the way."""
        return processor.used(self._peer.pids)

    def memory(self) -> float:
        """Resident bytes."""
        total = 0
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return float(total)

    def _processes(self) -> list[psutil.Process]:
        return processor.tree(self._peer.pids)


class Acknowledgements:
    """What became of the records of a producer: times (seconds of the performance counter) and errors."""

    def __init__(self) -> None:
        self.latencies: list[float] = []
        self.times: list[float] = []
        self.keys: list[bytes] = []
        self.errors: list[str] = []

    def take(self, error: KafkaError | None, message: Message, sent: float) -> None:
        if error is not None:
            self.errors.append(error.name())
            return
        now = time.perf_counter()
        self.latencies.append(now - sent)
        self.times.append(now)
        key = message.key()
        if isinstance(key, bytes):
            self.keys.append(key)


def fill(peer: Peer, amount: Amount, *, size: int, idempotent: bool = True) -> tuple[str, int, Result]:
    """As many records of this size as there are megabytes; the topic, how many are in it, and the figures."""
    name = new_topic(peer, amount.partitions)
    payloads = [os.urandom(size) for _ in range(_PAYLOADS)]
    producer = Producer(
        {
            **client(peer),
            "enable.idempotence": idempotent,
            "acks": "all",
            "linger.ms": 5,
            "batch.size": 1 << 20,
            "sticky.partitioning.linger.ms": 50,
            "queue.buffering.max.messages": 400_000,
            "queue.buffering.max.kbytes": 256 * 1024,
        }
    )
    done, errors = 0, 0

    def acknowledged(error: KafkaError | None, _: Message) -> None:
        nonlocal done, errors
        if error is None:
            done += 1
        else:
            errors += 1

    def send(count: int) -> None:
        for number in range(count):
            while True:
                try:
                    producer.produce(name, payloads[number % _PAYLOADS], on_delivery=acknowledged)
                    break
                except BufferError:
                    producer.poll(0.05)
            if number % 512 == 0:
                producer.poll(0)
        producer.flush(_FLUSH_SECONDS)

    send(2_000)  # connections, producer ids, the first segment of everything
    servers, before = Servers(peer), done
    processor, began = servers.processor(), time.perf_counter()
    send(int(amount.megabytes * 1e6 / size))
    seconds, used = time.perf_counter() - began, servers.processor() - processor
    data = (done - before) * size
    result = Result(
        {
            "rate": data / seconds,
            "cpu_gb": used / (data / 1e9) if data else float("nan"),
            "rss": servers.memory(),
        }
    )
    if errors or not data:
        result.problems.append(f"{errors} records were not acknowledged")
    return name, done, result


def throughput(peer: Peer, amount: Amount, *, size: int = 1000) -> Result:
    """Twice the same: a server is cold the first time, and may be warm the second."""
    _, _, cold = fill(peer, amount, size=size)
    _, _, warm = fill(peer, amount, size=size)
    figures = {**warm.figures, "rate_cold": cold.figures["rate"], "cpu_gb_cold": cold.figures["cpu_gb"]}
    return Result(figures, problems=cold.problems + warm.problems)


def consume(peer: Peer, amount: Amount, *, size: int = 1000) -> Result:
    """Write a topic, then read it from its beginning; every offset must come once and in order."""
    name, count, filled = fill(peer, amount, size=size)
    servers = Servers(peer)
    processor = servers.processor()
    rate, problems = read_back(peer, name, amount.partitions, count, size)
    used = servers.processor() - processor
    data = max(count, 1) * size
    return Result({"rate": rate, "cpu_gb": used / (data / 1e9)}, problems=filled.problems + problems)


def read_back(peer: Peer, name: str, partitions: int, count: int, size: int) -> tuple[float, list[str]]:
    """Read a topic from its beginning with one consumer: bytes a second, and what was wrong."""
    consumer, got = _reader(peer, name, partitions), 0
    expected = [0] * partitions
    problems: list[str] = []
    began = time.perf_counter()
    while got < count:
        # No more than there are: a call waits for as many as it asks for, or for all its time.
        batch = consumer.consume(min(10_000, count - got), 5.0)
        if not batch:
            break
        for message in batch:
            number = message.partition()
            if number is None or message.error() is not None or message.offset() != expected[number]:
                problems.append(f"partition {number}: {message.offset()} came, {message.error()}")
                got = count
                break
            expected[number] += 1
        got += len(batch)
    seconds = time.perf_counter() - began
    consumer.close()
    read = sum(expected)
    if read != count:
        problems.append(f"{read:,} of {count:,} records were read back")
    return max(read, 1) * size / seconds, problems


def single(peer: Peer, amount: Amount, *, size: int = 1000) -> Result:
    """One record at a time, the next when the one before it is acknowledged; one partition."""
    name = new_topic(peer, 1)
    producer, acknowledgements, send = _sender(peer, name, size)
    for _ in range(50):
        send()
        producer.flush(_FLUSH_SECONDS)
    acknowledgements.latencies.clear()
    began = time.perf_counter()
    while time.perf_counter() - began < amount.seconds:
        send()
        producer.flush(_FLUSH_SECONDS)
    return _times(acknowledgements.latencies, acknowledgements.errors)


def latency(peer: Peer, amount: Amount, *, size: int = 1000) -> Result:
    """Records at a fixed rate, whatever becomes of the ones before; from produce() to acknowledgement."""
    acknowledgements, used = paced(peer, amount, size=size)
    result = _times(acknowledgements.latencies, acknowledgements.errors)
    result.figures["cpu"] = used / amount.seconds
    return result


def paced(peer: Peer, amount: Amount, *, size: int = 1000) -> tuple[Acknowledgements, float]:
    """What became of records at a fixed rate to a topic of their own, and the servers' processor seconds."""
    producer, acknowledgements, send = _sender(peer, new_topic(peer, amount.partitions), size)
    for _ in range(50):
        send()
    producer.flush(_FLUSH_SECONDS)
    acknowledgements.latencies.clear()
    acknowledgements.times.clear()
    servers = Servers(peer)
    processor = servers.processor()
    at_rate(amount, send, producer)
    return acknowledgements, servers.processor() - processor


def end_to_end(peer: Peer, amount: Amount, *, size: int = 1000) -> Result:
    """Records at a fixed rate, from produce() until a consumer that waits at the end has them."""
    name = new_topic(peer, 3)
    producer, acknowledgements, send = _sender(peer, name, size)
    consumer = _reader(peer, name, 3)
    latencies: list[float] = []

    def read(timeout: float) -> bool:
        message = consumer.poll(timeout)
        if message is None or message.error() is not None:
            return False
        key = message.key()
        assert isinstance(key, bytes)
        latencies.append(time.perf_counter() - float(key))
        return True

    for _ in range(50):
        send(repr(time.perf_counter()).encode())
    producer.flush(_FLUSH_SECONDS)
    while read(2.0):
        pass
    latencies.clear()
    acknowledgements.latencies.clear()

    def turn() -> None:
        producer.poll(0)
        while read(0.001):  # less does not wait
            pass

    at_rate(amount, lambda: send(repr(time.perf_counter()).encode()), producer, turn)
    while len(latencies) < len(acknowledgements.latencies) and read(2.0):
        pass
    consumer.close()
    result = _times(latencies, acknowledgements.errors)
    if len(latencies) != len(acknowledgements.latencies):
        result.problems.append(f"{len(acknowledgements.latencies)} were sent, {len(latencies)} came")
    return result


def beside_lifting(peer: Peer, amount: Amount) -> Result:
    """Produce to consume, while level one takes up what was just written."""
    _, _, filled = fill(peer, replace(amount, megabytes=amount.lifted_megabytes), size=1000)
    result = end_to_end(peer, amount)
    return Result(result.figures, result.notes, filled.problems + result.problems)


def failover(peer: Peer, amount: Amount) -> Result:
    """Kill a partition's leader under an idempotent load; the longest time without an acknowledgement."""
    gaps, lost, doubled, acknowledged = [], 0, 0, 0
    for _ in range(amount.kills):
        name = new_topic(peer, 1)
        admin = AdminClient(client(peer))
        node = -1
        producer, acknowledgements, send = _sender(
            peer, name, 1,
            **{
                "retry.backoff.ms": 20, "retry.backoff.max.ms": 100, "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200, "topic.metadata.refresh.fast.interval.ms": 50,
            },
        )  # fmt: skip
        number, killed = 0, 0.0
        while not acknowledgements.times:  # else a gap could be a slow beginning, or hide behind it
            send(b"first")
            producer.flush(_FLUSH_SECONDS)
        acknowledgements.keys.clear()
        began = time.perf_counter()
        while time.perf_counter() - began < _ROUND_SECONDS:
            send(str(number).encode())
            number += 1
            producer.poll(0.005)
            now = time.perf_counter()
            if not killed and now - began > amount.quiet / 2:
                node = admin.list_topics(name, timeout=10).topics[name].partitions[0].leader
                killed = time.perf_counter()
                peer.kill(node)
            if killed and acknowledgements.times and acknowledgements.times[-1] > killed + amount.quiet:
                break
        producer.flush(_FLUSH_SECONDS)
        times = acknowledgements.times
        gaps.append(max((b - a for a, b in pairwise(times) if b > killed), default=float("nan")))
        peer.start(node)
        time.sleep(amount.quiet)
        seen = [key for key in _keys(peer, name, len(acknowledgements.keys)) if key != b"first"]
        acknowledged += len(acknowledgements.keys)
        lost += len(set(acknowledgements.keys) - set(seen))
        doubled += len(seen) - len(set(seen))
    result = Result({"gap": sorted(gaps)[len(gaps) // 2], "gap_max": max(gaps)})
    result.notes.append(f"{acknowledged:,} records acknowledged, {lost} lost, {doubled} doubled")
    if lost or doubled:
        result.problems.append(f"{lost} acknowledged records lost, {doubled} doubled")
    return result


def idle(peer: Peer, amount: Amount) -> Result:
    """Nobody asks anything."""
    servers = Servers(peer)
    processor = servers.processor()
    time.sleep(amount.seconds)
    return Result({"cpu": (servers.processor() - processor) / amount.seconds, "rss": servers.memory()})


def client(peer: Peer) -> dict[str, Any]:
    """Settings with which librdkafka reaches a cluster, and says nothing."""
    return {"bootstrap.servers": peer.bootstrap, "log_level": 0, **peer.security}


def connects(peer: Peer, amount: Amount) -> Result:
    """Clients that begin, one after the other: each asks for the metadata on a connection of its own."""
    servers = Servers(peer)
    AdminClient(client(peer)).list_topics(timeout=10)
    count, processor, began = 0, servers.processor(), time.monotonic()
    while time.monotonic() < began + amount.seconds:
        AdminClient(client(peer)).list_topics(timeout=10)
        count += 1
    seconds = time.monotonic() - began
    return Result({"rate": count / seconds, "cpu": (servers.processor() - processor) / count})


def new_topic(peer: Peer, partitions: int) -> str:
    """A topic with three replicas, all of whose partitions have a leader."""
    name = f"bench-{uuid.uuid4().hex[:12]}"
    admin = AdminClient(client(peer))
    admin.create_topics([NewTopic(name, partitions, 3)])[name].result(_TOPIC_SECONDS)
    deadline = time.monotonic() + _TOPIC_SECONDS
    while time.monotonic() < deadline:
        topic = admin.list_topics(name, timeout=10).topics[name]
        leaders = [each.leader for each in topic.partitions.values() if each.error is None]
        if topic.error is None and len(leaders) == partitions and min(leaders) >= 0:
            return name
        time.sleep(0.05)
    raise TimeoutError(f"topic {name} has no leaders after {_TOPIC_SECONDS:g} s")


def percentile(values: list[float], part: float) -> float:
    """The value below which this part (0 to 1) of all lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else float("nan")


def _sender(
    peer: Peer, topic: str, size: int, **more: Any
) -> tuple[Producer, Acknowledgements, Callable[..., None]]:
    producer = Producer(
        {
            **client(peer),
            "acks": "all",
            "linger.ms": 0,
            "enable.idempotence": True,
            **more,
        }
    )
    acknowledgements, body = Acknowledgements(), os.urandom(size)

    def send(key: bytes | None = None) -> None:
        taken = partial(acknowledgements.take, sent=time.perf_counter())
        producer.produce(topic, body, key, on_delivery=taken)

    return producer, acknowledgements, send


def _reader(peer: Peer, topic: str, partitions: int) -> Consumer:
    consumer = Consumer(
        {
            **client(peer),
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 4 << 20,
            "queued.max.messages.kbytes": 128 * 1024,
            "fetch.queue.backoff.ms": QUEUE_FULL_MS,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    return consumer


def at_rate(
    amount: Amount, send: Callable[[], None], producer: Producer, turn: Callable[[], None] | None = None
) -> None:
    """Send at a fixed rate, and take the acknowledgements meanwhile, by `turn` if there is one."""
    sent, began = 0, time.perf_counter()
    while (now := time.perf_counter() - began) < amount.seconds:
        while sent <= now * amount.rate:
            send()
            sent += 1
        if turn is None:
            # Until a record is acknowledged, or the next one is due. librdkafka counts whole milliseconds:
            # with less it does not wait, and the client would take a processor from the servers.
            producer.poll(max(0.001, sent / amount.rate - now))
        else:
            turn()
    producer.flush(_FLUSH_SECONDS)


def _keys(peer: Peer, topic: str, count: int) -> list[bytes]:
    consumer, empty = _reader(peer, topic, 1), 0
    seen: list[bytes] = []
    while empty < _IDLE_READS and not (empty and len(seen) >= count):
        messages = consumer.consume(10_000, 1.0)
        seen += [key for message in messages if isinstance(key := message.key(), bytes)]
        empty = 0 if messages else empty + 1
    consumer.close()
    return seen


def _times(latencies: list[float], errors: list[str]) -> Result:
    result = Result({"p50": percentile(latencies, 0.5), "p99": percentile(latencies, 0.99)})
    result.figures["p999"] = percentile(latencies, 0.999)
    result.figures["records"] = float(len(latencies))
    result.notes.append(f"{len(latencies):,} records")
    if errors or not latencies:
        result.problems.append(f"{len(errors)} of {len(errors) + len(latencies)} failed: {errors[:3]}")
    return result
