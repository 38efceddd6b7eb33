"""The two topics whose partitions are coordinators: what they are called, and which partition has which key.

Everything that decides by it (who hosts what, which topics users may touch, where a client is sent) must
decide alike, on every node and for ever: a key that changed its partition would lose its state. So the rule
stands here once. It is Kafka's (`GroupMetadataManager.partitionFor`, `TransactionStateManager.partitionFor`),
for tools that compute the partition themselves.
"""

from __future__ import annotations

from typing import Final

GROUPS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
INTERNAL_TOPICS: Final[frozenset[str]] = frozenset((GROUPS_TOPIC, TRANSACTIONS_TOPIC))
"""Never to be iterated: its order is nobody's."""

GROUPS_KIND: Final = "groups"
TRANSACTIONS_KIND: Final = "transactions"
_KINDS: Final = {GROUPS_TOPIC: GROUPS_KIND, TRANSACTIONS_TOPIC: TRANSACTIONS_KIND}


def coordinator_kind(topic: str) -> str | None:
    """The kind of state machine that the partitions of a topic replicate; None for one that has records."""
    return _KINDS.get(topic)


def coordinator_of(key: str, partitions: int) -> int:
    """The number of the partition that coordinates a group or a transactional id, of `partitions` in all.

    Java's `String.hashCode`, over UTF-16 code units, made positive as Kafka's `Utils.abs` does it, by which
    the lowest of all numbers becomes 0.
    """
    hashed = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        hashed = (31 * hashed + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    if hashed >= 0x80000000:
        hashed = (0x100000000 - hashed) & 0x7FFFFFFF
    return hashed % partitions
