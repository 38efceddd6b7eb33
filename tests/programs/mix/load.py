"""The work: producers, members that come to groups and go, topics that come and go. Each a thread.

What must not happen is a problem: a record that fails for good, a topic that cannot be made or deleted.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from strandline.cluster.kafka_client import client_config

TOPIC: Final = "mix"
GROUPS: Final = 40
CONSUMERS: Final = 4
CHURNERS: Final = 3
_SIZES: Final = (100, 1000, 1000, 20_000)
"""Of records, in bytes."""
_BATCH: Final = 20
"""Records that go to one partition before those for another, as librdkafka's own choice has it."""
_STAY_SECONDS: Final = (5.0, 20.0)
_BEGUN_PARTITIONS: Final = 200
_LIVE_SECONDS: Final = (1.0, 10.0)
_MOST_PARTITIONS: Final = 24
_REQUEST_SECONDS: Final = 60.0
_MAX_PROBLEMS: Final = 20
_FILLER: Final = random.Random(1).randbytes(max(_SIZES))


class Load:
    """All of it, from `start` to `stop`. The counts may be read at any time."""

    def __init__(
        self, bootstrap: str, partitions: int, replicas: int, rate: float, rng: random.Random
    ) -> None:
        """`rate`: records a second."""
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.acknowledged: set[int] = set()
        """Numbers of records; each is the first eight bytes of its value."""
        self.slowest = 0.0
        """The longest that a record waited for its acknowledgement, in seconds."""
        self._bootstrap = bootstrap
        self._partitions = partitions
        self._replicas = replicas
        self._rate = rate
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        work = [self._produce, self._begin, *[self._consume] * CONSUMERS, *[self._churn] * CHURNERS]
        self._threads = [
            threading.Thread(target=self._run, args=(each, number, random.Random(rng.getrandbits(64))),
                             daemon=True)
            for number, each in enumerate(work)
        ]  # fmt: skip

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask all to end, and wait for that."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(2 * _REQUEST_SECONDS)
            if thread.is_alive():
                self._problem(f"{thread.name} does not end")

    def read_back(self, seconds: float) -> dict[int, int]:
        """How often each record's number is in the topic, from its start to its end."""
        consumer = self._consumer("read-back", {"auto.offset.reset": "earliest"})
        left: dict[int | None, int] = {}
        for partition in range(self._partitions):
            low, high = consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=30)
            if low != high:
                left[partition] = high
        consumer.assign([TopicPartition(TOPIC, each, 0) for each in left if each is not None])
        seen: Counter[int] = Counter()
        deadline = time.monotonic() + seconds
        while left and time.monotonic() < deadline:
            for message in consumer.consume(5000, 1.0):
                if (value := message.value()) is None or message.error() is not None:
                    continue
                assert isinstance(value, bytes)
                seen[int.from_bytes(value[:8], "big")] += 1
                if message.offset() == left.get(message.partition(), -1) - 1:
                    del left[message.partition()]
        consumer.close()
        if left:
            self._problem(f"{len(left)} partitions were not read to their end in {seconds:g} s")
        return seen

    def _run(self, work: Callable[[int, random.Random], None], number: int, rng: random.Random) -> None:
        try:
            work(number, rng)
        except Exception as error:  # told where the run is judged, not in a thread that nobody watches
            self._problem(f"{work.__name__[1:]} {number}: {error!r}")

    def _produce(self, number: int, rng: random.Random) -> None:
        producer = Producer(
            client_config(self._bootstrap, client_id="mix-producer", enable_idempotence=True, acks="all",
                          linger_ms=5, error_cb=self._on_error)
        )  # fmt: skip
        due, count, partition = time.monotonic(), 0, 0
        while not self._stopping.is_set():
            value = count.to_bytes(8, "big") + _FILLER[: rng.choice(_SIZES)]
            if count % _BATCH == 0:
                partition = rng.randrange(self._partitions)
            try:
                producer.produce(TOPIC, value, partition=partition, on_delivery=self._delivered(count))
                count += 1
            except BufferError:
                producer.poll(0.05)
                continue
            due = max(due + 1 / self._rate, time.monotonic() - 0.5)
            while (left_seconds := due - time.monotonic()) > 0:
                producer.poll(left_seconds)
            producer.poll(0)
        if left := producer.flush(_REQUEST_SECONDS):
            self._problem(f"{left} records have no answer")
        self.counts["sent"] = count

    def _delivered(self, number: int) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._problem(f"record {number}: {error}")
                return
            self.acknowledged.add(number)
            self.slowest = max(self.slowest, message.latency() or 0.0)

        return delivered

    def _consume(self, number: int, rng: random.Random) -> None:
        while not self._stopping.is_set():
            group = f"group-{rng.randrange(GROUPS)}"
            protocol = rng.choice(({}, {"group.protocol": "consumer"})) if number % 2 else {}
            if protocol:
                group = f"new-{group}"
            consumer = self._consumer(group, {"auto.offset.reset": "latest", **protocol})
            joined = threading.Event()
            consumer.subscribe([TOPIC], on_assign=lambda *_, joined=joined: joined.set())
            until = time.monotonic() + rng.uniform(*_STAY_SECONDS)
            latest = time.monotonic() + _REQUEST_SECONDS
            while not self._stopping.is_set() and (
                time.monotonic() < until or (not joined.is_set() and time.monotonic() < latest)
            ):
                messages = consumer.consume(500, 0.5)
                self.counts["consumed"] += sum(message.error() is None for message in messages)
            if joined.is_set():
                self.counts["joined"] += 1
            elif not self._stopping.is_set():
                self._problem(f"a member of {group} has no assignment after {_REQUEST_SECONDS:g} s")
            try:
                consumer.commit(asynchronous=False)
                self.counts["committed"] += 1
            except KafkaException as error:
                self.counts[f"commit: {error.args[0].name()}"] += 1
            consumer.close()

    def _begin(self, number: int, rng: random.Random) -> None:
        """Read some partitions from their start, again and again: from storage, through the page cache."""
        while not self._stopping.is_set():
            consumer = self._consumer("begins", {"auto.offset.reset": "earliest"})
            some = rng.sample(range(self._partitions), min(_BEGUN_PARTITIONS, self._partitions))
            consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in some])
            until = time.monotonic() + rng.uniform(*_STAY_SECONDS)
            while not self._stopping.is_set() and time.monotonic() < until:
                messages = consumer.consume(500, 0.5)
                self.counts["read from the start"] += sum(each.error() is None for each in messages)
            consumer.close()

    def _churn(self, number: int, rng: random.Random) -> None:
        admin = AdminClient(client_config(self._bootstrap))
        turn = 0
        while not self._stopping.is_set():
            turn += 1
            name = f"comes-and-goes-{number}-{turn}"
            new = NewTopic(name, rng.randint(1, _MOST_PARTITIONS), self._replicas)
            admin.create_topics([new], request_timeout=_REQUEST_SECONDS)[name].result(_REQUEST_SECONDS)
            self.counts["created"] += 1
            self._stopping.wait(rng.uniform(*_LIVE_SECONDS))
            admin.delete_topics([name], request_timeout=_REQUEST_SECONDS)[name].result(_REQUEST_SECONDS)
            self.counts["deleted"] += 1

    def _consumer(self, group: str, more: dict[str, Any]) -> Consumer:
        config = client_config(
            self._bootstrap, group_id=group, enable_auto_commit=False, error_cb=self._on_error
        )
        # The library assigns partitions while it holds the interpreter's lock, and its threads want that lock
        # to log: with both, a consumer that closes may stand still for ever, and the whole process with it.
        del config["logger"]
        return Consumer(config | {"log_level": 0} | more)

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._problem(f"a client cannot go on: {error}")

    def _problem(self, text: str) -> None:
        with self._lock:
            if len(self.problems) < _MAX_PROBLEMS:
                self.problems.append(text)
