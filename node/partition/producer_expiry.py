"""The time after which a partition forgets a producer id that writes nothing."""

from __future__ import annotations

from typing import Final

from strandline.statemachine.partition.producers import Producers

PRODUCER_EXPIRY_MS: Final = 7 * 24 * 3600 * 1000
"""A producer that wrote nothing for this long is forgotten, as by Kafka's transactional.id.expiration.ms."""
MAX_PRODUCERS: Final = 32_768
"""Beyond this number the producers that are idle for longest are forgotten sooner. A client that makes a
producer for each message would fill memory otherwise, and a snapshot of all of them is read in one go when a
node starts, which would take seconds (Kafka: KIP-854)."""
LEAST_EXPIRY_MS: Final = 15 * 60 * 1000
"""No producer is forgotten sooner: longer than any client tries to send a batch again."""


def producer_expiry_ms(producers: Producers, now: int) -> int:
    """Milliseconds without a batch after which a producer is forgotten at time `now`, in ms since 1970."""
    since = producers.newest_since(MAX_PRODUCERS)
    if since is None:
        return PRODUCER_EXPIRY_MS
    return min(max(now - since, LEAST_EXPIRY_MS), PRODUCER_EXPIRY_MS)
