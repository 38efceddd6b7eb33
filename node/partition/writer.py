"""The way of a batch into a partition: the object store, its producer's turn, the fence, the log.

Batches are staged the moment they arrive, so uploads overlap and end in any order; uploaded batches go to the
log in the order in which their producer sent them. Small ones go to the log with their bytes, within a budget
(inline_budget.py): they need no upload and no fence, but wait for their turn like the others. A turn in the
producer's queue comes first, the fence second, the log last: a batch that held the fence while it waited for
its turn could wait for one that needs the window to slide. docs/write-path.md has the rules and the end of
each failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from strandline.node.level_zero.batcher import Batcher, Result, Stored
from strandline.node.level_zero.cache import BatchCache
from strandline.node.partition.admission import Admission
from strandline.node.partition.batch import AppendResult, ProducedBatch, Validation, Verification
from strandline.node.partition.fence import Fence, Grant, Permit
from strandline.node.partition.inline_budget import PartitionBudget
from strandline.node.partition.lanes import Inline, Lane, PendingBatch, commands_of
from strandline.node.partition.pending_acks import PendingAcks
from strandline.node.partition.refusals import behind, refusal_of
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.outcome import Applied
from strandline.node.refusal import Reason, Refusal
from strandline.statemachine.partition.epoch_window import EpochStatus, StaleClusterEpoch
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import Appended, encode
from strandline.statemachine.partition.producer_state import NO_PRODUCER

MAX_ENTRY_BATCHES = 1_024
"""Batches in one entry: about 100 KiB of log if none is inline."""
MAX_ENTRY_INLINE_BYTES = 512 * 1024
"""An entry ends with the inline batch that reaches this: an append message takes twice as much."""


class EpochSource(Protocol):
    """This node's knowledge of the cluster epoch."""

    def current(self) -> int: ...

    def learn(self, epoch: int) -> None:
        """The epoch is at least this one."""


