"""Rules of the fence and of the write path taken out again, one at a time. The tests must find every one."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from strandline.node.partition import fence, partition, pending_acks
from strandline.node.partition.fence import Fence, Grant, Hold
from strandline.node.partition.gaps import Gaps
from strandline.node.partition.lanes import Lane, Pending
from strandline.node.partition.partition import Partition
from strandline.node.partition.refusals import refusal_of
from strandline.node.partition.writer import Writer
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.outcome import NotLeader, Unknown
from strandline.statemachine.partition.epoch_window import EpochStatus, EpochWindow, StaleClusterEpoch
from strandline.statemachine.partition.partition_commands import Appended

# The fence.


class LastComeFirstServed(fence._Term):
    """Releases wake whoever came last."""

    def serve(self) -> None:
        self.waiting = type(self.waiting)(reversed(self.waiting.items()))
        super().serve()
        self.waiting = type(self.waiting)(reversed(self.waiting.items()))


class JudgesOnlyOnce(fence._Term):
    """Trap 4: who waited is treated by the status from before the wait: new, so it slides again."""

    def serve(self) -> None:
        for waiter in [*self.waiting]:
            if self.holds:
                return
            del self.waiting[waiter]
            if not waiter.future.done():
                self.window = EpochWindow(
                    self.window.term, self.window.newest, max(waiter.epoch, self.window.newest or 0)
                )
                self.holds += 1
                waiter.status = EpochStatus.NEW
                waiter.future.set_result(Hold(self, self.window))


class SlidesUnderHolds(Fence):
    """A new epoch does not wait for the holds that are out."""

    def try_acquire(self, epoch: int) -> Grant | None:
        term = self._term
        if term is not None and term.window.classify(epoch) is EpochStatus.NEW:
            term.window = term.window.slide(epoch)
        return super().try_acquire(epoch)


class StarvesSlides(Fence):
    """Trap 6: what lies inside the window does not queue behind a slide that waits."""

    def try_acquire(self, epoch: int) -> Grant | None:
        term = self._term
        if term is not None and term.window.classify(epoch) is EpochStatus.IN_WINDOW:
            return term.grant(EpochStatus.IN_WINDOW, epoch)
        return super().try_acquire(epoch)


class ForgetsCancelledGrants(Fence):
    """Trap 5: a hold granted in the turn of its cancellation is never given back."""

    async def acquire(self, epoch: int) -> Grant:
        task = asyncio.Task(super().acquire(epoch), loop=self._loop)
        return await asyncio.shield(task)


class KeptOverTerms(Fence):
    """Trap 3: the next term begins with the window of the term before."""

    _kept: EpochWindow | None = None

    def close(self, reason: str) -> None:
        self._kept = self.window or self._kept
        super().close(reason)

    def open(self, window: EpochWindow) -> None:
        kept = self._kept
        super().open(window if kept is None else EpochWindow(window.term, kept.oldest, kept.newest))


class AcceptsStaleEpochs(Fence):
    """What lies below the window gets a hold all the same."""

    def try_acquire(self, epoch: int) -> Grant | None:
        granted = super().try_acquire(epoch)
        if isinstance(granted, StaleClusterEpoch) and self._term is not None:
            return self._term.grant(EpochStatus.IN_WINDOW, epoch)
        return granted


# The write path.


def _no_turns(self: Writer, pending: Pending, staged: asyncio.Future[Any]) -> None:
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


FENCE: dict[str, AbstractContextManager[Any]] = {
    "last-come-first-served": patch.object(fence, "_Term", LastComeFirstServed),
    "judges-only-once": patch.object(fence, "_Term", JudgesOnlyOnce),
}
"""Found by the fence beside its model."""

FENCE_CLASSES: dict[str, type[Fence]] = {
    "slides-under-holds": SlidesUnderHolds,
    "starves-slides": StarvesSlides,
    "forgets-cancelled-grants": ForgetsCancelledGrants,
    "kept-over-terms": KeptOverTerms,
    "accepts-stale-epochs": AcceptsStaleEpochs,
}
"""The same; given as the fence's class."""

CLUSTER: dict[str, AbstractContextManager[Any]] = {
    "fence-kept-over-terms": patch.object(partition, "Fence", KeptOverTerms),
    "stale-epochs-accepted": patch.object(partition, "Fence", AcceptsStaleEpochs),
    "no-turns": patch.object(Writer, "_uploaded", _no_turns),
    "fails-alone": patch.object(Writer, "_fail", _fails_alone),
    "gaps-forgotten": patch.object(Gaps, "refusal", lambda *_: None),
    "unknown-is-refusal": patch.object(pending_acks, "refusal_of", _unknown_is_refusal),
    "no-barrier": patch.object(Partition, "attach", _opens_at_once),
    "answers-early": patch.object(Writer, "_write", _answers_early),
}
"""Found by the simulated cluster."""
