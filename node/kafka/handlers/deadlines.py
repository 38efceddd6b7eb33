"""Times that requests name or leave open, as the node keeps them."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from strandline.node.kafka.handlers.context import BrokerContext

NO_THROTTLE: Final = timedelta(0)
MAX_WAIT_SECONDS: Final = 300.0
"""No request is held longer than this, whatever its timeout says."""
UNTIMED_SECONDS: Final = 30.0
"""Time limit of a request without a timeout of its own: Kafka's request.timeout.ms."""


def deadline_after(context: BrokerContext, timeout: timedelta) -> float:
    """The loop's time at which a request with this timeout has to be answered."""
    return context.loop.time() + min(max(timeout.total_seconds(), 0.0), MAX_WAIT_SECONDS)


def data_wait(timeout: timedelta) -> float:
    """Seconds that a request which writes a partition waits for the log.

    Kafka writes its leader's own disk without looking at the timeout, so one of 0 is a good request there,
    with acks=1 or one replica. Here nothing is written in no time: 0, or less, is no bound of the client's.
    """
    seconds = timeout.total_seconds()
    return min(seconds, MAX_WAIT_SECONDS) if seconds > 0 else UNTIMED_SECONDS
