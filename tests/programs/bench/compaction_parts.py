"""The work of `scripts/bench compaction`: the same for any cluster that speaks Kafka's protocol."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import psutil
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from strandline.node.compaction.key_map import KeyHash, KeyMap, Words
from tests.programs.bench import kafka_measure
from tests.programs.bench.compaction_systems import Cleaned, Cleaner
from tests.programs.bench.kafka_measure import Servers
from tests.programs.bench.measures import Result
from tests.programs.divergence.reading import look

DAY_MS: Final = 86_400_000
WAITING: Final = {"min.cleanable.dirty.ratio": "1.0", "min.compaction.lag.ms": str(DAY_MS)}
"""A topic with these is not cleaned yet."""
CLEANING: Final = {"min.cleanable.dirty.ratio": "0.01", "min.compaction.lag.ms": "0"}
SEGMENT_BYTES: Final = 1 << 20
"""Kafka does not clean the segment that it writes to, so it is small."""
KAFKA_KEY_BYTES: Final = 24 / 0.9
"""SkimpyOffsetMap: 16 bytes of MD5 and 8 of the offset, in nine of ten slots."""
OVERHEAD: Final = 26
"""Bytes of a record beside its value: a key of 16, lengths, distances."""
_NOISE: Final = 1 << 20
_WORDS: Final = b"the quick brown fox jumps over the lazy dog and runs " * 40
_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.2
_TABLE_SHARE: Final = 4
"""A pass writes so many records for each key."""


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
    seconds: float
    """Of producing beside the cleaning, and without it."""


SCALES: Final = {
    "full": Scale(40.0, 4, 10, 1_000_000, 10.0),
    "quick": Scale(10.0, 3, 10, 1_000_000, 4.0),
    "tiny": Scale(3.0, 2, 1, 1_000_000, 1.0),
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


SHAPES: Final = (
    Shape(100),
    Shape(100, skewed=True),
    Shape(1000),
    Shape(1000, skewed=True),
    Shape(100, codec="zstd"),
)


def cleaning(peer: Cleaner, scale: Scale, shape: Shape) -> Result:
    """Write, clean, and again: MB that a CPU-second cleans, of the first round and the best later one."""
    topic = _topic(peer, 1, WAITING)
    rng = np.random.default_rng(1)
    result, rates = Result(), []
    written = 0
    for _ in range(scale.passes):
        written += write(peer, topic, scale.megabytes, shape, rng)
        rested(peer)
        told = _round(peer, topic, 1)
        if told.cpu > 0:
            rates.append(told.read / told.cpu)
        result.notes.append(f"{told.rounds} rounds read {told.read / 1e6:.1f} MB in {told.cpu:.2f} CPU-s")
        rested(peer)
    _delete(peer, topic)
    if len(rates) == scale.passes:
        result.figures = {"first": rates[0], "later": max(rates[1:])}
    else:
        result.problems.append("a round took no processor time that could be told: write more")
    result.notes.append(f"{written:,} records written")
    return result


def memory(keys: int) -> Result:
    """Bytes of our map for each key, measured by filling one; and at 100 million, calculated."""
    process, rng = psutil.Process(), np.random.default_rng(1)
    count = min(50_000, keys)
    KeyMap(count * 32 + 24, KeyHash()).put(*_words(rng, count), np.arange(count))  # libraries, buffers
    before = process.memory_info().rss
    held = KeyMap(keys * 32 + 24, KeyHash())
    done = 0
    while done < keys:
        count = min(50_000, keys - done)
        held.put(*_words(rng, count), np.arange(done, done + count))
        done += count
    grown = process.memory_info().rss - before
    result = Result({"key": grown / keys, "many": grown / keys * 1e8})
    if held.size != keys:
        result.problems.append(f"{held.size:,} keys of {keys:,} are in the map")
    result.notes.append(f"measured with {keys:,} keys; at 100 million by calculation; Kafka's by calculation")
    return result


def _words(rng: np.random.Generator, count: int) -> tuple[Words, Words]:
    """Hashes of as many keys."""
    return rng.integers(0, 1 << 64, count, np.uint64), rng.integers(0, 1 << 64, count, np.uint64)


def amplification(peer: Cleaner, scale: Scale, skewed: bool) -> Result:
    """Bytes written by cleaning for each byte produced, after some rounds at a ratio of a half."""
    shape, rng = Shape(1000, skewed), np.random.default_rng(1)
    topic = _topic(peer, 1, {"min.cleanable.dirty.ratio": "0.5"})
    before, began = peer.cleaned(), time.monotonic()
    produced = 0.0
    told = Cleaned(0, 0.0, 0.0, 0.0)
    limit = 4 * scale.rounds * 20.0
    while told.rounds < scale.rounds and time.monotonic() < began + limit:
        piece = scale.megabytes / 4
        records = write(peer, topic, piece, shape, rng, distinct=_distinct(scale.megabytes, shape))
        produced += records * (shape.size + OVERHEAD)
        rested(peer, quiet=1.5)
        told = peer.cleaned().since(before)
    _delete(peer, topic)
    result = Result(
        {
            "cleaned": (told.written + told.filled) / produced,
            "published": told.published / produced,
        }
    )
    result.notes.append(f"{told.rounds} rounds, {produced / 1e6:.1f} MB produced")
    if told.rounds < scale.rounds:
        result.problems.append(f"{told.rounds} of {scale.rounds} rounds came within {limit:.0f} s")
    return result


def tombstone(peer: Cleaner, settings: Mapping[str, str]) -> Result:
    """Seconds from a tombstone's acknowledgement until no reader gets it any more, others being written."""
    topic = _topic(peer, 3, settings)
    producer = _producer(peer, linger=0)

    def put(key: str, value: bytes | None) -> None:
        producer.produce(topic, value, key, partition=0)
        if producer.flush(20.0):
            raise TimeoutError(f"a record for {topic} was not acknowledged")

    put("gone", b"value")
    put("gone", None)
    offset, began = 1, time.monotonic()
    number = 0
    while time.monotonic() < began + _SECONDS:
        for _ in range(5):
            put(f"other-{number % 3}", b"value %d" % number)
            number += 1
        if offset not in look(peer.bootstrap, topic).offsets:
            _delete(peer, topic)
            return Result({"seconds": time.monotonic() - began})
        time.sleep(_POLL_SECONDS)
    return Result(problems=[f"the tombstone was still there after {_SECONDS:.0f} s"])


