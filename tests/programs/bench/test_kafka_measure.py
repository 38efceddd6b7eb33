"""What the benches measure of servers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import cast

import pytest
from confluent_kafka import Consumer, Producer

from tests.programs.bench import kafka_measure
from tests.programs.bench.kafka_measure import Amount, Peer, Servers, at_rate, read_back

BURN = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


def test_processor_time_of_a_child_that_ended_is_not_lost() -> None:
    servers = Servers(cast(Peer, SimpleNamespace(pids=[os.getpid()])))
    with subprocess.Popen([sys.executable, "-c", BURN]) as child:
        before = servers.processor()
        child.wait()
    assert servers.processor() >= before
    began = servers.processor()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert servers.processor() - began > 0.25


def test_a_reader_whose_queue_was_full_does_not_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, object]] = []

    def consumer(settings: dict[str, object]) -> Consumer:
        made.append(settings)
        return Consumer(settings)

    monkeypatch.setattr(kafka_measure, "Consumer", consumer)
    peer = SimpleNamespace(bootstrap="127.0.0.1:1", security={})
    assert read_back(cast(Peer, peer), "topic", 1, 0, 1000)[1] == []
    assert cast(int, made[0]["fetch.queue.backoff.ms"]) <= 20


def test_a_client_that_sends_at_a_rate_leaves_the_processor_to_the_servers() -> None:
    producer, sent = Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}), list[float]()
    began, spent = time.perf_counter(), time.process_time()
    at_rate(Amount(seconds=1.0, rate=200), lambda: sent.append(time.perf_counter() - began), producer)
    assert 190 <= len(sent) <= 201
    assert time.process_time() - spent < 0.3
