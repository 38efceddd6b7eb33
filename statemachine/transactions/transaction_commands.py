"""Commands of the coordinator of transactions, and their results.

Every command names its subject by transactional id, and its caller by producer id and epoch. Its conditions
may have changed between the leader's look and the apply of the entry, so apply checks them. A command that is
applied a second time, because its outcome was unknown, answers as the first time wherever that can be told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple

from strandline.statemachine.kafka_errors import Refused

NO_PRODUCER_ID = -1
NO_EPOCH = -1
LAST_EPOCH = 2**15 - 1
"""Kafka's Short.MaxValue. No client ever gets it: it is left for the markers that fence the one before."""


class TransactionOpcode(IntEnum):
    """First element of an entry, never used for anything else. 0 is every coordinator's checkpoint."""

    INITIALIZE_PRODUCER = 1
    ENLIST = 2
    END = 3
    ABORT = 4
    COMPLETE = 5
    EXPIRE_IDS = 6


class TopicPartition(NamedTuple):
    """A partition by the id of its topic: a topic that is deleted and created again has another id."""

    topic_id: bytes
    partition: int


@dataclass(frozen=True, slots=True)
class InitializeProducer:
    """A producer of this transactional id starts, or recovers (`producer_id`, `epoch`: what it has, KIP-360).

    `new_producer_id` is a fresh one, or NO_PRODUCER_ID: it is used if the id is new here, or its epochs are
    used up. Result: Initialized, Prepared (a transaction was open: the epoch is raised, it
    aborts, ask again when it is complete), ProducerIdNeeded, or Refused.
    """

    kind: ClassVar[int] = TransactionOpcode.INITIALIZE_PRODUCER
    transactional_id: str
    timeout_ms: int
    producer_id: int
    epoch: int
    new_producer_id: int

    def fields(self) -> list[Any]:
        return [self.transactional_id, self.timeout_ms, self.producer_id, self.epoch, self.new_producer_id]


@dataclass(frozen=True, slots=True)
class Enlist:
    """Add partitions and groups to the transaction of this producer; the first ones begin it.

    Result: Enlisted, or Refused with nothing added.
    """

    kind: ClassVar[int] = TransactionOpcode.ENLIST
    transactional_id: str
    producer_id: int
    epoch: int
    partitions: Sequence[tuple[bytes, int]] = ()
    groups: Sequence[str] = ()

    def fields(self) -> list[Any]:
        return [
            self.transactional_id,
            self.producer_id,
            self.epoch,
            [list(partition) for partition in self.partitions],
            list(self.groups),
        ]


@dataclass(frozen=True, slots=True)
class End:
    """Commit or abort, as the producer asks. `raises`: transactions version 2, the epoch rises with it.

    `new_producer_id` as in InitializeProducer. Result: Prepared, ProducerIdNeeded or Refused.
    """

    kind: ClassVar[int] = TransactionOpcode.END
    transactional_id: str
    producer_id: int
    epoch: int
    commit: bool
    raises: bool
    new_producer_id: int

    def fields(self) -> list[Any]:
        return [
            self.transactional_id,
            self.producer_id,
            self.epoch,
            self.commit,
            self.raises,
            self.new_producer_id,
        ]


@dataclass(frozen=True, slots=True)
class Abort:
    """Abort the transaction of this number against its producer: it took too long, or an operator asks.

    The epoch rises in the same entry, so the producer is fenced. Result: Prepared, or Refused when that
    transaction is not open (any more).
    """

    kind: ClassVar[int] = TransactionOpcode.ABORT
    transactional_id: str
    number: int

    def fields(self) -> list[Any]:
        return [self.transactional_id, self.number]


@dataclass(frozen=True, slots=True)
class Complete:
    """Every marker of the transaction of this number is in its place. Result: whether it was awaited."""

    kind: ClassVar[int] = TransactionOpcode.COMPLETE
    transactional_id: str
    number: int

    def fields(self) -> list[Any]:
        return [self.transactional_id, self.number]


@dataclass(frozen=True, slots=True)
class ExpireIds:
    """Forget transactional ids without a transaction for which nothing was done for `expiration_ms`.

    The limit is the leader's, which shortens it when there are too many, and travels in the command, so nodes
    configured otherwise stay replicas. `now` (ms) is a clock that most nodes agree on: age is judged by it,
    and the time of the state goes on from it, be it earlier. Result: how many were forgotten.
    """

    kind: ClassVar[int] = TransactionOpcode.EXPIRE_IDS
    expiration_ms: int
    now: int

    def fields(self) -> list[Any]:
        return [self.expiration_ms, self.now]


TransactionCommand = InitializeProducer | Enlist | End | Abort | Complete | ExpireIds


class Initialized(NamedTuple):
    """Producer id and epoch for the producer from now on."""

    producer_id: int
    epoch: int


class Enlisted(NamedTuple):
    """All of it is in the open transaction, which has this number."""

    number: int


class Prepared(NamedTuple):
    """The outcome of the transaction is decided: nothing undoes it.

    `producer_id` and `epoch` are what the producer is to use for the next one.
    """

    number: int
    producer_id: int
    epoch: int


class ProducerIdNeeded(NamedTuple):
    """Nothing was done: say it again with a new producer id."""


TransactionResult = Initialized | Enlisted | Prepared | ProducerIdNeeded | Refused | bool | int
