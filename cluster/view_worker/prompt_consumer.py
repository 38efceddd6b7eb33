"""A consumer that gives what is there soon, instead of waiting for as many messages as were asked for."""

from __future__ import annotations

from typing import Any, Final

from confluent_kafka import Consumer, Message

LINGER_SECONDS: Final = 0.005
"""Time for more, once there is one: each step is a transaction, and one for each record would cost much."""


class PromptConsumer(Consumer):
    """A Consumer whose `consume` returns `LINGER_SECONDS` after the first message at the latest.

    librdkafka's waits for its whole time unless it has as many messages as were asked for
    (`rd_kafka_consume_batch_queue`): a record that comes alone would wait for the end of that time.
    """

    def consume(self, num_messages: int = 1, timeout: float = -1, **_: Any) -> list[Message]:
        """Up to so many messages; none when there are none for `timeout` seconds, where a negative one never
        ends."""
        found = super().consume(1, timeout)
        if found and num_messages > 1:
            linger = LINGER_SECONDS if timeout < 0 else min(LINGER_SECONDS, timeout)
            found += super().consume(num_messages - 1, linger)
        return found
