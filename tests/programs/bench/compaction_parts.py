"""The work of `scripts/bench compaction`: the same for any cluster that speaks Kafka's protocol."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Final

import numpy as np
from confluent_kafka import Producer

from tests.programs.bench import kafka_measure
from tests.programs.bench.compaction_systems import Cleaned, Cleaner
from tests.programs.bench.compaction_topics import (
    CLEANING,
    OVERHEAD,
    POLL_SECONDS,
    SECONDS,
    WAITING,
    Scale,
    Shape,
    cleaned_once,
    configure,
    delete,
    distinct,
    idle_rate,
    read_all,
    rested,
    send,
    sender,
    topic_of,
    write,
)
from tests.programs.bench.kafka_measure import Servers, percentile
from tests.programs.bench.measures import Result
from tests.programs.divergence.reading import look

KAFKA_KEY_BYTES: Final = 24 / 0.9
"""SkimpyOffsetMap: 16 bytes of MD5 and 8 of the offset, in nine of ten slots."""
_MANY_SECONDS: Final = 900.0
"""Longest wait for the table of many keys, which takes minutes."""
_MANY_AGAIN: Final = 20
"""Of the many keys one in so many is written twice."""
_READS: Final = 3
_READ_TIMES: Final = 4
"""The table that is read is made of so many times the megabytes of a pass."""
_DIRT_TIMES: Final = 6
"""So many times the megabytes of a pass are cleaned while something else is produced."""
_DIRTY_PASSES: Final = 3
_WATCH_SECONDS: Final = 0.05
_STEP_SECONDS: Final = 0.002
"""Processor time between two looks from which on a cleaner is at work: Kafka's thread looks around, too."""


def cleaning(peer: Cleaner, scale: Scale, shape: Shape) -> Result:
    """Write, clean, and again: MB that a CPU-second cleans, of the first round and the best later one."""
    topic = topic_of(peer, 1, WAITING)
    rng = np.random.default_rng(1)
    result, rates, whole = Result(), list[float](), list[float]()
    written = 0
    for _ in range(scale.passes):
        written += write(peer, topic, scale.megabytes, shape, rng)
        rested(peer)
        idle = idle_rate(peer)
        servers, began = Servers(peer), time.monotonic()
        before = servers.processor()
        told = cleaned_once(peer, topic, 1)
        rested(peer)
        cpu = servers.processor() - before - idle * (time.monotonic() - began)
        if told.cpu > 0:
            rates.append(told.read / told.cpu)
        if cpu > 0:
            whole.append(told.read / cpu)
        result.notes.append(
            f"{told.rounds} rounds read {told.read / 1e6:.1f} MB in {told.cpu:.2f} CPU-s;"
            f" all servers took {cpu:.2f} beyond {idle:.2f} a second"
        )
    delete(peer, topic)
    if len(rates) == scale.passes:
        result.figures = {"first": rates[0], "later": max(rates[1:])}
        if whole:
            result.figures["whole"] = max(whole)
    else:
        result.problems.append("a round took no processor time that could be told: write more")
    result.notes.append(f"{written:,} records written")
    return result


