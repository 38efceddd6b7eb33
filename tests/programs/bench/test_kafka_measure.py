"""What the benches measure of servers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import cast

from confluent_kafka import Producer

from tests.programs.bench.kafka_measure import Amount, Peer, Servers, at_rate

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


def test_a_client_that_sends_at_a_rate_leaves_the_processor_to_the_servers() -> None:
    producer, sent = Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}), list[float]()
    began, spent = time.perf_counter(), time.process_time()
    at_rate(Amount(seconds=1.0, rate=200), lambda: sent.append(time.perf_counter() - began), producer)
    assert 190 <= len(sent) <= 201
    assert time.process_time() - spent < 0.3
