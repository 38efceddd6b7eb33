"""When to kill: while a batch is under way, and amid what it writes to a topic."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition

LONGEST_WAIT = 10.0
LONGEST_WAIT_FOR_WRITING = 60.0
"""On a busy machine a batch is planned for longer than it is written."""
_REQUEST_SECONDS = 1.0
_LOOK_SECONDS = 0.02

Ends = Callable[[], int | None]
"""The records that lie in the topic that is written to; None if it cannot be told now."""


def under_way(kept: Path) -> bool:
    """Whether Spark has written down a batch's end, and not yet that the batch is done."""
    planned, done = (
        max((int(path.name) for path in (kept / name).glob("[0-9]*")), default=-1)
        for name in ("offsets", "commits")
    )
    return planned > done


def await_batch(kept: Path) -> None:
    """Return when a batch is under way, or after LONGEST_WAIT."""
    within = time.monotonic() + LONGEST_WAIT
    while not under_way(kept) and time.monotonic() < within:
        time.sleep(_LOOK_SECONDS)


def await_writing(kept: Path, ends: Ends) -> bool:
    """Return True when records of a batch that is under way have come, False if none have in this time."""
    within = time.monotonic() + LONGEST_WAIT_FOR_WRITING
    before: int | None = None
    while time.monotonic() < within:
        if under_way(kept):
            now = ends()
            if before is not None and now is not None and now > before:
                return under_way(kept)
            before = now if before is None else before
        else:
            before = None
        time.sleep(_LOOK_SECONDS)
    return False


class TopicEnds:
    """`Ends` of a topic, as its leaders tell them."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends"})
        self._partitions = [TopicPartition(topic, number) for number in range(partitions)]

    def __call__(self) -> int | None:
        try:
            found = [
                self._consumer.get_watermark_offsets(partition, timeout=_REQUEST_SECONDS)
                for partition in self._partitions
            ]
        except KafkaException:  # a node is away
            return None
        return None if None in found else sum(ends[1] for ends in found)

    def close(self) -> None:
        self._consumer.close()
