"""The two topics whose partitions are coordinators: their names, and the partition of each key.

Every decision that depends on it (the hosts of a coordinator, the topics that users may change, the node that
a client is sent to) must be the same on every node and for ever: a key that changed its partition would lose
its state. So the rule is only in this module. It is Kafka's (`GroupMetadataManager.partitionFor`,
`TransactionStateManager.partitionFor`), for tools that compute the partition themselves.
"""

from __future__ import annotations

import struct
from typing import Final

GROUPS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
INTERNAL_TOPICS: Final[frozenset[str]] = frozenset((GROUPS_TOPIC, TRANSACTIONS_TOPIC))
"""Names of the internal topics. Never iterate over the set: its order differs between processes."""

GROUPS_KIND: Final = "groups"
TRANSACTIONS_KIND: Final = "transactions"
MAX_KEY_BYTES: Final = 2**15 - 1
"""Longest group id or transactional id in bytes: the limit of a string in Kafka's older versions. From
KIP-482 on a client could send a longer one, which would be hashed, kept and sent around."""
_KINDS: Final = {GROUPS_TOPIC: GROUPS_KIND, TRANSACTIONS_TOPIC: TRANSACTIONS_KIND}


def coordinator_kind(topic: str) -> str | None:
    """The kind of state machine that the partitions of a topic replicate; None for one that has records."""
    return _KINDS.get(topic)


def is_key(key: str) -> bool:
    """Whether there may be a group or a transactional id of this name, as far as its length goes."""
    # Bytes are at least as many as characters: what is much too long is not encoded first.
    return len(key) <= MAX_KEY_BYTES and len(key.encode("utf-8", "surrogatepass")) <= MAX_KEY_BYTES


def coordinator_of(key: str, partitions: int) -> int:
    """The number of the partition that coordinates a group or a transactional id, of `partitions` in all.

    Java's `String.hashCode`, over UTF-16 code units, made positive as Kafka's `Utils.abs` does it, by which
    the lowest of all numbers becomes 0.
    """
    hashed = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for unit in struct.unpack(f">{len(units) // 2}H", units):
        hashed = (31 * hashed + unit) & 0xFFFFFFFF
    if hashed >= 0x80000000:
        hashed = (0x100000000 - hashed) & 0x7FFFFFFF
    return hashed % partitions
