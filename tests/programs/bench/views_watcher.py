"""A reader of the bench's view: when each change was seen, and how old its rows were."""

from __future__ import annotations

import json
import threading
import time
from itertools import pairwise
from statistics import quantiles
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from strandline.cluster.kafka_client import client_config

END_SECONDS: Final = 10.0


class Watcher:
    """Reads a view in a thread: when each change was seen, and how old its newest row was."""

    def __init__(self, bootstrap: str) -> None:
        self.seen: list[tuple[float, float]] = []
        self._consumer = Consumer(
            client_config(
                bootstrap, group_id="bench", enable_auto_commit=False, isolation_level="read_committed",
                auto_offset_reset="latest", fetch_wait_max_ms=10,
            )
        )  # fmt: skip
        end = self._end(time.monotonic() + END_SECONDS)
        self._consumer.assign([TopicPartition("sample", 0, end)])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _end(self, until: float) -> int:
        """The view's present end; a node may learn of a name that a cutover gave a moment later."""
        while True:
            try:
                return self._consumer.get_watermark_offsets(TopicPartition("sample", 0), timeout=30)[1]
            except KafkaException:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def _run(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(1000, 0.02):
                value = message.value()
                if message.error() is None and value is not None:
                    now = time.time()
                    self.seen.append((now, now - json.loads(value)["sent"] / 1e6))

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def ages(self, *spans: tuple[float, float]) -> tuple[float, float]:
        """p50 and p99 of the ages that were seen in some times, each from its first moment to its last."""
        ages = [age for moment, age in self.seen if any(first <= moment < last for first, last in spans)]
        cuts = quantiles(ages, n=100) if len(ages) > 1 else [float("nan")] * 99
        return cuts[49], cuts[98]

    def gap(self, first: float, last: float) -> float:
        """The longest time without a change."""
        moments = [moment for moment, _ in self.seen if first <= moment < last]
        return max((later - one for one, later in pairwise(moments)), default=float("nan"))
