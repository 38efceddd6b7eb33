"""The clients of `scripts/restore-kills`, in a process that is killed with the nodes.

    python -m tests.programs.restore_kills.writing BOOTSTRAP NAME LEDGER

Transactional producers put a record into each of two partitions in each transaction, an idempotent one writes
to them by turns, and a group commits how far it has read. What is acknowledged goes into the ledger, a JSON
array a line, with the time. A client that outlived the nodes would go on with the restored cluster, and be
no measure of what was restored.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

TOPICS: Final = ("first", "last")
GROUP: Final = "followers"
PRODUCERS: Final = 4
SECONDS: Final = 30.0
Note = Callable[[list[Any]], None]


def transactions(bootstrap: str, name: str, note: Note) -> None:
    """One transaction after the other; ends with the nodes."""
    settings = {"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0, "log_level": 0}
    producer = Producer(settings)
    producer.init_transactions(SECONDS)
    number = 0
    while True:
        producer.begin_transaction()
        for topic in TOPICS:
            producer.produce(topic, f"{name}:{number}", partition=0)
        producer.commit_transaction(SECONDS)
        note(["transaction", f"{name}:{number}", time.time()])
        number += 1


def records(bootstrap: str, name: str, note: Note) -> None:
    """Records without transactions."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    number = 0
    while True:
        topic = TOPICS[number % len(TOPICS)]

        def told(error: object, message: Any, topic: str = topic) -> None:
            if error is None:
                note(["record", topic, message.offset(), message.value().decode(), time.time()])

        producer.produce(topic, f"{name}:{number}", partition=0, on_delivery=told)
        number += 1
        producer.poll(0)
        time.sleep(0.002)


def follow(bootstrap: str, note: Note) -> None:
    """Read from the ends on, and commit."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": GROUP, "enable.auto.commit": False, "log_level": 0}
    )
    places = [TopicPartition(topic, 0) for topic in TOPICS]
    for place in places:
        place.offset = consumer.get_watermark_offsets(place, timeout=SECONDS)[1]
    consumer.assign(places)
    while True:
        if consumer.consume(200, 0.1):
            try:
                committed = consumer.commit(asynchronous=False) or []
            except KafkaException:
                continue
            for place in committed:
                if place.offset >= 0:
                    note(["offset", place.topic, place.offset])


def main(arguments: list[str]) -> None:
    bootstrap, name, ledger = arguments
    with Path(ledger).open("w", buffering=1) as file:

        def note(row: list[Any]) -> None:
            file.write(json.dumps(row) + "\n")

        threads = [
            threading.Thread(target=transactions, args=(bootstrap, f"{name}-t{number}", note))
            for number in range(PRODUCERS)
        ]
        threads.append(threading.Thread(target=records, args=(bootstrap, f"{name}-r", note)))
        threads.append(threading.Thread(target=follow, args=(bootstrap, note)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(sys.argv[1:])
