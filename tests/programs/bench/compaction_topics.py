"""Topics of `scripts/bench compaction`: made, written, cleaned, waited for and read, on any cluster.

Both clusters get the same records from the same client: keys and values of one seed, the same batches' limit,
the same settings of the topic.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from tests.peers.kafka_cluster import NODES
from tests.programs.bench.compaction_systems import Cleaned, Cleaner
from tests.programs.bench.kafka_measure import Servers

DAY_MS: Final = 86_400_000
WAITING: Final = {"min.cleanable.dirty.ratio": "1.0", "min.compaction.lag.ms": str(DAY_MS)}
"""A topic with these is not cleaned yet."""
CLEANING: Final = {"min.cleanable.dirty.ratio": "0.01", "min.compaction.lag.ms": "0"}
SEGMENT_BYTES: Final = 1 << 20
"""Kafka does not clean the segment that it writes to, so it is small."""
OVERHEAD: Final = 26
"""Bytes of a record beside its value: a key of 16, lengths, distances."""
SECONDS: Final = 120.0
"""Longest wait for anything that takes seconds."""
POLL_SECONDS: Final = 0.2
LOOKING_SECONDS: Final = 0.004
"""Of the processor, between two polls, beyond which a cleaner has worked."""
QUIET_SECONDS: Final = 7.0
"""Without work, after which there is none left: our cleaning rests for up to 5 s, and looks every second."""
_NOISE: Final = 1 << 20
_WORDS: Final = b"the quick brown fox jumps over the lazy dog and runs " * 40
_TABLE_SHARE: Final = 4
"""A pass writes so many records for each key."""
_IDLE_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything."""

    megabytes: float
    """Of one pass of writing, and of the table of the write amplification."""
    passes: int
    rounds: int
    """Of the write amplification."""
    keys: int
    """In the map whose memory is looked at."""
    table_keys: int
    """In the table that is cleaned to look at the cleaner's memory."""
    seconds: float
    """Of producing beside the cleaning, and without it, in each pass."""


SCALES: Final = {
    "full": Scale(40.0, 4, 10, 10_000_000, 10_000_000, 10.0),
    "quick": Scale(10.0, 3, 10, 1_000_000, 1_000_000, 4.0),
    "tiny": Scale(3.0, 2, 1, 1_000_000, 10_000, 1.0),
}


class Shape(NamedTuple):
    """Records of a topic."""

    size: int
    """Bytes of a value."""
    skewed: bool = False
    codec: str = "none"

    @property
    def title(self) -> str:
        keys = "skewed" if self.skewed else "uniform"
        return f"cleaning, {self.size:,} B, {keys} keys" + (f", {self.codec}" * (self.codec != "none"))


SHAPES: Final = tuple(
    Shape(size, skewed, codec)
    for codec in ("none", "zstd")
    for size in (100, 1000)
    for skewed in (False, True)
)


