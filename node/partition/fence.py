"""The lock around an epoch window: it decides when an entry may go into the log, and under which window.

The window has the epochs that a partition accepts (`EpochWindow`, the rule alone). An entry carries the
window it was granted under, and no entry of an older window may follow one of a newer. So each writer takes
a permit and keeps it until its entry is in the leader's log, or certainly never will be. Any number of
permits may be out; a new epoch, which slides the window, waits until none is. docs/fence.md has the rules
and the traps.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from strandline.node.partition.fence_log import FenceLog
from strandline.node.refusal import Reason, Refusal
from strandline.statemachine.partition.epoch_window import (
    EpochStatus,
    EpochWindow,
    StaleClusterEpoch,
    WindowCounters,
)


class Permit:
    """The permission to put an entry into the log; the window cannot slide until it is released."""

    __slots__ = ("_released", "_term", "window")

    def __init__(self, term: _Term, window: EpochWindow) -> None:
        self.window = window
        """As granted. Its term is the one to propose the entry in: the log refuses it in any other."""
        self._term = term
        self._released = False

    def release(self) -> None:
        """Give it back, exactly once: a second release raises AssertionError.

        Released after its term, it gives nothing to the term that is present then.
        """
        assert not self._released, "a permit is released once"
        self._released = True
        term = self._term
        term.permits -= 1
        if not term.permits and term.waiting:
            term.serve()


Grant = Permit | StaleClusterEpoch | Refusal
"""NOT_LEADER: the fence is closed, and the request had no effect."""


class _Waiter:
    __slots__ = ("epoch", "future", "status")

    def __init__(self, epoch: int, future: asyncio.Future[Grant]) -> None:
        self.epoch = epoch
        self.future = future
        self.status = EpochStatus.STALE
        """The status of its grant; STALE until it is granted."""


class _Term:
    """The fence in one term. Each has its own permits and queue, so nothing of one reaches into the next."""

    __slots__ = ("permits", "slid", "waiting", "window")

    def __init__(self, window: EpochWindow, slid: Callable[[EpochWindow, EpochWindow], None]) -> None:
        self.window = window
        self.slid = slid
        """Told of the windows before and after a slide."""
        self.permits = 0
        self.waiting: OrderedDict[_Waiter, None] = OrderedDict()
        """In order of arrival; one that gives up leaves from the middle."""

    def grant(self, status: EpochStatus, epoch: int) -> Permit:
        if status is EpochStatus.NEW:
            assert not self.permits, "the window slides while no permit is out"
            before, self.window = self.window, self.window.slide(epoch)
            self.slid(before, self.window)
        self.permits += 1
        return Permit(self, self.window)

    def serve(self) -> None:
        """Answer waiters in order, each by the present window, up to one that still has to wait."""
        waiting = self.waiting
        while waiting:
            waiter = next(iter(waiting))
            if not waiter.future.done():
                status = self.window.classify(waiter.epoch)
                if status is EpochStatus.NEW and self.permits:
                    return
                if status is EpochStatus.STALE:
                    waiter.future.set_result(self.window.refusal(waiter.epoch))
                else:
                    waiter.status = status
                    waiter.future.set_result(self.grant(status, waiter.epoch))
            del waiting[waiter]


class Fence:
    """One partition's fence on one node, open while the node leads. Belongs to one event loop.

    Its cost does not grow with the number of permits; a wait costs a future, and the callers bound their
    number.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, partition: str = "", log: FenceLog | None = None
    ) -> None:
        """`partition` is its name in `log`."""
        self.counters = WindowCounters()
        self._loop = loop
        self._partition = partition
        self._log = log or FenceLog(loop)
        self._term: _Term | None = None
        self._closed = Refusal(Reason.NOT_LEADER, "this node does not lead the partition")

    @property
    def window(self) -> EpochWindow | None:
        """The window of this moment; None while the fence is closed."""
        return None if self._term is None else self._term.window

    @property
    def permits(self) -> int:
        """Permits of the present term that are out."""
        return 0 if self._term is None else self._term.permits

    @property
    def waiting(self) -> int:
        """Requests that wait, those included that were cancelled and did not run since."""
        return 0 if self._term is None else len(self._term.waiting)

    def open(self, window: EpochWindow) -> None:
        """Begin a term, once all of earlier terms is applied, with the window recovered from that."""
        assert self._term is None, "the fence of the term before is still open"
        self._term = _Term(window, self._slid)

    def close(self, reason: str) -> None:
        """End the term: refuse the waiters, in order. Permits that are out are still to be released."""
        self._closed = Refusal(Reason.NOT_LEADER, reason)
        term, self._term = self._term, None
        if term is None:
            return
        for waiter in term.waiting:
            if not waiter.future.done():
                waiter.future.set_result(self._closed)
        term.waiting.clear()

    def try_acquire(self, epoch: int) -> Grant | None:
        """A permit, or a refusal, if either is possible at once; None if the caller has to wait.

        Behind a waiting slide all callers wait, or slides would starve. Only epochs below the window are
        refused ahead of the queue: windows only move up, so waiting could not change it.
        """
        term = self._term
        if term is None:
            return self._closed
        status = term.window.classify(epoch)
        if status is EpochStatus.STALE:
            return self._refused(term.window.refusal(epoch))
        if term.waiting or (status is EpochStatus.NEW and term.permits):
            return None
        self.counters.granted(status)
        return term.grant(status, epoch)

    async def acquire(self, epoch: int) -> Grant:
        """As `try_acquire`, and wait for it. Cancelled at any moment, it leaves nothing behind."""
        granted = self.try_acquire(epoch)
        if granted is not None:
            return granted
        term = self._term
        assert term is not None
        waiter = _Waiter(epoch, self._loop.create_future())
        term.waiting[waiter] = None
        try:
            granted = await waiter.future
        except asyncio.CancelledError:
            # The grant may have come in the same turn as the cancellation, and was then never seen.
            if not waiter.future.cancelled():
                granted = waiter.future.result()
                if isinstance(granted, Permit):
                    granted.release()
            elif waiter in term.waiting:
                del term.waiting[waiter]
                term.serve()
            raise
        if isinstance(granted, Permit):
            self.counters.granted(waiter.status)
        elif isinstance(granted, StaleClusterEpoch):
            self._refused(granted)
        return granted

    def _slid(self, before: EpochWindow, after: EpochWindow) -> None:
        self.counters.slid()
        self._log.slid(self._partition, before, after)

    def _refused(self, refusal: StaleClusterEpoch) -> StaleClusterEpoch:
        self.counters.rejected(refusal)
        self._log.refused(self._partition, refusal)
        return refusal
