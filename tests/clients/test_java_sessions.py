"""Fetch sessions (KIP-227) with the Java client, whose requests name topics by id, and for a while do not."""

from __future__ import annotations

import re
import threading
import time
import urllib.request

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.cluster.real_cluster import RealCluster, wait
from tests.peers.kafka_tools import TOOLS, KafkaTools, Ran

TOPICS = ("session-a", "session-b")


def sessions(cluster: RealCluster) -> int:
    """Fetch sessions of all nodes."""
    found = 0
    for address in cluster.admin:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as page:
            text = page.read().decode()
        (number,) = re.findall(r"^strandline_kafka_fetch_sessions (\d+)$", text, re.MULTILINE)
        found += int(number)
    return found


def test_a_consumer_goes_on_with_its_sessions_when_one_of_its_topics_is_deleted(
    cluster: RealCluster, tools: KafkaTools
) -> None:
    """The client names the rest without ids then, and by ids again: its session must not mix the two."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for made in admin.create_topics([NewTopic(name, 3, 3) for name in TOPICS]).values():
        made.result(60)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})

    def produce(topic: str, *values: str) -> None:
        for number, value in enumerate(values):
            producer.produce(topic, value.encode(), partition=number % 3)
        assert producer.flush(60) == 0

    produce(TOPICS[0], "a0", "a1", "a2")
    produce(TOPICS[1], "b0", "b1", "b2")
    before = sessions(cluster)
    consumer = tools.tool(
        f"{TOOLS}.consumer.ConsoleConsumer",
        *("--include", "session-.*", "--from-beginning", "--timeout-ms", "8000"),
        *("--consumer-property", "metadata.max.age.ms=1000"),
    )
    done: list[Ran] = []
    thread = threading.Thread(target=lambda: done.append(tools.run(consumer)))
    thread.start()
    wait(lambda: sessions(cluster) >= before + 3)
    for gone in admin.delete_topics([TOPICS[0]]).values():
        gone.result(60)
    time.sleep(5)  # the client learns of it, in some rounds of metadata and a rebalance
    produce(TOPICS[1], "b3", "b4", "b5")
    time.sleep(3)
    produce(TOPICS[1], "b6", "b7", "b8")
    thread.join(60)
    (result,) = done
    # Without a group of its own it commits nothing, and begins again at each rebalance; six come after.
    last = [f"b{number}" for number in range(3, 9)]
    assert sorted(line for line in result.lines if line in last) == last, result
    assert {*result.lines} == {"a0", "a1", "a2", "b0", "b1", "b2", *last}, result
    assert result.code == 0, result
    wait(lambda: sessions(cluster) == before)