def reading(peer: Cleaner, scale: Scale) -> Result:
    """Read a table that was cleaned from offset 0, twice; the second time counts."""
    shape, rng = Shape(1000), np.random.default_rng(1)
    topic = _topic(peer, 3, WAITING)
    write(peer, topic, scale.megabytes, shape, rng)
    rested(peer)
    told = _round(peer, topic, 3)
    rested(peer)
    servers, figures, counts = Servers(peer), {}, set()
    for _ in range(2):
        cpu, began = servers.processor(), time.perf_counter()
        count = _read(peer, topic)
        seconds, size = time.perf_counter() - began, count * (shape.size + OVERHEAD)
        figures = {"rate": size / seconds, "cpu_gb": (servers.processor() - cpu) / (size / 1e9)}
        counts.add(count)
    _delete(peer, topic)
    result = Result(figures, notes=[f"{max(counts):,} records are left, after {told.rounds} rounds"])
    if len(counts) != 1:
        result.problems.append(f"two reads found {sorted(counts)} records")
    return result


def produce(peer: Cleaner, scale: Scale) -> Result:
    """200 records a second to another topic: how long each takes, without cleaning and beside it."""
    amount = kafka_measure.Amount(seconds=scale.seconds)
    topic = _topic(peer, 3, WAITING)
    write(peer, topic, scale.megabytes, Shape(100), np.random.default_rng(1))
    rested(peer)
    still = kafka_measure.latency(peer, amount)
    before = peer.cleaned()
    _configure(peer, topic, CLEANING)
    busy = kafka_measure.latency(peer, amount)
    told = peer.cleaned().since(before)
    _delete(peer, topic)
    result = Result(
        {"still": still.figures["p99"], "busy": busy.figures["p99"]},
        notes=[f"cleaning took {told.cpu:.2f} CPU-s in the {scale.seconds:g} s in which it ran"],
        problems=still.problems + busy.problems,
    )
    if told.cpu <= 0:
        result.problems.append("nothing was cleaned beside it: write more")
    return result


