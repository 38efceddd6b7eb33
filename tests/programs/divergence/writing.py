"""How the drivers write: one record at a time, each a batch of its own, so that offsets are known."""

from __future__ import annotations

import time
from typing import Any, Final

from confluent_kafka import KafkaException, Producer

from tests.programs.divergence.reading import look

WRITE_SECONDS: Final = 30.0


class Writer:
    """A producer of one topic's partition 0; with an id its records are a transaction's."""

    def __init__(self, bootstrap: str, topic: str, transactional_id: str | None = None) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all", "linger.ms": 0,
            "log_level": 0,
        }  # fmt: skip
        if transactional_id is not None:
            settings["transactional.id"] = transactional_id
        self._producer = Producer(settings)
        self._topic = topic
        self._bootstrap = bootstrap
        if transactional_id is not None:
            self._producer.init_transactions(WRITE_SECONDS)
            self._producer.begin_transaction()

    def write(self, key: str, value: str | None) -> int:
        """Write one record and wait; its offset. Raises KafkaException and TimeoutError."""
        told: list[Any] = []
        self._producer.produce(
            self._topic, key=key.encode(), value=None if value is None else value.encode(), partition=0,
            on_delivery=lambda error, message: told.append(error or message),
        )  # fmt: skip
        self._producer.flush(WRITE_SECONDS)
        if not told:
            raise TimeoutError(f"{self._topic}: a record was not acknowledged for {WRITE_SECONDS:.0f} s")
        if not hasattr(told[0], "offset"):
            raise KafkaException(told[0])
        return int(told[0].offset())

    def end(self, *, commit: bool) -> int:
        """End the transaction; the offset of its marker, once it is there. Raises as `write`."""
        before = set(look(self._bootstrap, self._topic).markers)
        if commit:
            self._producer.commit_transaction(WRITE_SECONDS)
        else:
            self._producer.abort_transaction(WRITE_SECONDS)
        deadline = time.monotonic() + WRITE_SECONDS
        while True:
            new = set(look(self._bootstrap, self._topic).markers) - before
            if new:
                return max(new)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._topic}: no marker for {WRITE_SECONDS:.0f} s")
            time.sleep(0.05)
