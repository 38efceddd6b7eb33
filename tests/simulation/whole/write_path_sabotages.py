"""Rules of the fence and the write path taken out again: what sabotages.py opens, by name.

Nothing here is ever imported by the product.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final
from unittest.mock import patch

from strandline.node.level_zero.batcher import Batcher
from strandline.node.partition import fence as fence_module
from strandline.node.partition import partition as partition_module
from strandline.node.partition import pending_acks
from strandline.node.partition.batch import ProducedBatch, Validation, Verification
from strandline.node.partition.gaps import Gaps
from strandline.node.partition.lanes import Lane, PendingBatch, placeholder
from strandline.node.partition.partition import Partition
from strandline.node.partition.refusals import refusal_of
from strandline.node.partition.writer import Writer
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.outcome import NotLeader, Unknown
from strandline.node.refusal import Refusal
from strandline.statemachine.partition.epoch_window import EpochWindow, StaleClusterEpoch
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import Append, Appended, encode
from strandline.statemachine.partition.placeholder import InlineBatch, Placeholder
from strandline.statemachine.partition.producer_state import NO_PRODUCER
from strandline.statemachine.partition.producers import Duplicate
from tests.partition.fence_sabotages import AcceptsStaleEpochs, JudgesOnlyOnce, KeptOverTerms
from tests.simulation.sabotage import Sabotage


def _no_turns(self: Writer, pending: PendingBatch, staged: asyncio.Future[Any]) -> None:
    """What is uploaded first goes first."""
    if staged.cancelled() or pending not in pending.lane.queue:
        return
    stored = staged.result()
    pending.stored = stored
    pending.lane.queue.remove(pending)
    pending.lane.queue.appendleft(pending)
    self._now_ready(pending.lane)


def _fails_alone(self: Writer, lane: Lane, failure: Any) -> None:
    """A failure leaves those behind it in the queue."""
    pending = lane.queue.popleft()
    self.acks.fail([pending], failure)


def _unknown_is_refusal(outcome: Any) -> Any:
    return refusal_of(NotLeader(None) if isinstance(outcome, Unknown) else outcome)


def _opens_at_once(self: Partition, group: RaftGroup) -> None:
    """A term begins with the election: earlier terms may not be applied yet."""
    self.writer.group = self.group = group

    def elected(leading: bool, term: int) -> None:
        if self._closed:
            return
        if leading:
            self.leads = True
            self.fence.open(EpochWindow.recovered(term, self.machine.max_applied_epoch))
        else:
            self._stop("this node does not lead the partition any more")

    group.on_leadership(elected)


def _answers_early(self: Writer) -> None:
    """A batch is acknowledged once it is in the leader's log."""
    entry = self._entry
    _write(self)
    for pending in entry:
        if not pending.result.done() and any(pending in logged for logged in self.acks._in_log.values()):
            pending.result.set_result(Appended(self._machine.next_offset))


_write = Writer._write


def _empty_window(term: int, max_applied_epoch: int | None) -> EpochWindow:
    return EpochWindow(term)


async def _trusts_what_it_waited_for(self: Writer, lane: Lane, epoch: int) -> None:
    """As Writer._await_fence, but the batch goes under the window that came, whatever that is by now."""
    grant = await self._fence.acquire(epoch)
    lane.waiting = None
    if self._granted(lane, grant) and lane.queue:
        self._entry.append(lane.queue.popleft())
        self._write()
    self._advance(lane)
    self._write()


def _releases_first(self: Writer) -> None:
    """As Writer._write, but the permit is back before the log has the entry."""
    permit, self._permit = self._permit, None
    if permit is None:
        return
    entry, self._entry = self._entry, []
    permit.release()
    if entry:
        # After a wait, which is not equally long for all.
        delay = 0.01 if self.acks._entries % 2 else 0.001
        self._loop.call_later(delay, _replicate_late, self, entry, permit.window)


def _replicate_late(self: Writer, entry: list[PendingBatch], window: EpochWindow) -> None:
    placeholders = [*map(placeholder, entry)]
    command = encode(window.term, self._wall_ms(), [Append(window, placeholders)])
    future = self.group.replicate(command, window.term)
    self.acks.await_outcome(entry, future)


_append = PartitionStateMachine._append


def _append_moving_by_own_epoch(
    self: PartitionStateMachine, index: int, oldest: int, newest: int, placeholders: Any
) -> Any:
    with patch.object(PartitionStateMachine, "_raise_epochs", lambda *_: None):
        results = _append(self, index, oldest, newest, placeholders)
    for _, _, _, epoch, *_ in placeholders:
        if epoch > self.max_applied_epoch:
            self.previous_applied_epoch, self.max_applied_epoch = self.max_applied_epoch, epoch
            self.max_applied_epoch_index = index
    return results


