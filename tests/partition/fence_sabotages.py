"""Rules of the fence taken out again, one at a time: its model must find every one, the simulation some."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from strandline.node.partition import fence
from strandline.node.partition.fence import Fence, Grant, Permit
from strandline.statemachine.partition.epoch_window import EpochStatus, EpochWindow, StaleClusterEpoch

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
            if self.permits:
                return
            del self.waiting[waiter]
            if not waiter.future.done():
                self.window = EpochWindow(
                    self.window.term, self.window.newest, max(waiter.epoch, self.window.newest or 0)
                )
                self.permits += 1
                waiter.status = EpochStatus.NEW
                waiter.future.set_result(Permit(self, self.window))


class SlidesUnderPermits(Fence):
    """A new epoch does not wait for the permits that are out."""

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
    """Trap 5: a permit granted in the turn of its cancellation is never given back."""

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
    """What lies below the window gets a permit all the same."""

    def try_acquire(self, epoch: int) -> Grant | None:
        granted = super().try_acquire(epoch)
        if isinstance(granted, StaleClusterEpoch) and self._term is not None:
            return self._term.grant(EpochStatus.IN_WINDOW, epoch)
        return granted


FENCE: dict[str, AbstractContextManager[Any]] = {
    "last-come-first-served": patch.object(fence, "_Term", LastComeFirstServed),
    "judges-only-once": patch.object(fence, "_Term", JudgesOnlyOnce),
}
"""Found by the fence beside its model."""

FENCE_CLASSES: dict[str, type[Fence]] = {
    "slides-under-permits": SlidesUnderPermits,
    "starves-slides": StarvesSlides,
    "forgets-cancelled-grants": ForgetsCancelledGrants,
    "kept-over-terms": KeptOverTerms,
    "accepts-stale-epochs": AcceptsStaleEpochs,
}
"""The same; given as the fence's class."""
