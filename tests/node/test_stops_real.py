"""Two of three real nodes are told to stop at the same moment, with clients that write all the while."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.cluster.real_cluster import RealCluster, real_cluster, wait

__all__ = ["real_cluster"]
STOPPED_SECONDS = 10.0
"""Half of what a node allows itself, and far more than it takes."""


@contextmanager
def load(bootstrap: str) -> Iterator[None]:
    """Records to one topic, as fast as they are taken; what becomes of them is another test's matter."""
    ended = threading.Event()

    def write() -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0})
        while not ended.is_set():
            producer.produce("t", b"record")
            producer.poll(0.002)
        producer.purge()
        producer.flush(1.0)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def none_runs(pids: Iterable[int]) -> bool:
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat") as stat:
                if stat.read().rpartition(")")[2].split()[0] != "Z":
                    return False
        except FileNotFoundError:
            pass
    return True


def _none_of(cluster: RealCluster, nodes: Iterable[int]) -> bool:
    return not set(nodes) & set(cluster.pids)


@pytest.mark.timeout(180)
def test_two_nodes_that_are_told_to_stop_together_do_so_whether_the_third_lives(
    real_cluster: RealCluster,
) -> None:
    admin = AdminClient({"bootstrap.servers": real_cluster.bootstrap})
    admin.create_topics([NewTopic("t", 12, 3)])["t"].result(60)
    with load(real_cluster.bootstrap):
        for third, dies in ((2, False), (1, True)):
            two = [node for node in (1, 2, 3) if node != third]
            pids = {node: real_cluster.pids[node] for node in two}
            if dies:
                real_cluster.kill(third)
            began = time.monotonic()
            for pid in pids.values():
                os.kill(pid, signal.SIGTERM)
            wait(partial(none_runs, pids.values()), STOPPED_SECONDS)
            assert time.monotonic() - began < STOPPED_SECONDS
            for node in two:
                log = real_cluster.description.nodes[node].log.read_text()
                assert log.rstrip().endswith(f"node {node} stopped"), log[-1000:]
            wait(partial(_none_of, real_cluster, two))  # none is taken for one that runs
            for node in (1, 2, 3) if dies else two:
                real_cluster.start(node, wait=False)
            wait(lambda: all(status.problem is None for status in real_cluster.local.status()), 60.0)
