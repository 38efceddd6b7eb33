"""One partition on one node: a replica of its log, and this node's work for it while it leads.

Every replica has the state; only a leader's is known to be new, and only a leader writes. So this object
opens the fence when a term begins here, and closes it when the term ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from strandline.node.compaction.local_reader import LocalReader
from strandline.node.kafka.wire.control_batch import control_batch
from strandline.node.level_one.reader import LevelOneReader, Place
from strandline.node.level_one.stored_run import TimedBatch
from strandline.node.level_zero.batcher import Batcher
from strandline.node.level_zero.cache import BatchCache
from strandline.node.level_zero.reader import Reader
from strandline.node.partition.batch import (
    AppendResult,
    ProducedBatch,
    Validation,
    Verification,
)
from strandline.node.partition.fence import Fence
from strandline.node.partition.fence_log import FenceLog
from strandline.node.partition.inline_budget import InlineBudget, PartitionBudget
from strandline.node.partition.producer_expiry import producer_expiry_ms
from strandline.node.partition.refusals import result_of
from strandline.node.partition.stored_batches import CommittedRead, Measured, Stored, StoredBatches
from strandline.node.partition.stored_inline_batches import StoredInlineBatches
from strandline.node.partition.writer import EpochSource, Writer
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.outcome import Outcome
from strandline.node.refusal import Reason, Refusal
from strandline.node.replica.led_replica import LedReplica
from strandline.node.replica.replica_machine import Recorder, ReplicaMachine
from strandline.statemachine.controller.hosted_groups import PartitionGroup
from strandline.statemachine.partition.epoch_window import EpochWindow, StaleClusterEpoch
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import (
    AdvanceEpoch,
    AdvanceRemoval,
    Append,
    AppendInline,
    Command,
    CommandResult,
    EndTransaction,
    SetStartOffset,
    StoreInline,
    Tick,
    encode,
)
from strandline.statemachine.partition.rejection import Rejected, Rejection

log = logging.getLogger(__name__)

TICK_SECONDS = 600.0
MAX_ABORTED = 4 * 1024 * 1024
"""Aborted transactions whose records a partition still has; 50 days of one a second. If one were forgotten
while its records are there, a read-committed consumer would take it for committed."""
MAX_ABORTED_BYTES = 32 * 1024 * 1024
"""Bound on their size in bytes, in memory and in each snapshot of each replica."""
WARN_SECONDS = 600.0
"""Seconds between two warnings that a partition begins no transaction."""

_NOT_LEADING = Refusal(Reason.NOT_LEADER, "this node does not lead the partition, or not yet")


class Partition(LedReplica):
    """A replica of a partition on this node. Belongs to one event loop.

    Give `machine_for_group` to the log and the group it makes to `attach`; `close` when the replica goes.
    """

    def __init__(
        self,
        *,
        place: PartitionGroup,
        loop: asyncio.AbstractEventLoop,
        batcher: Batcher,
        reader: Reader,
        level_one: LevelOneReader,
        written: BatchCache,
        epoch: EpochSource,
        wall_ms: Callable[[], int],
        agreed_ms: Callable[[], int | None],
        recorder: Recorder,
        fence_log: FenceLog | None = None,
        local: LocalReader | None = None,
        inline: InlineBudget | None = None,
    ) -> None:
        """`wall_ms` is the node's clock; `agreed_ms` the same, None while most nodes do not agree with it.
        `local` reads the local logs of compacted topics; None if no replica has one. `inline` is the node's
        budget for batches in the log itself; None if all go to objects.
        """
        super().__init__(place, "partition", loop)
        self.topic_id = place.topic_id
        self.topic = place.topic
        self.number = place.partition
        plain = PartitionStateMachine(place.creation_epoch, recorder.checkpoint)
        self.machine_for_group = ReplicaMachine(plain, recorder, self._watchers.changed)
        self.fence = Fence(loop, f"{place.topic}-{place.partition}", fence_log)
        self.writer = Writer(
            topic_id=place.topic_id,
            number=place.partition,
            loop=loop,
            batcher=batcher,
            written=written,
            fence=self.fence,
            epoch=epoch,
            machine=self.machine,
            wall_ms=wall_ms,
            budget=None if inline is None else PartitionBudget(inline),
        )
        self._batches = StoredBatches(
            Place(place.topic_id, place.partition),
            self.machine,
            level_zero=reader,
            level_one=level_one,
            written=written,
            confirm=self.confirm,
            group=place.group,
            local=local,
        )
        self.stored_inline = StoredInlineBatches(self.fence, epoch, written, self._replicate)
        self._wall_ms = wall_ms
        self._agreed_ms = agreed_ms
        self._collectable_epoch = -1
        self._warned_at = float("-inf")
        self._tick: asyncio.TimerHandle | None = None

    # What it is.

    @property
    def machine(self) -> PartitionStateMachine:
        """The state of this replica; to be read only, and to be believed after `confirm`."""
        return self.machine_for_group.plain

    @property
    def leader_epoch(self) -> int:
        """The term of this node's leadership; where it does not lead, the newest term it has applied."""
        window = self.fence.window
        return self.machine.term if window is None else window.term

    @property
    def high_watermark(self) -> int:
        return self.machine.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """End of the log for a read-committed consumer; see PartitionState.last_stable_offset."""
        return self.machine.last_stable_offset

    @property
    def start_offset(self) -> int:
        return self.machine.start_offset

    @property
    def collectable_epoch(self) -> int:
        """M(p) as this node may tell it: the state's, held back by the reads that are in flight here.

        It never goes down. The state's does not; and a read holds an epoch that the state names as the read
        plans, so what it is held back to is at least what the state gives at that moment.
        """
        epoch = self.machine.max_collectable_epoch
        held = self._batches.holds.oldest_epoch
        if held is not None and held <= epoch:
            epoch = held - 1
        assert epoch >= self._collectable_epoch, "M(p) went down: an object may be gone that is needed"
        self._collectable_epoch = epoch
        return epoch

    @property
    def held_by_reads(self) -> bool:
        """Whether reads in flight may hold `collectable_epoch` back: it may rise without a change here."""
        return self._batches.holds.oldest_epoch is not None

    # What can be asked of it.

    def append(
        self,
        batch: ProducedBatch,
        validation: Validation | None = None,
        verification: Verification | None = None,
    ) -> asyncio.Future[AppendResult]:
        """Write a batch: see Writer.append. Answered once it is stored, committed and applied here."""
        if verification is not None and (refusal := self._too_many_aborted()) is not None:
            return self.writer.refuse(batch, refusal)
        return self.writer.append(batch, validation, verification)

    def _too_many_aborted(self) -> Refusal | None:
        """The refusal if no transaction may begin here, else None. Open transactions go on."""
        aborted = self.machine.aborted
        if len(aborted) < MAX_ABORTED and aborted.size < MAX_ABORTED_BYTES:
            return None
        reason = (
            f"{len(aborted)} aborted transactions have records here, as many as a partition remembers: "
            "they go with their records, by retention.ms or DeleteRecords"
        )
        now = self._loop.time()
        if now - self._warned_at >= WARN_SECONDS:
            self._warned_at = now
            log.warning("%s-%d cannot begin a transaction: %s", self.topic, self.number, reason)
        return Refusal(Reason.TOO_MANY_ABORTED, reason)

    def transaction_of(self, producer_id: int, epoch: int) -> int | Verification | None:
        """The number of the producer's open transaction of this epoch here; or the verification of an earlier
        batch, in progress or done; None: the transaction coordinator has to be asked."""
        opened = self.machine.open_transaction(producer_id)
        if opened is not None and opened.epoch == epoch:
            return opened.number
        return self.writer.acks.verifications.of(producer_id, epoch, self._ended(producer_id))

    async def end_transaction(
        self, producer_id: int, epoch: int, number: int, commit: bool, coordinator_term: int
    ) -> Refusal | None:
        """Put a transaction's marker into the log. None: it is applied here, now or before.

        A marker with a number that has ended here changes nothing under any leader, so it is not written.
        """
        if self._ended(producer_id) >= number:
            return None
        window = self.fence.window
        if window is None:
            return _NOT_LEADING
        now = self._wall_ms()
        batch = control_batch(producer_id, epoch, commit, coordinator_term, now)
        command = EndTransaction(producer_id, epoch, number, commit, coordinator_term, now, batch)
        result = result_of(await self._replicate(command, window.term))
        return result if isinstance(result, Refusal) else None

    def _ended(self, producer_id: int) -> int:
        """Highest number of the producer's transactions that have ended here."""
        known = self.machine.producers.get(producer_id)
        return 0 if known is None else known.ended

    def missed(self, batch: ProducedBatch) -> None:
        """A batch was refused here before it came to `append`: nothing behind it may pass for the first."""
        self.writer.missed(batch)

    async def read(self, offset: int, end: int, max_bytes: int, *, files: bool = False) -> list[Stored]:
        """Batches with offsets in `[offset, end)`; see StoredBatches.read."""
        return await self._batches.read(offset, end, max_bytes, files=files)

    async def read_committed(
        self, offset: int, end: int, max_bytes: int, *, files: bool = False
    ) -> CommittedRead:
        """As `read`, with the aborted transactions of these batches; see StoredBatches.read_committed."""
        return await self._batches.read_committed(offset, end, max_bytes, files=files)

    def measured(self, offset: int, end: int, max_bytes: int) -> Measured:
        """The size of what `read` would return, without access to storage; see StoredBatches.measured."""
        return self._batches.measured(offset, end, max_bytes)

    async def first_since(self, timestamp: int) -> TimedBatch | None:
        """The first batch with a record of this time (ms) or later; see StoredBatches.first_since."""
        return await self._batches.first_since(timestamp)

    async def newest(self) -> TimedBatch | None:
        """The first batch with the newest timestamp of all; see StoredBatches.newest."""
        return await self._batches.newest()

    async def execute(self, command: Command) -> CommandResult | Refusal:
        """Carry out a command that brings no batch; ValueError for one that does.

        Of an AdvanceEpoch only the newest epoch counts: the window is that of the fence it gets here.
        """
        if isinstance(command, (Append, AppendInline, StoreInline, EndTransaction)):
            raise ValueError("batches come through append(), stored_inline and end_transaction()")
        window = self.fence.window
        if window is None:
            return _NOT_LEADING
        if isinstance(command, AdvanceEpoch):
            return await self._advance_epoch(command)
        if isinstance(command, AdvanceRemoval):
            return await self._advance_removal(command, window.term)
        if isinstance(command, SetStartOffset) and command.start_offset > self.high_watermark:
            message = f"offset {command.start_offset} is above the high watermark, {self.high_watermark}"
            return Refusal(Reason.ABOVE_HIGH_WATERMARK, message)
        return result_of(await self._replicate(command, window.term))

    # Its place in the node.

    def attach(self, group: RaftGroup) -> None:
        self.writer.group = group
        super().attach(group)

    def close(self) -> None:
        super().close()
        self.writer.close("the replica left this node before the batch was applied")

    # Leadership.

    def _begin_term(self, term: int) -> None:
        # What earlier leaders put into the log counts for the window.
        self.fence.open(EpochWindow.recovered(term, self.machine.max_applied_epoch))
        self._tick = self._loop.call_later(self._until_tick(), self._on_tick)

    def _end_term(self, reason: str) -> None:
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        self.fence.close(reason)
        self.writer.lost(reason)

    def _until_tick(self) -> float:
        """Seconds to the first tick: the partitions a node takes up together do not tick together."""
        return TICK_SECONDS * (1 + self.group.id % 64 / 64)

    def _on_tick(self) -> None:
        self._tick = self._loop.call_later(TICK_SECONDS, self._on_tick)
        window, now = self.fence.window, self._agreed_ms()
        # What may be waiting for time to pass, which an entry alone brings along.
        machine = self.machine
        counts = len(machine.producers) or len(machine.holds) or len(machine.removed)
        if window is not None and now is not None and counts:
            # Unanswered: should it be lost, the next one does the same.
            self._replicate(self._tick_at(now), window.term)

    def _tick_at(self, now: int) -> Tick:
        return Tick(producer_expiry_ms(self.machine.producers, now), now)

    # Commands.

    def _replicate(self, command: Command, term: int) -> asyncio.Future[Outcome]:
        return self.group.replicate(encode(term, self._wall_ms(), [command]), term)

    async def _advance_epoch(self, command: AdvanceEpoch) -> CommandResult | Refusal:
        epoch = command.window.newest
        if epoch is None:
            raise ValueError("an empty window has no epoch to advance to")
        permit = await self.fence.acquire(epoch)
        if isinstance(permit, Refusal):
            return permit
        if isinstance(permit, StaleClusterEpoch):
            return Rejected(Rejection.LOWER_EPOCH, permit.newest)
        try:
            future = self._replicate(AdvanceEpoch(permit.window), permit.window.term)
        finally:
            permit.release()
        return result_of(await future)

    async def _advance_removal(self, command: AdvanceRemoval, term: int) -> CommandResult | Refusal:
        """Propose it behind a Tick in one entry: what a wrong clock pushed ahead must not let rows ripen."""
        now = self._agreed_ms()
        if now is None:
            return Refusal(Reason.NOT_NOW, "the nodes do not agree on the time")
        return result_of(await self.group.replicate(encode(term, now, [self._tick_at(now), command]), term))