def write(
    peer: Cleaner,
    topic: str,
    megabytes: float,
    shape: Shape,
    rng: np.random.Generator,
    *,
    distinct: int | None = None,
) -> int:
    """Write so much to partition 0, one in fifty a tombstone; how many records.

    Raises TimeoutError, ValueError.
    """
    producer = _producer(peer, linger=5, codec=shape.codec)
    noise, errors = rng.bytes(_NOISE), []
    count = int(megabytes * 1e6 / (shape.size + OVERHEAD))
    keys = distinct or _distinct(megabytes, shape)
    # The exponent of skewed keys is near that of words and visits; they are spread over the same keys.
    drawn = (rng.zipf(1.2, count) % keys if shape.skewed else rng.integers(0, keys, count)).tolist()
    tombstones = (rng.random(count) < 0.02).tolist()

    def told(error: KafkaError | None, _: object) -> None:
        if error is not None:
            errors.append(error)

    for number, (key, gone) in enumerate(zip(drawn, tombstones, strict=True)):
        at = key * 37 % (_NOISE - shape.size)
        value = None if gone else (noise[at : at + shape.size // 2] + _WORDS)[: shape.size]
        while True:
            try:
                producer.produce(topic, value, b"user-%011d" % key, partition=0, on_delivery=told)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 512 == 0:
            producer.poll(0)
    if left := producer.flush(_SECONDS):
        raise TimeoutError(f"{left} records for {topic} were not acknowledged")
    if errors:
        raise ValueError(f"{len(errors)} records for {topic} failed: {errors[0]}")
    return count


def rested(peer: Cleaner, quiet: float = 3.0) -> None:
    """Wait until a cluster's cleaning has done nothing for so many seconds. Raises TimeoutError."""
    deadline = time.monotonic() + _SECONDS
    last, since = peer.cleaned(), time.monotonic()
    while time.monotonic() < since + quiet:
        if time.monotonic() > deadline:
            raise TimeoutError(f"cleaning had not come to its end after {_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)
        now = peer.cleaned()
        # Looking around takes Kafka's thread a little of the processor; it is what it writes that counts.
        if now._replace(cpu=0.0) != last._replace(cpu=0.0):
            last, since = now, time.monotonic()


def _round(peer: Cleaner, topic: str, replicas: int) -> Cleaned:
    """Let a topic be cleaned; what that took, until each replica had a round. Raises TimeoutError."""
    before, deadline = peer.cleaned(), time.monotonic() + _SECONDS
    _configure(peer, topic, CLEANING)
    while (told := peer.cleaned().since(before)).rounds < replicas:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{told.rounds} of {replicas} replicas were cleaned after {_SECONDS:.0f} s")
        time.sleep(0.05)
    _configure(peer, topic, WAITING)
    return told


def _distinct(megabytes: float, shape: Shape) -> int:
    return max(10, int(megabytes * 1e6 / (shape.size + OVERHEAD)) // _TABLE_SHARE)


def _producer(peer: Cleaner, *, linger: int, codec: str = "none") -> Producer:
    return Producer(
        {
            "bootstrap.servers": peer.bootstrap, "log_level": 0, "acks": "all", "enable.idempotence": True,
            "linger.ms": linger, "batch.size": 16_384, "compression.type": codec,
        }
    )  # fmt: skip


def _topic(peer: Cleaner, replicas: int, settings: Mapping[str, str]) -> str:
    """A compacted topic of one partition that has a leader. Raises KafkaException, TimeoutError."""
    name = f"table-{uuid.uuid4().hex[:12]}"
    admin, deadline = _admin(peer), time.monotonic() + _SECONDS
    configs = {"cleanup.policy": "compact", "segment.bytes": str(SEGMENT_BYTES), **settings}
    # Brokers that have just started may not have registered yet.
    while len(admin.list_topics(timeout=10).brokers) < 3:
        if time.monotonic() > deadline:
            raise TimeoutError("there are no three brokers")
        time.sleep(_POLL_SECONDS)
    admin.create_topics([NewTopic(name, 1, replicas, config=configs)])[name].result(30)
    while True:
        known = admin.list_topics(name, timeout=10).topics[name]
        if known.error is None and known.partitions and known.partitions[0].leader >= 0:
            return name
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name} has no leader")
        time.sleep(_POLL_SECONDS)


def _configure(peer: Cleaner, topic: str, settings: Mapping[str, str]) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin = _admin(peer)  # what it was asked ends with it
    for answer in admin.incremental_alter_configs([resource]).values():
        answer.result(20)


def _delete(peer: Cleaner, topic: str) -> None:
    admin = _admin(peer)
    admin.delete_topics([topic])[topic].result(30)


def _admin(peer: Cleaner) -> AdminClient:
    return AdminClient({"bootstrap.servers": peer.bootstrap, "log_level": 0})


def _read(peer: Cleaner, topic: str) -> int:
    """Read partition 0 from 0 to its end; how many records. Raises TimeoutError, KafkaException."""
    consumer = Consumer(
        {
            "bootstrap.servers": peer.bootstrap, "log_level": 0, "group.id": "bench",
            "enable.auto.commit": False, "enable.partition.eof": True,
            "fetch.message.max.bytes": 4 << 20, "queued.max.messages.kbytes": 128 * 1024,
        }
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    count, deadline = 0, time.monotonic() + _SECONDS
    try:
        while time.monotonic() < deadline:
            for message in consumer.consume(10_000, 0.2):
                error = message.error()
                if error is None:
                    count += 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    return count
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()
    raise TimeoutError(f"a consumer of {topic} was not told its end")
