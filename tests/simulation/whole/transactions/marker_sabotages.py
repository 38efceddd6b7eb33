"""What a partition knows of transactions taken out again: numbers of batches and markers, what it hears.

sabotages.py opens these by name. Nothing here is ever imported by the product.
"""

from __future__ import annotations

from typing import Any, Final
from unittest.mock import patch

from strandline.node.kafka.handlers.produced_transactions import Questions
from strandline.node.partition.batch import Verified
from strandline.node.partition.partition import Partition
from strandline.statemachine.partition.partition_state import PartitionState
from strandline.statemachine.partition.placeholder import Placeholder
from strandline.statemachine.partition.producers import Producers
from tests.simulation.sabotage import Sabotage

_FAR_AHEAD = 1_000
"""A transaction's number that no producer of a run comes to."""


def _takes_ended_numbers(self: Producers, batch: Placeholder) -> Any:
    """As Producers.check, but a batch of a transaction that has ended begins the next."""
    producer = batch.producer_id
    known = self.get(producer)
    if known is not None and 0 < batch.transaction <= known.ended and self.open_transaction(producer) is None:
        batch = batch._replace(transaction=known.ended + 1)
    return _check(self, batch)


_check = Producers.check


async def _believes(self: Questions, producer: int, epoch: int, partitions: Any) -> Any:
    """As Questions._verified, but where the coordinator refuses the producer is believed."""
    answer = await _verified(self, producer, epoch, partitions)
    return answer if isinstance(answer, Verified) else Verified(_FAR_AHEAD)


_verified = Questions._verified


async def _says_done(self: Partition, *marker: Any) -> None:
    """As Partition.end_transaction, but the marker is done before the log has it."""
    self._loop.create_task(_end_transaction(self, *marker))


_end_transaction = Partition.end_transaction

MARKERS: Final = (
    Sabotage(
        "markers-without-numbers",
        "a marker ends whatever transaction is open",
        lambda: (
            patch.object(Producers, "check_end", lambda *_: None),
            patch.object(Partition, "_ended", lambda *_: 0),
        ),
    ),
    Sabotage(
        "ended-numbers-taken",
        "a batch of a transaction that has ended begins the next",
        lambda: (patch.object(Producers, "check", _takes_ended_numbers),),
    ),
    Sabotage(
        "refusals-unheard",
        "where the coordinator refuses a batch its producer is believed",
        lambda: (patch.object(Questions, "_verified", _believes),),
    ),
    Sabotage(
        "markers-done-unheard",
        "a marker is told to be done before the log has it",
        lambda: (patch.object(Partition, "end_transaction", _says_done),),
    ),
    Sabotage(
        "state-without-stable-offset",
        "a partition takes its high watermark for its last stable offset",
        lambda: (patch.object(PartitionState, "last_stable_offset", PartitionState.high_watermark),),
    ),
)
