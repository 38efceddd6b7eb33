"""Batches that go into a partition and come out of it, and the results of an append.

Values only, so that the requests, the write path and the read path need nothing else of each other.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, TypeAlias

from strandline.node.objectstore.store import Buffer
from strandline.node.refusal import Refusal
from strandline.statemachine.partition.partition_commands import Appended
from strandline.statemachine.partition.producer_state import NO_TRANSACTION


class ProducedBatch(NamedTuple):
    """A validated record batch of a produce request, exactly as its client sent it."""

    data: Buffer
    """Not to be changed any more."""
    record_count: int
    max_timestamp: int
    """Unix milliseconds."""
    producer_id: int
    """-1: the producer claims no idempotence, and its order is the connection's."""
    producer_epoch: int
    base_sequence: int
    connection: int
    """Number of the client's connection, 0 or more, never used twice by one process."""
    transaction: int = NO_TRANSACTION
    """Number of the transaction it belongs to, as far as that is known when it comes; see `Verification`."""
    replicas: int = 0
    """Number of replicas that must hold it before it is acknowledged, if a commit needs fewer; else 0."""


class Verified(NamedTuple):
    """The answer of the transaction coordinator: the batch is in the open transaction of this number."""

    number: int


AppendResult = Appended | Refusal
Validation = asyncio.Future[Refusal | None]
"""Result of the slow checks of a batch's records: the error, or None if they are valid."""


Verification: TypeAlias = asyncio.Future[Verified | Refusal]
"""Answer of the transaction coordinator about a batch whose transaction has nothing in the partition yet."""


class StoredBatch(NamedTuple):
    """A batch as it is stored; base offset and leader epoch are to be stamped into `data` on the way out."""

    base_offset: int
    end_offset: int
    """Offset after its last record."""
    leader_epoch: int
    data: bytes