class Writer:
    """One partition's write path on one node. Belongs to one event loop; `group` is set before it is used.

    A batch costs a future, a callback and its placeholder; whatever is ready in one turn of the loop, and
    fits one window, shares one entry of the log and so one encoding, one outcome and one release.
    """

    group: RaftGroup

    def __init__(
        self,
        *,
        topic_id: bytes,
        number: int,
        loop: asyncio.AbstractEventLoop,
        batcher: Batcher,
        written: BatchCache,
        fence: Fence,
        epoch: EpochSource,
        machine: PartitionStateMachine,
        wall_ms: Callable[[], int],
        budget: PartitionBudget | None,
    ) -> None:
        """With a `budget`, batches may go inline."""
        self.acks = PendingAcks(loop, lambda index, count: self.group.when_held(index, count))
        self.duplicates = 0
        """Batches that were in the log already and not uploaded again."""
        self.restaged = 0
        """Batches that were uploaded a second time, because the window had passed their epoch."""
        self._topic_id = topic_id
        self._number = number
        self._loop = loop
        self._batcher = batcher
        self._written = written
        self._fence = fence
        self._epoch = epoch
        self._machine = machine
        self._wall_ms = wall_ms
        self._admission = Admission(loop, fence, machine, self.acks)
        self._budget = budget
        self._lanes: dict[int, Lane] = {}
        self._ready: list[Lane] = []
        # The entry being put together, and what it is put together under; empty between two callbacks.
        self._entry: list[PendingBatch] = []
        self._entry_inline_bytes = 0
        self._permit: Permit | None = None

    @property
    def inline_bytes(self) -> int:
        """Bytes of the partition that lie in the logs alone, or are on their way there."""
        return self._machine.extents.inline_bytes + self.acks.inline_bytes

    def append(
        self,
        batch: ProducedBatch,
        validation: Validation | None = None,
        verification: Verification | None = None,
    ) -> asyncio.Future[AppendResult]:
        """Upload a batch and put it into the log behind those its producer sent before.

        With a `validation` or a `verification` in progress it is uploaded meanwhile, and keeps its turn. An
        error of either fails it before the log; the verified transaction's number goes into the log with it.
        The result is never an exception. Cancelling it gives up the answer and not the batch: later batches
        were sent in the belief that it comes first.
        """
        there = self._admission.duplicate(batch, verification)
        if there is None and (refusal := self._admission.refusal(batch, self.group)) is not None:
            return self.refuse(batch, refusal)
        result: asyncio.Future[AppendResult] = self._loop.create_future()
        if there is not None:
            self.duplicates += 1
            result.set_result(Appended(there.base_offset, duplicate=True))
            return result
        key = batch.producer_id if batch.producer_id != NO_PRODUCER else -1 - batch.connection
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(key)
        pending = PendingBatch(batch, lane, result)
        self.acks.accept(pending)
        lane.queue.append(pending)
        if validation is not None:
            pending.checks += 1
            validation.add_done_callback(partial(self._validated, pending))
        if verification is not None:
            pending.checks += 1
            pending.verified = True
            self.acks.verifications.begin(batch.producer_id, batch.producer_epoch, verification)
            verification.add_done_callback(partial(self._validated, pending))
        self._stage(pending)
        return result

    def refuse(self, batch: ProducedBatch, refusal: Refusal) -> asyncio.Future[AppendResult]:
        """Do not take a batch, nor those behind it that its producer has sent already."""
        self.acks.gaps.note(batch, refusal, self._loop.time())
        result: asyncio.Future[AppendResult] = self._loop.create_future()
        result.set_result(refusal)
        return result

    def missed(self, batch: ProducedBatch) -> None:
        """A batch was offered and refused before it came here; see `Gaps`."""
        self.acks.gaps.note(
            batch, Refusal(Reason.NOT_LEADER, "this node did not lead the partition"), self._loop.time()
        )

    def lost(self, reason: str) -> None:
        """End the term, with the fence closed: fail the batches that are not in the log."""
        failure = Refusal(Reason.NOT_LEADER, reason)
        lanes, self._lanes = self._lanes, {}
        self._ready = []
        for lane in lanes.values():
            while lane.queue:
                self._fail(lane, failure)
        self.acks.term_over(reason)

    def close(self, reason: str) -> None:
        """Do `lost`, and answer the entries in the log too: their outcome will not be known here."""
        self.lost(reason)
        self.acks.close(reason)

    # Up.

    def _stage(self, pending: PendingBatch) -> None:
        budget = self._budget
        if budget is not None and budget.takes(len(pending.batch.data), self.inline_bytes):
            self.acks.goes_inline(pending)
            if pending.first:
                self._now_ready(pending.lane)
            return
        try:
            staged = self._batcher.stage(self._topic_id, self._number, pending.batch.data)
        except ValueError as error:
            pending.stored = Refusal(Reason.TOO_LARGE, str(error))
            self._now_ready(pending.lane)
            return
        pending.staged = staged
        if staged.done():
            # Refused: it keeps its turn all the same, so that those before it are answered first.
            self._uploaded(pending, staged)
        else:
            staged.add_done_callback(partial(self._uploaded, pending))

    def _validated(self, pending: PendingBatch, validation: Validation | Verification) -> None:
        pending.check_ended(validation)
        if pending.first:
            self._now_ready(pending.lane)

    def _uploaded(self, pending: PendingBatch, staged: asyncio.Future[Result]) -> None:
        if staged.cancelled():
            return
        pending.stored = staged.result()
        if pending.first:
            self._now_ready(pending.lane)

    def _now_ready(self, lane: Lane) -> None:
        """Let a lane go on at the end of this turn, with all others that the same turn makes ready."""
        if not self._ready:
            self._loop.call_soon(self._flush)
        self._ready.append(lane)

    # Into the log.

    def _flush(self) -> None:
        ready, self._ready = self._ready, []
        for lane in ready:
            self._advance(lane)
        self._write()

    def _advance(self, lane: Lane) -> None:
        """Take a lane's batches into entries, up to the first that is not uploaded or waits for the fence."""
        queue = lane.queue
        while queue and lane.waiting is None:
            head = queue[0]
            stored = head.outcome
            if stored is None:
                return
            if isinstance(stored, Refusal):
                self._fail(lane, stored)
                continue
            permit = self._permit
            if isinstance(stored, Inline):
                self._entry_inline_bytes += len(head.batch.data)
            elif permit is None or permit.window.classify(stored.epoch) is not EpochStatus.IN_WINDOW:
                if permit is not None:
                    self._write()
                # Had the log refused that entry, all that is behind it would be gone from here.
                if not queue or queue[0] is not head:
                    continue
                grant = self._fence.try_acquire(stored.epoch)
                if grant is None:
                    lane.waiting = self._loop.create_task(self._await_fence(lane, stored.epoch))
                    return
                if not self._granted(lane, grant):
                    continue
            queue.popleft()
            self._entry.append(head)
            if len(self._entry) >= MAX_ENTRY_BATCHES or self._entry_inline_bytes >= MAX_ENTRY_INLINE_BYTES:
                self._write()
        if not queue and self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]

    async def _await_fence(self, lane: Lane, epoch: int) -> None:
        grant = await self._fence.acquire(epoch)
        lane.waiting = None
        self._granted(lane, grant)
        self._advance(lane)
        self._write()

    def _granted(self, lane: Lane, grant: Grant) -> bool:
        """Whether the lane's first batch may go to the log, under the permit that is then the present one."""
        if isinstance(grant, Permit):
            self._permit = grant
            return True
        if not isinstance(grant, StaleClusterEpoch):
            self._fail(lane, grant)
            return False
        # The store's time, not the client's doing: the same bytes under the newest epoch, but once only.
        head = lane.queue[0]
        self._epoch.learn(grant.newest)
        if head.restaged:
            self._fail(lane, Refusal(Reason.NOT_NOW, str(grant)))
            return False
        head.upload_again()
        self.restaged += 1
        self._stage(head)
        return False

    def _write(self) -> None:
        """Put the entry that was put together into the log, and give the permit back."""
        permit, self._permit = self._permit, None
        entry, self._entry = self._entry, []
        self._entry_inline_bytes = 0
        # Inline batches alone need no permit: they name no epoch.
        window = self._fence.window if permit is None else permit.window
        try:
            if not entry:
                return
            assert window is not None, "with the term all its batches have failed"
            command = encode(window.term, self._wall_ms(), commands_of(entry, window))
            future = self.group.replicate(command, window.term)
        finally:
            # The entry is in the leader's log, or it never will be.
            if permit is not None:
                permit.release()
        if future.done():
            outcome = future.result()
            assert not isinstance(outcome, Applied), "nothing is applied before it is written"
            failure = refusal_of(outcome)
            self.acks.fail(entry, failure)
            for pending in entry:
                lane = pending.lane
                if lane.queue and pending.batch.producer_id != NO_PRODUCER:
                    self._fail(lane, behind(failure))
            return
        written = self._written
        for pending in entry:
            stored = pending.stored
            if isinstance(stored, Stored):
                # Now, not once it is applied: a consumer that learns of the batch reads it from memory.
                written.put(stored.object_id, stored.position, pending.batch.data)
        self.acks.await_outcome(entry, future)

    def _fail(self, lane: Lane, failure: Refusal) -> None:
        """Fail a lane's first batch before the log, and with it, in order, those that rely on it."""
        if lane.queue[0].batch.producer_id == NO_PRODUCER:
            failed = [lane.queue.popleft()]
        else:
            failed = [*lane.queue]
            lane.queue.clear()
        for pending in failed:
            if pending.staged is not None:
                # Whatever is not in an upload yet need not be uploaded any more.
                pending.staged.cancel()
        self.acks.fail(failed[:1], failure)
        self.acks.fail(failed[1:], behind(failure))
        if lane.queue:
            return
        if lane.waiting is not None:
            # Its first batch is not there any more: the log refused the entry before, of inline batches.
            lane.waiting.cancel()
            lane.waiting = None
        if self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]