def memory(keys: int) -> Result:
    """Bytes of our map for each key, in another process: this one has freed memory that it would take."""
    command = [sys.executable, "-P", "-m", "tests.programs.bench.compaction_memory", str(keys)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        return Result(problems=[done.stderr.strip()[-300:]])
    return Result(**json.loads(done.stdout))


def many_keys(peer: Cleaner, scale: Scale) -> Result:
    """Clean a table of very many keys, with the usual memory for them: rounds, and memory at most."""
    keys, again = scale.table_keys, range(0, scale.table_keys, _MANY_AGAIN)
    enough = 0.5 * len(again)  # What lies in the segment that is written to may stay.
    topic = topic_of(peer, 1, WAITING)

    def records() -> Iterator[tuple[bytes, bytes]]:
        for number in range(keys):
            yield b"user-%011d" % number, b"the first value."
        for number in again:
            yield b"user-%011d" % number, b"the other value."

    send(peer, topic, records())
    # A batch of its own: neither cleans the last one, and few keys may have one batch.
    send(peer, topic, [(b"the end", b"")])
    rested(peer, most=_MANY_SECONDS)
    before = peer.cleaned()
    configure(peer, topic, CLEANING)
    deadline = time.monotonic() + _MANY_SECONDS
    while True:
        rested(peer, quiet=10.0, most=_MANY_SECONDS)
        told = peer.cleaned().since(before)
        # While keys are mapped nothing is written, which on a busy machine takes longer than cleaning rests.
        if told.removed > enough or time.monotonic() > deadline:
            break
    memory_bytes = peer.cleaners().memory
    delete(peer, topic)
    result = Result({"memory": memory_bytes, "rounds": told.rounds, "cpu": told.cpu})
    result.notes.append(f"{keys:,} keys, {told.removed:,.0f} of {len(again):,} superseded records went")
    if not enough < told.removed <= len(again):
        result.problems.append(f"{told.removed:,.0f} of {len(again):,} superseded records went")
    return result


def amplification(peer: Cleaner, scale: Scale, skewed: bool) -> Result:
    """Bytes written by cleaning for each byte produced, after some rounds at a ratio of a half."""
    shape, rng = Shape(1000, skewed), np.random.default_rng(1)
    topic = topic_of(peer, 1, {"min.cleanable.dirty.ratio": "0.5"})
    before, began = peer.cleaned(), time.monotonic()
    produced = 0.0
    told = Cleaned(0, 0.0, 0.0, 0.0)
    limit = 4 * scale.rounds * 20.0
    while told.rounds < scale.rounds and time.monotonic() < began + limit:
        piece = scale.megabytes / 4
        records = write(peer, topic, piece, shape, rng, keys=distinct(scale.megabytes, shape))
        produced += records * (shape.size + OVERHEAD)
        rested(peer)
        told = peer.cleaned().since(before)
    delete(peer, topic)
    result = Result(
        {
            "cleaned": (told.written + told.filled) / produced,
            "published": told.published / produced,
        }
    )
    result.notes.append(
        f"{told.rounds} rounds, {produced / 1e6:.1f} MB produced, {told.written / 1e6:.1f} MB written by"
        f" rounds, {told.filled / 1e6:.1f} MB by filling, {told.published / 1e6:.1f} MB published"
    )
    if told.rounds < scale.rounds:
        result.problems.append(f"{told.rounds} of {scale.rounds} rounds came within {limit:.0f} s")
    return result


def tombstone(peer: Cleaner, settings: Mapping[str, str]) -> Result:
    """Seconds from a tombstone's acknowledgement until no reader gets it any more, others being written."""
    topic = topic_of(peer, 3, settings)
    producer = Producer({**sender(peer), "linger.ms": 0})

    def put(key: str, value: bytes | None) -> None:
        producer.produce(topic, value, key, partition=0)
        if producer.flush(20.0):
            raise TimeoutError(f"a record for {topic} was not acknowledged")

    put("gone", b"value")
    put("gone", None)
    offset, began = 1, time.monotonic()
    number = 0
    while time.monotonic() < began + SECONDS:
        for _ in range(5):
            put(f"other-{number % 3}", b"value %d" % number)
            number += 1
        if offset not in look(peer.bootstrap, topic).offsets:
            delete(peer, topic)
            return Result({"seconds": time.monotonic() - began})
        time.sleep(POLL_SECONDS)
    return Result(problems=[f"the tombstone was still there after {SECONDS:.0f} s"])


def reading(peer: Cleaner, scale: Scale) -> Result:
    """Read a table that was cleaned from offset 0, once to begin with, and then some times that count."""
    shape, rng = Shape(1000), np.random.default_rng(1)
    topic = topic_of(peer, 3, WAITING)
    megabytes = scale.megabytes * _READ_TIMES
    write(peer, topic, megabytes, shape, rng, keys=int(megabytes * 1e6 / (shape.size + OVERHEAD)))
    rested(peer)
    told = cleaned_once(peer, topic, 3)
    rested(peer)
    servers, rates, counts = Servers(peer), list[float](), {read_all(peer, topic)}
    before, size = servers.processor(), 0
    for _ in range(_READS):
        began = time.perf_counter()
        counts.add(read := read_all(peer, topic))
        rates.append(read[1] / (time.perf_counter() - began))
        size += read[1]
    figures = {"rate": median(rates), "cpu_gb": (servers.processor() - before) / (size / 1e9)}
    delete(peer, topic)
    result = Result(figures)
    records, each = max(counts)
    result.notes.append(f"{records:,} records, {each / 1e6:.1f} MB, are left after {told.rounds} rounds")
    if len(counts) != 1:
        result.problems.append(f"reads found {sorted(counts)} records and bytes")
    return result


class Watch:
    """Looks every moment whether a cluster's cleaners work: when they first and last did."""

    def __init__(self, peer: Cleaner) -> None:
        self._peer = peer
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.began: float | None = None
        """Seconds of the performance counter."""
        self.ended = 0.0
        self.cpu = 0.0
        """Seconds that the cleaners took."""

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def spans(self, moment: float) -> bool:
        """Whether cleaning was under way then."""
        return self.began is not None and self.began <= moment <= self.ended

    def _run(self) -> None:
        first = last = self._peer.cleaners().cpu
        at = time.perf_counter()
        while not self._ending.wait(_WATCH_SECONDS):
            cpu, now = self._peer.cleaners().cpu, time.perf_counter()
            if cpu - last > _STEP_SECONDS:
                self.began = at if self.began is None else self.began
                self.ended = now
            last, at = cpu, now
        self.cpu = last - first


def produce(peer: Cleaner, scale: Scale) -> Result:
    """200 records a second to another topic: all without cleaning, and those sent while cleaning went on.

    The first pass warms up and is not counted. The cleaners are watched in both cases: that costs the client.
    """
    amount = kafka_measure.Amount(seconds=scale.seconds)
    topic, rng = topic_of(peer, 3, WAITING), np.random.default_rng(1)
    result, still, busy = Result(), list[float](), list[float]()
    for number in range(_DIRTY_PASSES + 1):
        write(peer, topic, scale.megabytes * _DIRT_TIMES, Shape(100), rng)
        rested(peer)
        with Watch(peer):
            without, _ = kafka_measure.paced(peer, amount)
        with Watch(peer) as watch:
            configure(peer, topic, CLEANING)
            told, _ = kafka_measure.paced(peer, amount)
        configure(peer, topic, WAITING)
        rested(peer)
        if errors := [*without.errors, *told.errors]:
            result.problems.append(f"records failed: {errors[:3]}")
        if number == 0:
            continue
        sent = [at - took for at, took in zip(told.times, told.latencies, strict=True)]
        beside = [took for took, at in zip(told.latencies, sent, strict=True) if watch.spans(at)]
        still += without.latencies
        busy += beside
        result.notes.append(
            f"cleaners took {watch.cpu:.2f} CPU-s in {watch.ended - (watch.began or watch.ended):.1f} s,"
            f" while {len(beside):,} records were sent; p99 {1e3 * percentile(beside, 0.99):.1f} ms,"
            f" {1e3 * percentile(without.latencies, 0.99):.1f} ms before"
        )
    delete(peer, topic)
    result.figures = {
        "still50": percentile(still, 0.5), "busy50": percentile(busy, 0.5),
        "still": percentile(still, 0.99), "busy": percentile(busy, 0.99),
        "still999": percentile(still, 0.999), "busy999": percentile(busy, 0.999),
    }  # fmt: skip
    result.figures["worse"] = result.figures["busy"] / result.figures["still"]
    if len(busy) < amount.rate * scale.seconds / 10:
        result.problems.append(f"only {len(busy)} records were sent beside cleaning: write more")
    return result