def distinct(megabytes: float, shape: Shape) -> int:
    """Keys of which so much is written."""
    return max(10, int(megabytes * 1e6 / (shape.size + OVERHEAD)) // _TABLE_SHARE)


def write(
    peer: Cleaner,
    topic: str,
    megabytes: float,
    shape: Shape,
    rng: np.random.Generator,
    *,
    keys: int | None = None,
) -> int:
    """Write so much to partition 0, one in fifty a tombstone; how many records.

    Raises TimeoutError, ValueError.
    """
    noise = rng.bytes(_NOISE)
    count = int(megabytes * 1e6 / (shape.size + OVERHEAD))
    keys = keys or distinct(megabytes, shape)
    # The exponent of skewed keys is near that of words and visits; they are spread over the same keys.
    drawn = (rng.zipf(1.2, count) % keys if shape.skewed else rng.integers(0, keys, count)).tolist()
    tombstones = (rng.random(count) < 0.02).tolist()

    def records() -> Iterable[tuple[bytes, bytes | None]]:
        for key, gone in zip(drawn, tombstones, strict=True):
            at = key * 37 % (_NOISE - shape.size)
            value = None if gone else (noise[at : at + shape.size // 2] + _WORDS)[: shape.size]
            yield b"user-%011d" % key, value

    return send(peer, topic, records(), shape.codec)


Records = Iterable[tuple[bytes, bytes | None]]


def send(peer: Cleaner, topic: str, records: Records, codec: str = "none") -> int:
    """Write these to partition 0; how many. Raises TimeoutError, ValueError."""
    errors = []

    def failed(error: KafkaError | None, _: object) -> None:
        if error is not None:
            errors.append(error)

    producer = Producer(
        {
            **sender(peer), "linger.ms": 5, "batch.size": 16_384, "compression.type": codec,
            "delivery.report.only.error": True, "on_delivery": failed,
        }
    )  # fmt: skip
    count = 0
    for key, value in records:
        while True:
            try:
                producer.produce(topic, value, key, partition=0)
                break
            except BufferError:
                producer.poll(0.05)
        count += 1
        if count % 512 == 0:
            producer.poll(0)
    if left := producer.flush(SECONDS):
        raise TimeoutError(f"{left} records for {topic} were not acknowledged")
    if errors:
        raise ValueError(f"{len(errors)} records for {topic} failed: {errors[0]}")
    return count


def sender(peer: Cleaner) -> dict[str, str | int | bool]:
    """What all producers have in common."""
    return {"bootstrap.servers": peer.bootstrap, "log_level": 0, "acks": "all", "enable.idempotence": True}


def rested(peer: Cleaner, quiet: float = QUIET_SECONDS, most: float = SECONDS) -> None:
    """Wait until a cluster's cleaning has done nothing for so many seconds. Raises TimeoutError."""
    deadline = time.monotonic() + most
    last, took, since = peer.cleaned(), peer.cleaners().cpu, time.monotonic()
    while time.monotonic() < since + quiet:
        if time.monotonic() > deadline:
            raise TimeoutError(f"cleaning had not come to its end after {most:.0f} s")
        time.sleep(POLL_SECONDS)
        now, taken = peer.cleaned(), peer.cleaners().cpu
        # Looking around takes Kafka's thread a little of the processor, and is not work.
        if now._replace(cpu=0.0) != last._replace(cpu=0.0) or taken - took > LOOKING_SECONDS:
            last, since = now, time.monotonic()
        took = taken


def cleaned_once(peer: Cleaner, topic: str, replicas: int) -> Cleaned:
    """Let a topic be cleaned; what that took, until each replica had a round. Raises TimeoutError."""
    before, deadline = peer.cleaned(), time.monotonic() + SECONDS
    configure(peer, topic, CLEANING)
    while (told := peer.cleaned().since(before)).rounds < replicas:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{told.rounds} of {replicas} replicas were cleaned after {SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)
    configure(peer, topic, WAITING)
    return told


def idle_rate(peer: Cleaner) -> float:
    """Processor seconds a second that the servers take while nothing but these questions is asked of them."""
    servers, began = Servers(peer), time.monotonic()
    before = servers.processor()
    while time.monotonic() < began + _IDLE_SECONDS:
        peer.cleaned()
        time.sleep(POLL_SECONDS)
    return (servers.processor() - before) / (time.monotonic() - began)


def topic_of(peer: Cleaner, replicas: int, settings: Mapping[str, str]) -> str:
    """A compacted topic of one partition that has a leader. Raises KafkaException, TimeoutError."""
    name = f"table-{uuid.uuid4().hex[:12]}"
    admin, deadline = admin_of(peer), time.monotonic() + SECONDS
    configs = {"cleanup.policy": "compact", "segment.bytes": str(SEGMENT_BYTES), **settings}
    # Brokers that have just started may not have registered yet.
    while len(admin.list_topics(timeout=10).brokers) < 3:
        if time.monotonic() > deadline:
            raise TimeoutError("there are no three brokers")
        time.sleep(POLL_SECONDS)
    # The same nodes for each topic: a broker whose cleaner has worked before is a warm one.
    placed = [list(NODES[:replicas])]
    made = NewTopic(name, 1, replica_assignment=placed, config=configs)
    admin.create_topics([made])[name].result(30)
    while True:
        known = admin.list_topics(name, timeout=10).topics[name]
        if known.error is None and known.partitions and known.partitions[0].leader >= 0:
            return name
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name} has no leader")
        time.sleep(POLL_SECONDS)


def configure(peer: Cleaner, topic: str, settings: Mapping[str, str]) -> None:
    """Change settings of a topic. Raises KafkaException."""
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin = admin_of(peer)  # what it was asked ends with it
    for answer in admin.incremental_alter_configs([resource]).values():
        answer.result(20)


def delete(peer: Cleaner, topic: str) -> None:
    """Delete a topic. Raises KafkaException."""
    admin = admin_of(peer)
    admin.delete_topics([topic])[topic].result(30)


def admin_of(peer: Cleaner) -> AdminClient:
    """A client for one request: what it was asked ends with it."""
    return AdminClient({"bootstrap.servers": peer.bootstrap, "log_level": 0})


def read_all(peer: Cleaner, topic: str) -> tuple[int, int]:
    """Read partition 0 from 0 to its end: records, and bytes of them. Raises TimeoutError, KafkaException."""
    consumer = Consumer(
        {
            "bootstrap.servers": peer.bootstrap, "log_level": 0, "group.id": "bench",
            "enable.auto.commit": False, "enable.partition.eof": True,
            "fetch.message.max.bytes": 4 << 20, "queued.max.messages.kbytes": 128 * 1024,
        }
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    count, size, deadline = 0, 0, time.monotonic() + SECONDS
    try:
        while time.monotonic() < deadline:
            for message in consumer.consume(10_000, 0.2):
                error = message.error()
                if error is None:
                    count += 1
                    size += OVERHEAD + len(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    return count, size
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()
    raise TimeoutError(f"a consumer of {topic} was not told its end")
