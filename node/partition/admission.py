"""Decides whether a partition takes a batch that arrives, before anything is done for it."""

from __future__ import annotations

import asyncio

from strandline.node.partition.batch import ProducedBatch, Verification
from strandline.node.partition.fence import Fence
from strandline.node.partition.pending_acks import PendingAcks
from strandline.node.raft.group import RaftGroup
from strandline.node.refusal import Reason, Refusal
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.producer_state import NO_PRODUCER
from strandline.statemachine.partition.producers import Duplicate

MAX_BATCHES = 16_384
MAX_BYTES = 64 * 1024 * 1024
"""Batches of one partition accepted and not yet answered; those in the log count too."""


class Admission:
    """Judges a batch by what is known at its arrival. Belongs to one event loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fence: Fence, machine: PartitionStateMachine, acks: PendingAcks
    ) -> None:
        self._loop = loop
        self._fence = fence
        self._machine = machine
        self._acks = acks

    def duplicate(self, batch: ProducedBatch, verification: Verification | None) -> Duplicate | None:
        """The batch as it is in the log already, if its answer was lost or late, and this state knows.

        An upload only to be told so takes longer than a producer waits where the store is slower than its
        request.timeout.ms: it would never hear of any batch, and each attempt would leave an object.
        """
        if batch.producer_id == NO_PRODUCER or batch.replicas or verification is not None:
            # What min.insync.replicas or a coordinator has to say, it says behind the log.
            return None
        if self._fence.window is None:
            return None
        return self._machine.producers.duplicate(
            batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.record_count
        )

    def refusal(self, batch: ProducedBatch, group: RaftGroup) -> Refusal | None:
        """Say why the batch is not taken now; None if it is."""
        if self._fence.window is None:
            return Refusal(Reason.NOT_LEADER, "this node does not lead the partition, or not yet")
        acks = self._acks
        if batch.replicas and (there := group.in_sync()) < batch.replicas:
            return Refusal(
                Reason.NOT_NOW, f"{there} replicas are in sync, and min.insync.replicas is {batch.replicas}"
            )
        if acks.gaps and batch.producer_id != NO_PRODUCER:
            failure = acks.gaps.refusal(batch, self._machine.producers, self._loop.time())
            if failure is not None:
                return failure
        if group.overloaded():
            # Its object would lie in storage for nothing, and its producer sends it again ten times a second.
            return Refusal(
                Reason.NOT_NOW,
                "too many commands wait for this partition's log or its disk, which may be full",
            )
        if acks.batches >= MAX_BATCHES or acks.bytes + len(batch.data) > MAX_BYTES:
            return Refusal(
                Reason.NOT_NOW, f"{acks.batches} batches of {acks.bytes} bytes wait in this partition"
            )
        return None