def _comes_again_as_it_was(self: Writer, lane: Lane, grant: Any) -> bool:
    """As Writer._granted, but the refused batch is not uploaded anew: it comes again with its old epoch."""
    if not isinstance(grant, StaleClusterEpoch) or lane.queue[0].restaged:
        return _granted(self, lane, grant)
    self._epoch.learn(grant.newest)
    lane.queue[0].restaged = True
    return False


_granted = Writer._granted


def _judges_when_it_arrives(
    self: Writer,
    batch: ProducedBatch,
    validation: Validation | None = None,
    verification: Verification | None = None,
) -> asyncio.Future[Any]:
    if batch.producer_id != NO_PRODUCER and self._fence.window is not None:
        judged = self._machine.producers.check(
            InlineBatch(
                batch.record_count,
                batch.max_timestamp,
                bytes(batch.data),
                batch.producer_id,
                batch.producer_epoch,
                batch.base_sequence,
                batch.transaction,
            )
        )
        if isinstance(judged, Duplicate):
            result: asyncio.Future[Any] = self._loop.create_future()
            result.set_result(Appended(judged.base_offset, duplicate=True))
            return result
    return _writer_append(self, batch, validation, verification)


_writer_append = Writer.append


def _refuses_other_than_duplicates(self: PartitionStateMachine, one: Placeholder | InlineBatch) -> Any:
    refused = _refuse(self, one)
    return None if isinstance(refused, Appended) else refused


_refuse = PartitionStateMachine._refuse


def _takes_it_for_stored(
    self: Batcher, number: int, size: int, staged: Any, failure: Any, results: Any
) -> None:
    """As Batcher._upload_done, but a put that failed, most often with an unknown outcome, counts as done."""
    _upload_done(self, number, size, staged, None, results)


_upload_done = Batcher._upload_done


def _ignores_machine_state(self: Gaps, *_: Any) -> Refusal | None:
    return None


WRITE_PATH: Final = (
    Sabotage(
        "window-kept-over-terms",
        "a term begins with the window of the one before it",
        lambda: (patch.object(partition_module, "Fence", KeptOverTerms),),
    ),
    Sabotage(
        "window-empty-after-recovery",
        "a term begins with an empty window",
        lambda: (patch.object(EpochWindow, "recovered", staticmethod(_empty_window)),),
    ),
    Sabotage(
        "no-barrier",
        "a term begins before all of earlier ones is applied",
        lambda: (patch.object(Partition, "attach", _opens_at_once),),
    ),
    Sabotage(
        "judged-only-once",
        "who waited for the fence is not judged again",
        lambda: (
            patch.object(fence_module, "_Term", JudgesOnlyOnce),
            patch.object(Writer, "_await_fence", _trusts_what_it_waited_for),
        ),
    ),
    Sabotage(
        "released-before-the-log",
        "the fence is given back before the log has the entry",
        lambda: (patch.object(Writer, "_write", _releases_first),),
    ),
    Sabotage(
        "stale-epochs-accepted",
        "an epoch below the window is let through",
        lambda: (patch.object(partition_module, "Fence", AcceptsStaleEpochs),),
    ),
    Sabotage(
        "own-epoch-moves",
        "an entry's own epochs move the applied ones",
        lambda: (
            patch.dict(
                "strandline.statemachine.partition.partition._HANDLERS", {1: _append_moving_by_own_epoch}
            ),
        ),
    ),
    Sabotage(
        "old-epoch-kept",
        "a refused batch comes again with its old epoch",
        lambda: (patch.object(Writer, "_granted", _comes_again_as_it_was),),
    ),
    Sabotage(
        "no-turns",
        "what is uploaded first goes to the log first",
        lambda: (patch.object(Writer, "_uploaded", _no_turns),),
    ),
    Sabotage(
        "fails-alone",
        "batches behind one that failed go on",
        lambda: (patch.object(Writer, "_fail", _fails_alone),),
    ),
    Sabotage(
        "gaps-forgotten",
        "what comes behind a failed batch is let through",
        lambda: (patch.object(Gaps, "refusal", _ignores_machine_state),),
    ),
    Sabotage(
        "judged-on-arrival",
        "duplicates are looked for when a batch arrives, not when it is applied",
        lambda: (
            patch.object(Writer, "append", _judges_when_it_arrives),
            patch.object(PartitionStateMachine, "_refuse", _refuses_other_than_duplicates),
        ),
    ),
    Sabotage(
        "unknown-is-refusal",
        "an unknown outcome is told as a refusal",
        lambda: (patch.object(pending_acks, "refusal_of", _unknown_is_refusal),),
    ),
    Sabotage(
        "answered-early",
        "a batch is acknowledged before it is committed",
        lambda: (patch.object(Writer, "_write", _answers_early),),
    ),
    Sabotage(
        "unknown-put-is-stored",
        "a put with an unknown outcome counts as done",
        lambda: (patch.object(Batcher, "_upload_done", _takes_it_for_stored),),
    ),
)
